"""Errors of forecasts on the windows of series."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np
from numpy.lib.stride_tricks import sliding_window_view

from lagwise.forecasting.moments import window_count

_CHUNK = 2048  # windows forecast at a time
_MOST = 500  # windows at most that quantiles are taken from; fewer than _CHUNK


def forecast_errors(
    maps: Sequence[np.ndarray] | np.ndarray, filled: np.ndarray, targets: np.ndarray, chosen: np.ndarray
) -> Iterator[tuple[int, np.ndarray]]:
    """Series by series its place and its errors ``(windows, horizon)``, some thousand of the chosen windows at a time.

    Shapes: maps, one ``(look_back, horizon)`` for all series or one for each; filled and targets ``(rows, series)``,
    the latter NaN where missing, and so are errors there; chosen, the first rows of windows.
    """
    look_back, horizon = maps[0].shape
    for series in range(filled.shape[1]):
        inputs = sliding_window_view(filled[:, series], look_back)
        outputs = sliding_window_view(targets[look_back:, series], horizon)
        for start in range(0, len(chosen), _CHUNK):
            part = chosen[start : start + _CHUNK]
            yield series, inputs[part] @ maps[series if len(maps) > 1 else 0] - outputs[part]


def error_sizes(maps: Sequence[np.ndarray], filled: np.ndarray, targets: np.ndarray) -> np.ndarray:
    """Absolute errors ``(windows, horizon, series)`` on at most 500 windows, spread evenly: sorted, NaN last."""
    windows = window_count(len(filled), *maps[0].shape)
    chosen = np.unique(np.linspace(0, windows - 1, min(windows, _MOST)).round().astype(int))
    found = [np.sort(np.abs(errors), axis=0) for _, errors in forecast_errors(maps, filled, targets, chosen)]
    return np.stack(found, axis=2)


def error_quantiles(sizes: np.ndarray, coverage: float) -> np.ndarray:
    """Quantiles ``(horizon, series)`` of `error_sizes`.

    The quantile is that of rank ``ceil((n + 1) coverage)`` of the n errors of a horizon and series whose target was
    observed, or the largest; 0 of rank 0, and infinity where nothing is observed.
    """
    count = np.count_nonzero(~np.isnan(sizes), axis=0)
    rank = np.minimum(count, np.ceil((count + 1) * coverage).astype(int))
    found = np.take_along_axis(sizes, np.maximum(0, rank - 1)[None], axis=0)[0]
    return np.where(count == 0, np.inf, np.where(rank == 0, 0.0, found))
