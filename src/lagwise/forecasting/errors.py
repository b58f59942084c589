"""Errors of forecasts on the windows of series."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence

import numpy as np
from numpy.lib.stride_tricks import sliding_window_view

from lagwise.forecasting.moments import window_count

_CHUNK = 2048  # windows forecast at a time
_MOST = 500  # windows at most that quantiles are taken from


def forecast_errors(
    maps: Sequence[np.ndarray] | np.ndarray, filled: np.ndarray, targets: np.ndarray, chosen: np.ndarray
) -> Iterator[np.ndarray]:
    """Errors ``(windows, horizon)`` of the chosen windows, series by series, some thousand windows at a time.

    Shapes: maps, one ``(look_back, horizon)`` for all series or one for each; filled and targets ``(rows, series)``,
    the latter NaN where missing, and so are errors there; chosen, the first rows of windows.
    """
    look_back, horizon = maps[0].shape
    for series in range(filled.shape[1]):
        inputs = sliding_window_view(filled[:, series], look_back)
        outputs = sliding_window_view(targets[look_back:, series], horizon)
        for start in range(0, len(chosen), _CHUNK):
            part = chosen[start : start + _CHUNK]
            yield inputs[part] @ maps[series if len(maps) > 1 else 0] - outputs[part]


def error_quantiles(maps: Sequence[np.ndarray], filled: np.ndarray, targets: np.ndarray, coverage: float) -> np.ndarray:
    """Quantiles ``(horizon, series)`` of the absolute errors on at most 500 windows, spread evenly.

    The quantile is that of rank ``ceil((n + 1) coverage)`` of n, or the largest; infinity where nothing is observed.
    """
    windows = window_count(len(filled), *maps[0].shape)
    chosen = np.unique(np.linspace(0, windows - 1, min(windows, _MOST)).round().astype(int))
    level = min(1.0, math.ceil((len(chosen) + 1) * coverage) / len(chosen))
    found = []
    for series in range(filled.shape[1]):
        part = slice(series, series + 1)
        own = maps if len(maps) == 1 else maps[part]
        sizes = np.abs(next(forecast_errors(own, filled[:, part], targets[:, part], chosen)))
        sizes[:, np.isnan(sizes).all(0)] = np.inf
        found.append(np.nanquantile(sizes, level, axis=0, method="higher"))
    return np.stack(found, axis=1)
