"""Series of different lengths in one fit, and forecasts that are not negative."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from lagwise.forecasting import LagForecaster, choose_forecaster
from lagwise.forecasting.moments import level_weights

LOOK_BACK, HORIZON, PENALTY = 12, 4, 0.05


def lengths(*rows: int) -> dict[str, np.ndarray]:
    """Waves of different lengths, levels and sizes."""
    rng = np.random.default_rng(0)
    return {
        f"s{i}": (1 + i) * (np.sin(np.arange(n) * 2 * np.pi / 7 + i) + 0.2 * rng.normal(size=n)) + 10 * i
        for i, n in enumerate(rows)
    }


def small(**options: Any) -> LagForecaster:
    return LagForecaster(HORIZON, LOOK_BACK, **{"validation": 0, "shared": True, "penalty": PENALTY, **options})


@pytest.mark.parametrize("level", ["mean", "last", "none"])
def test_one_map_is_least_squares_on_the_windows_of_every_series(level: str) -> None:
    series = lengths(80, 45, 25, 6)  # the last has no whole window
    weights = level_weights(level, LOOK_BACK)
    inputs, targets, recent = [], [], []
    for values in series.values():
        z = (values - values.mean()) / values.std()
        for start in range(len(z) - LOOK_BACK - HORIZON + 1):
            window = z[start : start + LOOK_BACK + HORIZON]
            window = window - weights @ window[:LOOK_BACK]
            inputs.append(window[:LOOK_BACK])
            targets.append(window[LOOK_BACK:])
        recent.append(np.concatenate([np.full(max(0, LOOK_BACK - len(z)), z[0]), z])[-LOOK_BACK:])
    u, y = np.stack(inputs), np.stack(targets)
    maps = np.linalg.solve(u.T @ u + PENALTY * len(u) * np.eye(LOOK_BACK), u.T @ y)
    actual = small(level=level).fit(series).predict()
    for i, (values, window) in enumerate(zip(series.values(), recent, strict=True)):
        at = weights @ window
        np.testing.assert_allclose(actual[:, i], ((window - at) @ maps + at) * values.std() + values.mean(), atol=1e-8)


def test_held_out_errors_need_an_observed_input() -> None:
    series = lengths(80, 60, 14)  # the last starts within the held-out rows
    forecaster = small(validation=20, refit=False).fit(series)
    squares = []
    for i, values in enumerate(series.values()):
        z = (values - forecaster.mean_[i]) / forecaster.scale_[i]
        padded = np.concatenate([np.full(LOOK_BACK, z[0]), z])
        for start in range(max(len(z) - 20, 1), len(z) - HORIZON + 1):
            actual = padded[start : start + LOOK_BACK] @ forecaster.maps_[0]
            squares.append((actual - z[start : start + HORIZON]) ** 2)
    assert forecaster.validation_error_ == pytest.approx(np.mean(squares))
    assert forecaster.errors_ is not None
    assert np.count_nonzero(~np.isnan(forecaster.errors_[:, 0, 2])) == 14 - HORIZON  # first, then 9 more


def test_a_series_without_held_out_errors_takes_those_of_others() -> None:
    forecaster = small(validation=20).fit(lengths(80, 60, 4))
    lower, upper = forecaster.predict_interval()
    widths = (upper - lower) / forecaster.scale_
    assert np.isfinite(widths).all()
    assert widths[:, :2].min() < widths[:, 2].mean() < 1.5 * widths[:, :2].max()


def test_a_long_series_does_not_decide_how_many_rows_are_held_out() -> None:
    """A fifth of the median length; a fifth of the longest would leave nothing of the others to learn from."""
    fitted = small(validation=0.2).fit(lengths(1000, 60, 60))
    assert fitted.errors_.shape[0] == 12 - HORIZON + 1  # type: ignore[union-attr]


def test_names_of_a_mapping_are_those_in_messages() -> None:
    forecaster = small().fit(lengths(40, 30))
    assert list(forecaster.feature_names_in_) == ["s0", "s1"]
    with pytest.raises(ValueError, match="series 's1' has no observed value"):
        small().fit({"s0": np.arange(40.0), "s1": np.full(3, np.nan)})
    with pytest.raises(ValueError, match="series 'b' must be numbers"):
        small().fit({"a": np.arange(40.0), "b": ["x"]})
    with pytest.raises(ValueError, match=r"series 'b' must have one dimension, got shape \(2, 2\)"):
        small().fit({"a": np.arange(40.0), "b": np.ones((2, 2))})


def test_forecasts_are_not_negative_on_request() -> None:
    x = np.maximum(0, 3 * np.sin(np.arange(120) / 3)) + 0.5 * np.random.default_rng(0).random(120)
    free, kept = (small(validation=40, nonnegative=kept).fit(x) for kept in (False, True))
    assert free.predict_interval()[0].min() < 0
    for actual, expected in zip(kept.predict_interval(), free.predict_interval(), strict=True):
        assert np.array_equal(actual, np.maximum(expected, 0))
    assert choose_forecaster(-x, HORIZON, nonnegative=True)[0].forecaster.predict().min() == 0
