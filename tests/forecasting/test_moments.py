"""Moments and linear maps against explicit windows."""

from __future__ import annotations

import numpy as np
import pytest
from numpy.lib.stride_tricks import sliding_window_view

from lagwise.forecasting.moments import (
    LEVELS,
    level_weights,
    window_moments,
    window_products,
)
from lagwise.forecasting.solving import ridge_path

LOOK_BACK, HORIZON = 20, 6


def series(rows: int = 300, count: int = 3) -> np.ndarray:
    return np.random.default_rng(0).normal(size=(rows, count)).cumsum(0)


def windows(x: np.ndarray, level: str = "none", look_back: int = LOOK_BACK) -> np.ndarray:
    """All centred windows of all series."""
    made = np.concatenate([sliding_window_view(column, look_back + HORIZON) for column in x.T])
    return made - made[:, :look_back] @ level_weights(level, look_back)[:, None]


@pytest.mark.parametrize("level", LEVELS)
@pytest.mark.parametrize("rows", [26, 27, 64, 300])
def test_moments_equal_those_of_explicit_windows(level: str, rows: int) -> None:
    moments, made = window_moments(series(rows), LOOK_BACK, HORIZON).without_level(level), windows(series(rows), level)
    gram = made.T @ made
    np.testing.assert_allclose(moments.inputs, gram[:LOOK_BACK, :LOOK_BACK], atol=1e-12 * abs(gram).max())
    np.testing.assert_allclose(moments.cross, gram[:LOOK_BACK, LOOK_BACK:], atol=1e-12 * abs(gram).max())
    assert moments.count == len(made)


@pytest.mark.parametrize("at_a_time", [1, 7, 19])
def test_products_are_computed_some_rows_at_a_time(at_a_time: int, monkeypatch: pytest.MonkeyPatch) -> None:
    whole = window_products([series(60, 4).reshape(60, 2, 2)], LOOK_BACK, HORIZON)
    monkeypatch.setattr("lagwise.forecasting.moments._ROWS_PER_BATCH", at_a_time)
    parts = window_products([series(60, 4).reshape(60, 2, 2)], LOOK_BACK, HORIZON)
    for found, expected in zip(parts, whole, strict=True):
        np.testing.assert_allclose(found, expected)


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


def test_low_rank_maps_are_optimal() -> None:
    """Full rank changes nothing. For a lower rank, no small step within the rank reduces the penalized error."""
    moments = window_moments(series(), LOOK_BACK, HORIZON).without_level("mean")
    (full,), (cut,) = (list(ridge_path(moments, [0.1], kernels=HORIZON, rank=rank)) for rank in (6, 2))
    (free,) = ridge_path(moments, [0.1], kernels=HORIZON)
    np.testing.assert_allclose(full, free)
    assert np.linalg.matrix_rank(cut) == 2

    def loss(maps: np.ndarray) -> float:
        products = ((moments.inputs @ maps - 2 * moments.cross) * maps).sum() / moments.count
        return float(products + 0.1 * (maps**2).sum())

    left, sizes, right = np.linalg.svd(cut, full_matrices=False)
    left, right = left[:, :2] * sizes[:2], right[:2]
    rng = np.random.default_rng(1)
    for _ in range(20):
        a, b = (1e-3 * rng.normal(size=part.shape) for part in (left, right))
        assert loss((left + a) @ (right + b)) > loss(cut)
