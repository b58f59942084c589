"""Moments and linear maps against explicit windows."""

from __future__ import annotations

import numpy as np
import pytest
from numpy.lib.stride_tricks import sliding_window_view

from lagwise.forecasting.moments import (
    LEVELS,
    Moments,
    level_weights,
    window_moments,
)
from lagwise.forecasting.solving import expand, kernel_equations, parameter_count, ridge_path

LOOK_BACK, HORIZON = 20, 6


def series(rows: int = 300, count: int = 3) -> np.ndarray:
    return np.random.default_rng(0).normal(size=(rows, count)).cumsum(0)


def windows(x: np.ndarray, level: str = "none", look_back: int = LOOK_BACK) -> np.ndarray:
    """All centred windows of all series."""
    made = np.concatenate([sliding_window_view(column, look_back + HORIZON) for column in x.T])
    return made - made[:, :look_back] @ level_weights(level, look_back)[:, None]


def assert_moments(moments: Moments, made: np.ndarray, look_back: int = LOOK_BACK) -> None:
    gram = made.T @ made
    scale = abs(gram).max()
    np.testing.assert_allclose(moments.inputs, gram[:look_back, :look_back], atol=1e-12 * scale)
    np.testing.assert_allclose(moments.cross, gram[:look_back, look_back:], atol=1e-12 * scale)
    assert moments.count == len(made)


@pytest.mark.parametrize("level", LEVELS)
@pytest.mark.parametrize("rows", [26, 27, 64, 300])
def test_moments_equal_those_of_explicit_windows(level: str, rows: int) -> None:
    x = series(rows)
    assert_moments(window_moments(x, LOOK_BACK, HORIZON).without_level(level), windows(x, level))


@pytest.mark.parametrize("at_a_time", [1, 7, 19])
def test_products_are_computed_some_rows_at_a_time(at_a_time: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("lagwise.forecasting.moments._ROWS_PER_BATCH", at_a_time)
    assert_moments(window_moments(series(64), LOOK_BACK, HORIZON), windows(series(64)))


def test_too_few_rows() -> None:
    with pytest.raises(ValueError, match="20 \\+ 6 rows must fit into the data, which has 25"):
        window_moments(series(25), LOOK_BACK, HORIZON)


@pytest.mark.parametrize("kernels", [1, 2, 3, 6])
def test_kernels_are_least_squares_on_explicit_windows(kernels: int) -> None:
    """From one kernel (`toeplitz`) up to one per horizon (`ridge`)."""
    made = windows(series(), "mean")
    width, penalty = HORIZON // kernels, 0.1
    columns = []
    for group in range(kernels):
        rows, targets = [], []
        for h in range(width):
            row = np.zeros((len(made), LOOK_BACK + width - 1))
            row[:, width - 1 - h :][:, :LOOK_BACK] = made[:, :LOOK_BACK]
            rows.append(row)
            targets.append(made[:, LOOK_BACK + group * width + h])
        a, b = np.concatenate(rows), np.concatenate(targets)
        k = np.linalg.solve(a.T @ a / len(a) + penalty * np.eye(a.shape[1]), a.T @ b / len(a))
        columns += [k[width - 1 - h :][:LOOK_BACK] for h in range(width)]
    moments = window_moments(series(), LOOK_BACK, HORIZON).without_level("mean")
    (maps,) = ridge_path(moments, [penalty], kernels=kernels)
    np.testing.assert_allclose(maps, np.stack(columns, 1), atol=1e-10)


def test_all_penalties_share_one_decomposition() -> None:
    moments = window_moments(series(), LOOK_BACK, HORIZON)
    penalties = [1e-3, 1.0, 100.0, np.inf]
    path = list(ridge_path(moments, penalties, kernels=HORIZON))
    for penalty, maps in zip(penalties[:-1], path, strict=False):
        solved = np.linalg.solve(
            moments.inputs / moments.count + penalty * np.eye(LOOK_BACK), moments.cross / moments.count
        )
        np.testing.assert_allclose(maps, solved, atol=1e-9)
    assert not path[-1].any()


def test_one_kernel_has_constant_diagonals() -> None:
    maps = expand(np.arange(LOOK_BACK + HORIZON - 1.0)[:, None], LOOK_BACK)
    assert maps.shape == (LOOK_BACK, HORIZON)
    assert np.array_equal(maps[1:, 1:], maps[:-1, :-1])


def test_parameters_are_counted() -> None:
    assert parameter_count(720, 96, kernels=1) == 815
    assert parameter_count(720, 96, kernels=96) == 720 * 96


def test_kernels_divide_the_horizon() -> None:
    with pytest.raises(ValueError, match="kernels must divide the horizon of 6, got 4"):
        kernel_equations(window_moments(series(), LOOK_BACK, HORIZON), 4)
