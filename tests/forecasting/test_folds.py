"""Choices on several blocks of held-out rows."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from numpy.lib.stride_tricks import sliding_window_view

from lagwise.forecasting import LagForecaster
from lagwise.forecasting.moments import PENALTIES

LOOK_BACK, HORIZON, HELD = 12, 4, 40


def series(rows: int = 200) -> np.ndarray:
    draw = np.random.default_rng(0)
    return np.sin(np.arange(rows) / 3)[:, None] + draw.normal(0, 0.7, (rows, 2)).cumsum(0) * 0.2


def windows(z: np.ndarray, begin: int, end: int) -> tuple[np.ndarray, np.ndarray]:
    """The inputs without their mean, and the targets, of all windows of both series within some rows."""
    every = np.concatenate([sliding_window_view(z[begin:end, i], LOOK_BACK + HORIZON) for i in range(2)])
    every = every - every[:, :LOOK_BACK].mean(1, keepdims=True)
    return every[:, :LOOK_BACK], every[:, LOOK_BACK:]


def ridge(pieces: list[tuple[np.ndarray, np.ndarray]], penalty: float) -> np.ndarray:
    u, y = (np.concatenate(part) for part in zip(*pieces, strict=True))
    return np.linalg.solve(u.T @ u / len(u) + penalty * np.eye(LOOK_BACK), u.T @ y / len(u))


def test_the_penalty_has_the_lowest_error_on_all_blocks_by_maps_from_the_rows_around_them() -> None:
    x = series()
    made = LagForecaster(HORIZON, LOOK_BACK, shared=True, validation=HELD, folds=3, refit=False).fit(x)
    z = (x - made.mean_) / made.scale_
    errors, counts = np.zeros(len(PENALTIES)), 0
    for begin in (160, 120, 80):
        end = begin + HELD
        around = [windows(z, 0, begin)] + ([windows(z, end, 200)] if end < 200 else [])
        u, y = windows(z, begin - LOOK_BACK, end)
        counts += y.size
        errors += [float(((u @ ridge(around, p) - y) ** 2).sum()) for p in PENALTIES]
    best = int(errors.argmin())
    assert made.penalty_ == [(PENALTIES[best],)]
    assert made.validation_error_ == pytest.approx(errors[best] / counts)
    inputs, _ = windows(z, 200 - LOOK_BACK - HORIZON, 200)
    mean = z[200 - LOOK_BACK - HORIZON : 200 - HORIZON].mean(0)
    expected = (
        inputs @ ridge([windows(z, 0, 160)], PENALTIES[best])
    ).T + mean  # maps of the rows before the last block
    found = made.predict(X=x[: 200 - HORIZON])
    assert np.allclose(found, expected * made.scale_ + made.mean_)


@pytest.mark.parametrize("shared", [None, False])
def test_a_season_that_the_last_rows_lack_counts_for_the_weights(shared: bool | None) -> None:
    """The last rows are a random walk, forecast best by the last value; a cycle before them needs a longer window."""
    x = np.concatenate([np.sin(np.arange(300) * 2 * np.pi / 24)[:, None] * np.ones(2), np.zeros((60, 2))])
    x = x + np.random.default_rng(1).normal(0, 0.02, x.shape).cumsum(0)
    options: dict[str, Any] = {"look_back": (1, 30), "validation": 60, "refit": False, "shared": shared}
    assert LagForecaster(6, **options).fit(x).weights_[0] > LagForecaster(6, folds=4, **options).fit(x).weights_[0]


def test_folds_need_a_penalty_to_choose() -> None:
    for options in ({"penalty": 1.0}, {"model": {"name": "seasonal", "period": 2}}):
        with pytest.raises(ValueError, match=r"give folds=1"):
            LagForecaster(HORIZON, LOOK_BACK, folds=2, **options).fit(series())  # type: ignore[bad-argument-type]
    with pytest.raises(ValueError, match=r"folds must be an integer of at least 1, got 0"):
        LagForecaster(HORIZON, LOOK_BACK, folds=0).fit(series())
