"""Errors of forecasts on the windows of series."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence

import numpy as np
from numpy.lib.stride_tricks import sliding_window_view
from scipy.optimize import nnls
from scipy.special import ndtri, stdtrit

from lagwise.forecasting.moments import window_count

_CHUNK = 2048  # windows to forecast at a time
_DRAWN = 10  # windows that the share of independent errors is drawn to 1 by
_MANY = 30  # independent errors, of which each horizon has its own size
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


def window_errors(maps: Sequence[np.ndarray], filled: np.ndarray, targets: np.ndarray) -> np.ndarray:
    """Errors ``(windows, horizon, series)`` on at most 500 windows at even distances, NaN where not observed."""
    windows = window_count(len(filled), *maps[0].shape)
    chosen = np.unique(np.linspace(0, windows - 1, min(windows, _MOST)).round().astype(int))
    return np.stack([errors for _, errors in forecast_errors(maps, filled, targets, chosen)], axis=2)


def independent_errors(errors: np.ndarray, apart: float) -> float:
    """How many errors ``(windows, horizon, series)`` count as independent; ``apart`` windows do not overlap.

    Formula: with m the mean of a window's errors, ``r = E[e^2] / E[m^2]`` of a window's errors are independent: 1 where
    they are equal, as of a level that was missed, and all where they are noise. Few windows estimate it badly, so it
    is drawn towards 1 as by 10 more windows: ``apart (1 + (r - 1) apart / (apart + 10))``.
    """
    count = np.count_nonzero(~np.isnan(errors), axis=1)
    means = np.nansum(errors, axis=1) / np.maximum(1, count)
    squares = np.nansum(errors**2, axis=1).sum(0) / np.maximum(1, count.sum(0))
    levels = (means**2 * count).sum(0) / np.maximum(1, count.sum(0))
    ratios = squares[levels > 0] / levels[levels > 0]
    ratio = float(np.median(ratios)) if len(ratios) else 1.0
    return apart * (1 + (ratio - 1) * apart / (apart + _DRAWN))


def error_quantiles(sizes: np.ndarray, coverage: float, independent: float | None = None) -> np.ndarray:
    """Quantiles ``(horizon, series)`` of the sizes of errors, for intervals of this coverage.

    Formula: errors are divided by their root mean square at each horizon (its square a line over horizons where fewer
    than 30 errors are independent), and the quantile of all of a series together is multiplied by it, and by the ratio
    of the quantiles of Student's t with ``independent`` degrees of freedom and of a normal distribution, which is how
    much wider an interval is whose size comes from few errors.

    The quantile has rank ``ceil((n + 1) coverage)`` among n errors, or is the largest. It is 0 for rank 0, and infinite
    where nothing is observed.

    Args:
        sizes: ``(windows, horizon, series)``, NaN where not observed.
        coverage: Of the intervals.
        independent: Number of independent errors (`independent_errors`); None for many.
    """
    _, horizon, series = sizes.shape
    independent = np.inf if independent is None else max(1.0, independent)
    wider = stdtrit(independent, (1 + coverage) / 2) / ndtri((1 + coverage) / 2) if coverage > 0 else 1.0
    found = np.full((horizon, series), np.inf)
    for i in range(series):
        own = sizes[:, :, i]
        observed = ~np.isnan(own)
        if not observed.any():
            continue
        profile = _profile(own, observed, independent)
        ratios = np.sort((own / np.where(profile > 0, profile, 1.0))[observed])
        rank = min(len(ratios), math.ceil((len(ratios) + 1) * coverage))
        found[:, i] = wider * profile * (ratios[rank - 1] if rank else 0.0)
    return found


def _profile(sizes: np.ndarray, observed: np.ndarray, independent: float) -> np.ndarray:
    """The root mean square of errors ``(windows, horizon)`` at each horizon; by a line where windows are few."""
    count = observed.sum(0)
    squares = np.where(observed, sizes, 0.0) ** 2
    means = squares.sum(0) / np.maximum(1, count)
    if independent >= _MANY and count.all():
        return np.sqrt(means)
    places = np.stack([np.ones(len(means)), np.arange(1.0, len(means) + 1)], axis=1)
    unit = means.max() or 1.0
    line, _ = nnls(places * np.sqrt(count)[:, None], means / unit * np.sqrt(count))
    return np.sqrt(places @ line * unit)
