"""Moments and linear maps against explicit windows."""

from __future__ import annotations

import numpy as np
import pytest
from numpy.lib.stride_tricks import sliding_window_view

from lagwise.forecasting.fitting import _least_squares, held_out_stretches
from lagwise.forecasting.moments import (
    LEVELS,
    level_weights,
    ridge_path,
    window_moments,
)

LOOK_BACK, HORIZON = 20, 6


def test_weights_are_inverse_to_independent_errors() -> None:
    np.testing.assert_allclose(_least_squares(np.diag([1.0, 2.0])), [2 / 3, 1 / 3], rtol=1e-6)


@pytest.mark.parametrize(("begin", "count"), [(14, 0), (13, 1)])
def test_held_out_rows_have_a_whole_window(begin: int, count: int) -> None:
    x = np.zeros((20, 2))
    assert len(held_out_stretches(x, x > 0, begin, look_back=4, horizon=3)) == count


def series(rows: int = 300, count: int = 3) -> np.ndarray:
    return np.random.default_rng(0).normal(size=(rows, count)).cumsum(0)


def windows(x: np.ndarray, level: str = "none", look_back: int = LOOK_BACK) -> np.ndarray:
    """All centred windows of all series."""
    window_rows = np.concatenate([sliding_window_view(column, look_back + HORIZON) for column in x.T])
    return window_rows - window_rows[:, :look_back] @ level_weights(level, look_back)[:, None]


@pytest.mark.parametrize("level", LEVELS)
@pytest.mark.parametrize("rows", [26, 27, 64, 300])
def test_moments_equal_those_of_explicit_windows(level: str, rows: int) -> None:
    moments = window_moments(series(rows), LOOK_BACK, HORIZON).without_level(level)
    window_rows = windows(series(rows), level)
    gram = window_rows.T @ window_rows
    np.testing.assert_allclose(moments.inputs, gram[:LOOK_BACK, :LOOK_BACK], atol=1e-12 * abs(gram).max())
    np.testing.assert_allclose(moments.cross, gram[:LOOK_BACK, LOOK_BACK:], atol=1e-12 * abs(gram).max())
    assert moments.count == len(window_rows)


@pytest.mark.parametrize("at_a_time", [1, 7, 19])
def test_products_are_computed_some_rows_at_a_time(at_a_time: int, monkeypatch: pytest.MonkeyPatch) -> None:
    whole = window_moments(series(64), LOOK_BACK, HORIZON)
    monkeypatch.setattr("lagwise.forecasting.moments._PRODUCT_ROWS_PER_BATCH", at_a_time)
    parts = window_moments(series(64), LOOK_BACK, HORIZON)
    np.testing.assert_allclose(parts.inputs, whole.inputs)
    np.testing.assert_allclose(parts.cross, whole.cross)


@pytest.mark.parametrize("kernels", [1, 2, 3, 6])
def test_kernels_are_least_squares_on_explicit_windows(kernels: int) -> None:
    """From one kernel (`toeplitz`) up to one per horizon (`ridge`)."""
    window_rows = windows(series(), "mean")
    width, penalty = HORIZON // kernels, 0.1
    columns = []
    for group in range(kernels):
        rows, targets = [], []
        for h in range(width):
            row = np.zeros((len(window_rows), LOOK_BACK + width - 1))
            row[:, width - 1 - h :][:, :LOOK_BACK] = window_rows[:, :LOOK_BACK]
            rows.append(row)
            targets.append(window_rows[:, LOOK_BACK + group * width + h])
        a, b = np.concatenate(rows), np.concatenate(targets)
        k = np.linalg.solve(a.T @ a / len(a) + penalty * np.eye(a.shape[1]), a.T @ b / len(a))
        columns += [k[width - 1 - h :][:LOOK_BACK] for h in range(width)]
    moments = window_moments(series(), LOOK_BACK, HORIZON).without_level("mean")
    (maps,) = ridge_path(moments, [penalty], kernels=kernels)
    np.testing.assert_allclose(maps, np.stack(columns, 1), atol=1e-10)
