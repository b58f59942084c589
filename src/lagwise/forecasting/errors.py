"""Measure errors of forecasts on the windows of series."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence

import numpy as np
from numpy.lib.stride_tricks import sliding_window_view

from lagwise.forecasting.moments import window_count

_WINDOWS_PER_CHUNK = 2048
_PRIOR_WINDOWS = 10  # weight of the prior: one independent error per window
_LATEST_HORIZONS = 2
_MIN_ERRORS_FOR_PROFILE = 30  # independent ones, to estimate the size of errors at each horizon
_MAX_QUANTILE_WINDOWS = 500  # below _WINDOWS_PER_CHUNK
_MIN_QUANTILE_WINDOWS, _MAX_QUANTILE_ERRORS = 10, 3_000_000  # errors of all series together


def forecast_errors(
    maps: Sequence[np.ndarray] | np.ndarray,
    filled: np.ndarray,
    targets: np.ndarray,
    window_starts: np.ndarray,
    first: np.ndarray | None = None,
) -> Iterator[tuple[int, np.ndarray]]:
    """Yield for each series its index and its errors ``(windows, horizon)``, some thousand of the chosen windows at a
    time.

    Args:
        maps: One ``(look_back, horizon)`` for all series, or one for each.
        filled: ``(rows, series)``.
        targets: Like filled, NaN where missing; errors there are NaN too.
        window_starts: The first rows of windows.
        first: The first observed row of each series, by default 0. Forecasts without an observed input have no error.
    """
    look_back, horizon = maps[0].shape
    for series in range(filled.shape[1]):
        inputs = sliding_window_view(filled[:, series], look_back)
        outputs = sliding_window_view(targets[look_back:, series], horizon)
        for start in range(0, len(window_starts), _WINDOWS_PER_CHUNK):
            chunk = window_starts[start : start + _WINDOWS_PER_CHUNK]
            errors = inputs[chunk] @ maps[series if len(maps) > 1 else 0] - outputs[chunk]
            if first is not None:
                errors[chunk + look_back <= first[series]] = np.nan
            yield series, errors


def window_errors(
    maps: Sequence[np.ndarray],
    filled: np.ndarray,
    targets: np.ndarray,
    first: np.ndarray | None = None,
) -> np.ndarray:
    """Compute errors ``(windows, horizon, series)`` on at most 500 windows at even distances (fewer of hundreds of
    series), NaN where not observed; the rest as in `forecast_errors`."""
    look_back, horizon = maps[0].shape
    window_starts = spaced_windows(len(filled), look_back, horizon, max_windows(horizon, filled.shape[1]))
    by_series = forecast_errors(maps, filled, targets, window_starts, first)
    return np.stack([errors for _, errors in by_series], axis=2)


def spaced_windows(rows: int, look_back: int, horizon: int, max_count: int) -> np.ndarray:
    """Choose the first rows of at most ``max_count`` windows, at even distances."""
    windows = window_count(rows, look_back, horizon)
    return np.unique(np.linspace(0, windows - 1, min(windows, max_count)).round()).astype(int)


def sorted_sizes(errors: np.ndarray, late: np.ndarray) -> np.ndarray:
    """Sort absolute errors ``(windows, horizon, series)``. A series that begins too ``late`` to have any borrows the
    errors of the others, one window of each in turn."""
    sizes = np.abs(errors)
    empty = np.isnan(sizes).all((0, 1))
    borrowing, lending = np.flatnonzero(empty & late), np.flatnonzero(~empty)
    if len(borrowing) and len(lending):
        windows = np.arange(len(sizes))
        sizes[:, :, borrowing] = sizes[windows, :, lending[windows * len(lending) // len(windows)]][:, :, None]
    return np.sort(sizes, axis=0)


def max_windows(horizon: int, series: int) -> int:
    """Compute the largest number of windows whose errors are kept for quantiles."""
    return max(_MIN_QUANTILE_WINDOWS, min(_MAX_QUANTILE_WINDOWS, _MAX_QUANTILE_ERRORS // (horizon * series)))


def independent_errors(errors: np.ndarray, apart: float) -> float:
    """Count how many errors ``(windows, horizon, series)`` are independent; ``apart`` windows do not overlap.

    Formula: with m the mean of a window's errors, ``r = E[e^2] / E[m^2]`` of a window's errors are independent: 1 where
    they are equal, as of a level that was missed, and all of them, the horizon, at most. Few windows estimate it badly,
    so it is drawn towards 1 as by 10 more windows: ``apart (1 + (r - 1) apart / (apart + 10))``.
    """
    count = np.count_nonzero(~np.isnan(errors), axis=1)
    means = np.nansum(errors, axis=1) / np.maximum(1, count)
    squares = np.nansum(errors**2, axis=1).sum(0) / np.maximum(1, count.sum(0))
    levels = (means**2 * count).sum(0) / np.maximum(1, count.sum(0))
    ratios = squares[levels > 0] / levels[levels > 0]
    ratio = min(float(np.median(ratios)), errors.shape[1]) if len(ratios) else 1.0
    return apart * (1 + (ratio - 1) * apart / (apart + _PRIOR_WINDOWS))


def unrest(errors: np.ndarray, starts: np.ndarray, x: np.ndarray) -> np.ndarray:
    """Compute the factor (at least 1) by which future errors may exceed held-out errors, for each series.

    Formula: ``max(1, c) max(1, r)``. c is the root mean square of the changes from row to row, over that in the
    held-out rows: these may be calmer than the rows before, as wind is in summer. r² is the mean square of the errors
    from the last two horizons, averaged with that of all errors, over that of all: where sizes change slowly, the last
    errors tell most of the next ones.

    Args:
        errors: ``(windows, horizon, series)`` in order of time, NaN where not observed.
        starts: The first rows of their targets.
        x: ``(rows, series)``, of which the errors are, in any units; NaN where not observed.

    Source: weights by recency as in Barber et al. 2023 (conformal prediction beyond exchangeability).
    """
    changes = np.diff(x, axis=0) ** 2
    calm = _ratio(changes, changes[max(0, starts[0] - 1) :])
    sizes = errors**2
    last = sizes[starts >= starts[-1] - _LATEST_HORIZONS * errors.shape[1]]
    recent = (1 + _ratio(last, sizes)) / 2
    return np.sqrt(np.maximum(1, calm) * np.maximum(1, recent))


def _ratio(squares: np.ndarray, reference: np.ndarray) -> np.ndarray:
    """Divide the mean of squares ``(..., series)`` by the mean of ``reference``; 1 where either is unknown or 0."""
    means = []
    for each in (squares, reference):
        count = np.count_nonzero(~np.isnan(each), axis=tuple(range(each.ndim - 1)))
        means.append(np.nansum(each, axis=tuple(range(each.ndim - 1))) / np.maximum(1, count))
    defined = (means[0] > 0) & (means[1] > 0)
    return np.where(defined, means[0] / np.where(defined, means[1], 1.0), 1.0)


def error_quantiles(sizes: np.ndarray, coverage: float, independent: float | None = None) -> np.ndarray:
    """Compute quantiles ``(horizon, series)`` of the sizes of errors, for intervals of this coverage.

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
    from scipy.special import ndtri, stdtrit

    _, horizon, series = sizes.shape
    independent = np.inf if independent is None else max(1.0, independent)
    wider = stdtrit(independent, (1 + coverage) / 2) / ndtri((1 + coverage) / 2) if coverage > 0 else 1.0
    quantiles = np.full((horizon, series), np.inf)
    for i in range(series):
        series_sizes = sizes[:, :, i]
        observed = ~np.isnan(series_sizes)
        if not observed.any():
            continue
        profile = _profile(series_sizes, observed, independent)
        ratios = np.sort((series_sizes / np.where(profile > 0, profile, 1.0))[observed])
        rank = min(len(ratios), math.ceil((len(ratios) + 1) * coverage))
        quantiles[:, i] = wider * profile * (ratios[rank - 1] if rank else 0.0)
    return quantiles


def _profile(sizes: np.ndarray, observed: np.ndarray, independent: float) -> np.ndarray:
    """Compute the root mean square of errors ``(windows, horizon)`` at each horizon; by a line where windows are
    few."""
    from scipy.optimize import nnls

    count = observed.sum(0)
    squares = np.where(observed, sizes, 0.0) ** 2
    means = squares.sum(0) / np.maximum(1, count)
    if independent >= _MIN_ERRORS_FOR_PROFILE and count.all():
        return np.sqrt(means)
    line_basis = np.stack([np.ones(len(means)), np.arange(1.0, len(means) + 1)], axis=1)
    unit = means.max() or 1.0
    line, _ = nnls(line_basis * np.sqrt(count)[:, None], means / unit * np.sqrt(count))
    return np.sqrt(line_basis @ line * unit)
