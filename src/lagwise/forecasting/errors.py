"""Errors of forecasts on the windows of series."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np
from numpy.lib.stride_tricks import sliding_window_view

from lagwise.forecasting.moments import window_count

_CHUNK = 2048  # windows to forecast at a time
_MOST = 500  # largest number of windows for quantiles; fewer than _CHUNK


def forecast_errors(
    maps: Sequence[np.ndarray] | np.ndarray, filled: np.ndarray, targets: np.ndarray, chosen: np.ndarray
) -> Iterator[tuple[int, np.ndarray]]:
    """Yield for each series its index and its errors ``(windows, horizon)``, some thousand of the chosen windows at a
    time.

    Args:
        maps: One ``(look_back, horizon)`` for all series, or one for each.
        filled: ``(rows, series)``.
        targets: Like filled, NaN where missing; errors there are NaN too.
        chosen: The first rows of windows.
    """
    look_back, horizon = maps[0].shape
    for series in range(filled.shape[1]):
        inputs = sliding_window_view(filled[:, series], look_back)
        outputs = sliding_window_view(targets[look_back:, series], horizon)
        for start in range(0, len(chosen), _CHUNK):
            part = chosen[start : start + _CHUNK]
            yield series, inputs[part] @ maps[series if len(maps) > 1 else 0] - outputs[part]


def error_sizes(maps: Sequence[np.ndarray], filled: np.ndarray, targets: np.ndarray) -> np.ndarray:
    """Absolute errors ``(windows, horizon, series)`` on at most 500 windows at even distances: sorted, NaN last."""
    windows = window_count(len(filled), *maps[0].shape)
    chosen = np.unique(np.linspace(0, windows - 1, min(windows, _MOST)).round().astype(int))
    found = [np.sort(np.abs(errors), axis=0) for _, errors in forecast_errors(maps, filled, targets, chosen)]
    return np.stack(found, axis=2)


def error_quantiles(sizes: np.ndarray, coverage: float) -> np.ndarray:
    """Quantiles ``(horizon, series)`` of `error_sizes`.

    The quantile has rank ``ceil((n + 1) coverage)`` among the n errors of a horizon and series with observed targets,
    or is the largest. It is 0 for rank 0, and infinite where nothing is observed.
    """
    count = np.count_nonzero(~np.isnan(sizes), axis=0)
    rank = np.minimum(count, np.ceil((count + 1) * coverage).astype(int))
    found = np.take_along_axis(sizes, np.maximum(0, rank - 1)[None], axis=0)[0]
    return np.where(count == 0, np.inf, np.where(rank == 0, 0.0, found))
