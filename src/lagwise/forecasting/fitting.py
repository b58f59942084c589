"""Fit linear maps to series: choose windows, the penalty, and which series share a map."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import NamedTuple

import numpy as np
from numpy.lib.stride_tricks import sliding_window_view

from lagwise.forecasting.design import CLOSED_FORM, Design
from lagwise.forecasting.errors import forecast_errors, max_windows, spaced_windows
from lagwise.forecasting.gaps import stretches
from lagwise.forecasting.moments import Refill, level_weights, ridge_path, window_count, window_moments
from lagwise.forecasting.smoothing import fit_smoothing

_RELATIVE_JITTER = 1e-9  # of the mean squared error: maps with nearly equal errors get equal weights
_MAX_GAP_SHARE = 0.1  # of the look-back: windows with longer runs of missing rows are not used in training


class Fold(NamedTuple):
    """Fold of the rows: stretches to train on, and held-out ones."""

    train: Sequence[Stretch]
    valid: Sequence[Stretch]


@dataclass(frozen=True)
class Fit:
    """Fit to some rows: a map for each look-back, and their weighted average.

    look_back_maps: a map ``(look_back, horizon)`` from raw inputs to forecasts for each look-back. products: sums over
    held-out windows of products of their errors ``(look_backs, look_backs)``; count: the number of observed targets
    there. penalties: one for each look-back; weights: those of the average. other_folds: the maps that were fitted to
    the rows of other folds.
    """

    look_back_maps: tuple[np.ndarray, ...]
    products: np.ndarray
    count: float
    penalties: tuple[float, ...]
    weights: np.ndarray
    other_folds: tuple[tuple[np.ndarray, ...], ...] = ()

    @cached_property
    def maps(self) -> np.ndarray:
        """The average map, of the longest look-back."""
        longest = max(map(len, self.look_back_maps))
        padded = [np.pad(maps, ((longest - len(maps), 0), (0, 0))) for maps in self.look_back_maps]
        return np.tensordot(self.weights, padded, 1)

    @property
    def squares(self) -> float:
        """The sum of squared errors of the average on held-out windows."""
        return float(self.weights @ self.products @ self.weights)


def weighted(fits: Sequence[Fit]) -> list[Fit]:
    """Weight the look-backs of fits so as to minimise the squared error of all together on their held-out windows: no
    weight below 0, with the sum 1 (stacking, Breiman 1996)."""
    weights = _least_squares(np.sum([fit.products for fit in fits], axis=0))
    return [replace(fit, weights=weights) for fit in fits]


def _least_squares(products: np.ndarray) -> np.ndarray:
    """Find the weights w that minimise ``w^T P w``, none below 0, with the sum 1.

    The minimum of ``w^T P w / 2 - sum w`` has the same direction without the constraint on the sum, so it is divided by
    its sum: non-negative least squares with P = R^T R.
    """
    from scipy.optimize import nnls

    size = len(products)
    unit = float(np.trace(products)) / size
    if size == 1 or unit <= 0:
        return np.full(size, 1 / size)
    try:
        root = np.linalg.cholesky(products / unit + _RELATIVE_JITTER * np.eye(size)).T
    except np.linalg.LinAlgError:  # held-out targets that are forecast almost exactly
        return np.full(size, 1 / size)
    solution = nnls(root, np.linalg.solve(root.T, np.ones(size)))[0]
    return solution / solution.sum()


def usable_rows(
    x: np.ndarray,
    missing: np.ndarray,
    width: int,
    look_back: int,
    *,
    held_out: tuple[int, int] | None = None,
) -> list[Stretch]:
    """Find the stretches of filled series ``(rows, series)`` that windows may cover: at least ``width`` rows, without a
    run of missing rows longer than a tenth of the look-back, before and after the held-out rows (their begin and end).
    ValueError if there are none."""
    longest = max(1, int(_MAX_GAP_SHARE * look_back))
    first, last = (len(x), len(x)) if held_out is None else held_out
    usable = [
        Stretch(x[rows, series], missing[rows, series])
        for begin, end in ((0, first), (last, len(x)))
        if end - begin >= width
        for (a, b), series in stretches(missing[begin:end], longest).items()
        if b - a >= width and (rows := slice(begin + a, begin + b))
    ]
    if not usable:
        raise ValueError(
            f"a window of look_back + horizon = {width} rows without a run of more than {longest} missing values is "
            f"needed, and {len(x) - last + first} rows have none; choose a shorter look_back or horizon, or fill in "
            "the values"
        )
    return usable


def held_out_stretches(x: np.ndarray, missing: np.ndarray, begin: int, look_back: int, horizon: int) -> list[Stretch]:
    """Find the stretches of filled series ``(rows, series)`` whose windows are held out: from the row ``begin`` or, of
    series that start later, the first row from which the last input of a window is observed."""
    first = np.where(missing.all(0), 0, (~missing).argmax(0))
    starts = np.maximum(begin, first + 1 - look_back)
    held_out = []
    for start in np.unique(starts):
        selection = slice(start, None), starts == start
        if len(x) - start >= look_back + horizon:
            held_out.append(Stretch(x[selection], missing[selection]))
    return held_out


def fit_maps(
    design: Design,
    folds: Sequence[Fold],
    like: Fit | None = None,
    near: Fit | None = None,
) -> Fit:
    """Fit one map for each look-back, for all given series, from stretches of rows to train on.

    Args:
        design: The kind of map.
        folds: Rows to train on and, if any, held-out ones, whose windows choose one of ``design.penalties``: the one
            with the lowest error on those of all folds together. The maps are those of the first fold.
        like: A fit whose penalties and weights are taken over. By default look-backs have equal weights.
        near: A fit to other series. The penalty is then on the difference from its maps, and may be infinite.
    """
    held_out = [HeldOut(fold.valid, design.look_back) if fold.valid else None for fold in folds]
    maps_by_fold: list[list[np.ndarray]] = [[] for _ in folds]
    penalties = []
    for i, look_back in enumerate(design.look_backs):
        paths = [
            _candidates(
                design,
                fold.train,
                look_back,
                None if like is None else like.penalties[i],
                None if near is None else (near.look_back_maps, *near.other_folds)[k][i],
            )
            for k, fold in enumerate(folds)
        ]
        best, best_error, penalty = None, np.inf, 0.0
        for candidates in zip(*paths, strict=True):
            squares = [w.products([maps]) for w, (maps, _) in zip(held_out, candidates, strict=True) if w is not None]
            error = sum(float(s[0, 0]) for s, _ in squares) / sum(n for _, n in squares) if squares else -1.0
            if best is None or error < best_error:
                best, best_error, penalty = [maps for maps, _ in candidates], error, candidates[0][1]
        assert best is not None
        for fold_maps, maps in zip(maps_by_fold, best, strict=True):
            fold_maps.append(maps)
        penalties.append(penalty)
    size = len(penalties)
    products, count = np.zeros((size, size)), 0.0
    for windows, fold_maps in zip(held_out, maps_by_fold, strict=True):
        if windows is None:
            continue
        fold_products, fold_count = windows.products(fold_maps)
        products, count = products + fold_products, count + fold_count
    weights = np.full(size, 1 / size) if like is None else like.weights
    first, *other_folds = (tuple(fold_maps) for fold_maps in maps_by_fold)
    return Fit(first, products, count, tuple(penalties), weights, tuple(other_folds))


def _candidates(
    design: Design,
    train: Sequence[Stretch],
    look_back: int,
    fixed_penalty: float | None,
    near: np.ndarray | None,
) -> Iterator[tuple[np.ndarray, float]]:
    """Yield the map from raw inputs for each penalty, or for ``fixed_penalty`` only. With ``near``, the penalty is on
    the difference from this map, which an infinite penalty returns."""
    if design.spec["name"] == "smoothing":
        filled = np.concatenate([each.filled for each in train], axis=1)
        missing = np.concatenate([each.missing for each in train], axis=1)
        smoothing = fit_smoothing(filled, missing, design.spec["period"])
        yield smoothing.map(look_back, design.horizon), 0.0
        return
    if design.spec["name"] == "seasonal":
        yield seasonal_map(look_back, design.horizon, design.spec["period"]), 0.0
        return
    level = level_weights(design.level, look_back)
    if design.penalties == (math.inf,):  # the level alone, which needs no rows to train on
        yield np.outer(level, np.ones(design.horizon)), math.inf
        return
    penalties = design.penalties if fixed_penalty is None else (fixed_penalty,)
    if near is not None and fixed_penalty in (None, math.inf):
        yield near, math.inf
        if fixed_penalty is not None:
            return
    moments = window_moments([each.filled for each in train], look_back, design.horizon).without_level(design.level)
    unobserved = Unobserved(train, look_back, design.horizon)
    if near is not None:  # fit the residuals of its forecasts
        moments = replace(moments, cross=moments.cross - moments.inputs @ near)

    def raw(maps: np.ndarray) -> np.ndarray:
        """Add the level back to maps of inputs without their level."""
        maps = maps if near is None else near + maps
        return maps + np.outer(level, 1 - maps.sum(0))

    def refilled(maps: np.ndarray) -> np.ndarray:
        more = unobserved.cross(raw(maps))
        return moments.cross + more - level @ more

    refill: Refill | None = refilled if unobserved else None
    path = ridge_path(moments, penalties, kernels=design.kernels, refill=refill)
    for penalty, maps in zip(penalties, path, strict=True):
        yield raw(maps), penalty


def seasonal_map(look_back: int, horizon: int, period: int) -> np.ndarray:
    """Make the map that repeats the last ``period`` rows."""
    if period > look_back:
        raise ValueError(f"look_back must be at least the period of {period} rows, got {look_back}")
    maps = np.zeros((look_back, horizon))
    maps[look_back - period + np.arange(horizon) % period, np.arange(horizon)] = 1
    return maps


# Sums over windows without the targets that were not observed.

_TARGETS_PER_CHUNK = 4096
_COMPARED_PER_INTERVAL_WINDOW = 4  # windows that maps are compared on, for each that intervals come from


class Stretch(NamedTuple):
    """Stretch of consecutive rows of some series ``(rows, series)``: the filled values, and where they were missing."""

    filled: np.ndarray
    missing: np.ndarray


class Unobserved:
    """The missing targets of all windows of some stretches.

    A missing row r is target h of the window whose inputs are the rows ``r - h - look_back`` to ``r - h - 1``, if the
    stretch has that window. All these inputs are among the ``look_back + horizon - 1`` rows before r, so the forecasts
    of r from every window are one product with the map, its columns shifted: ``f(r, h) = sum_q x(r - Q + q) S(q, h)``,
    ``S(q, h) = B(q - horizon + 1 + h, h)`` with Q rows before r. With M missing targets a product costs O(M (look_back
    + horizon) horizon), and memory is that of the series.
    """

    def __init__(self, stretches: Sequence[Stretch], look_back: int, horizon: int):
        self.horizon, self._width = horizon, look_back + horizon - 1
        positions, values, weights, count = [], [], [], 0
        for filled, missing in stretches:
            windows = window_count(len(filled), look_back, horizon)
            series = np.flatnonzero(missing[look_back:].any(0))
            size = len(filled) + horizon - 1  # the series with zeros before it, for windows that would begin earlier
            rows, columns = np.nonzero(missing[look_back:, series])
            positions.append(count + columns * size + self._width + rows)
            values.append(np.pad(filled[:, series], ((horizon - 1, 0), (0, 0))).T.ravel())
            # Windows, marked by 1 beside their first target.
            has_window = np.ones((windows, len(series)))
            weights.append(np.pad(has_window, ((self._width, horizon - 1), (0, 0))).T.ravel())
            count += size * len(series)
        self._positions = np.concatenate(positions).astype(int)
        self._values, self._weights = np.concatenate(values), np.concatenate(weights)

    def __bool__(self) -> bool:
        return len(self._positions) > 0

    def cross(self, maps: np.ndarray) -> np.ndarray:
        """Sum ``u (f - y)`` over the filled targets y, their windows' inputs u and forecasts f: added to
        `Moments.cross`, it replaces targets by the maps' forecasts. Shape: that of maps, ``(look_back, horizon)``."""
        shifted = np.zeros((self._width, self.horizon))
        for inputs, weights, errors in self._errors(maps):
            shifted += inputs.T @ (weights * errors)
        cross = np.empty_like(maps)
        for h, rows in self._rows(len(maps)):
            cross[:, h] = shifted[rows, h]
        return cross

    def _errors(self, maps: np.ndarray) -> Iterator[tuple[np.ndarray, np.ndarray, np.ndarray]]:
        """Yield inputs ``(targets, Q)``, weights and errors ``(targets, horizon)`` of a map, some thousand targets at a
        time."""
        if not self:
            return
        shifted = np.zeros((self._width, self.horizon))
        for h, rows in self._rows(len(maps)):
            shifted[rows, h] = maps[:, h]
        before = sliding_window_view(self._values, self._width)
        weights = sliding_window_view(self._weights, self.horizon)
        for start in range(0, len(self._positions), _TARGETS_PER_CHUNK):
            positions = self._positions[start : start + _TARGETS_PER_CHUNK]
            inputs = before[positions - self._width]
            errors = inputs @ shifted - self._values[positions][:, None]
            yield inputs, weights[positions - self.horizon + 1][:, ::-1], errors

    def _rows(self, look_back: int) -> Iterator[tuple[int, slice]]:
        """Yield for each column h of a map with this look-back the rows of S, which end where those of the longest
        look-back do."""
        for h in range(self.horizon):
            yield h, slice(self._width - h - look_back, self._width - h)


class HeldOut(NamedTuple):
    """The held-out windows on which maps are compared: stretches of rows, and the longest look-back of a map."""

    stretches: Sequence[Stretch]
    look_back: int

    def products(self, maps: Sequence[np.ndarray]) -> tuple[np.ndarray, float]:
        """Sum the products of the errors of several maps ``(maps, maps)``, and count the observed targets, on at most
        2,000 windows of each stretch at even distances (fewer of hundreds of series).

        Shapes: a map ``(look_back, horizon)``.
        """
        products, count = np.zeros((len(maps), len(maps))), 0.0
        for stretch in self.stretches:
            every = [self._errors(stretch, each) for each in maps]
            for errors in zip(*every, strict=True):
                products += np.array([[np.nansum(one * other) for _, other in errors] for _, one in errors])
                count += np.count_nonzero(~np.isnan(errors[0][1]))
        return products, float(count)

    def _errors(self, stretch: Stretch, maps: np.ndarray) -> Iterator[tuple[int, np.ndarray]]:
        look_back, horizon = maps.shape
        rows = slice(self.look_back - look_back, None)
        filled, targets = stretch.filled[rows], np.where(stretch.missing, np.nan, stretch.filled)[rows]
        max_count = _COMPARED_PER_INTERVAL_WINDOW * max_windows(horizon, filled.shape[1])
        starts = spaced_windows(len(filled), look_back, horizon, max_count)
        return forecast_errors([maps], filled, targets, starts)


# Which series share a map.


class Rows(NamedTuple):
    """A table of series ``(rows, series)`` with missing values filled in, and where these were missing."""

    filled: np.ndarray
    missing: np.ndarray

    def fit(
        self,
        design: Design,
        series: Sequence[int],
        blocks: Sequence[tuple[int, int]],
        like: Fit | None = None,
        near: Fit | None = None,
    ) -> Fit:
        """Fit maps for some series (`fit_maps`), with a fold for each block of held-out rows (its begin and end), from
        all rows before and after it. All windows with targets in the block are held out, so that forecasters of any
        look-back are compared on the same targets."""
        return fit_maps(design, [self._fold(design, series, *block) for block in blocks], like, near)

    def _fold(self, design: Design, series: Sequence[int], begin: int, end: int) -> Fold:
        x, gaps = self.filled[:, series], self.missing[:, series]
        if design.windowless:  # gaps do not matter
            train = [Stretch(x[:begin], gaps[:begin])]
        else:
            train = usable_rows(x, gaps, design.width, design.look_back, held_out=(begin, end))
        if begin == end:
            return Fold(train, [])
        upto = slice(end)
        start = max(0, begin - design.look_back)
        return Fold(train, held_out_stretches(x[upto], gaps[upto], start, design.look_back, design.horizon))


class Groups(NamedTuple):
    """Grouping of the series: whether all share a map; the fits, of the shared map or of each series; and the shared
    fit that separate ones are drawn to, if they are."""

    shared: bool
    fits: list[Fit]
    near: Fit | None = None

    @property
    def error(self) -> float:
        """The mean squared error on all observed held-out targets."""
        return sum(fit.squares for fit in self.fits) / sum(fit.count for fit in self.fits)

    def refit(self, design: Design, rows: Rows) -> Groups:
        """Refit to all rows, keeping the chosen penalties and weights."""
        count, end = rows.filled.shape[1], len(rows.filled)
        near = None if self.near is None else rows.fit(design, range(count), [(end, end)], like=self.near)
        pairs = zip(_series(count, self.shared), self.fits, strict=True)
        fits = [rows.fit(design, series, [(end, end)], like=fit, near=near) for series, fit in pairs]
        return Groups(self.shared, fits, near)


def fit_groups(design: Design, rows: Rows, cut: int, shared: bool | None, name: Callable[[np.ndarray], str]) -> Groups:
    """Fit maps to the rows before ``cut``, with choices made on the rows after it and on ``design.folds - 1`` blocks of
    as many rows before it.

    ``shared=None`` draws the map of each series to the shared one, by a penalty on their difference that is chosen on
    its held-out rows; with infinite ones only, it is the shared map. Where maps of a kind cannot be drawn to others, it
    takes the shared map, or separate ones if they have the lower error there.

    name: a message's name of the first series that is flagged.
    """
    count, n_held_out = rows.filled.shape[1], len(rows.filled) - cut
    options = [shared] if shared is not None else [True, False]
    if count == 1:
        options = [True]
    elif len(options) == 2 and not n_held_out:
        raise ValueError("shared=None chooses on held-out rows; give shared, or validation above 0")
    unknown = np.atleast_1d(rows.missing[cut:].all(0)) if n_held_out else np.zeros(1, dtype=bool)
    if unknown.all() or (unknown.any() and options == [False]):
        raise ValueError(
            f"the last {n_held_out} rows are held out, and {name(unknown)} has no observed value there; give "
            "shared=True, other held-out rows by validation, or data that end with observed values"
        )
    if unknown.any():  # no error is known for a separate map of such a series
        options = [True]
    penalised = len(design.penalties) > 1 and design.spec["name"] in CLOSED_FORM
    blocks = held_out_blocks(design, cut, len(rows.filled))
    candidates: list[Groups] = []
    for option in options:
        near = candidates[0].fits[0] if penalised and candidates else None
        try:
            fits = [rows.fit(design, series, blocks, near=near) for series in _series(count, option)]
        except ValueError:  # one of the series has too few rows for a separate map
            if candidates:
                break
            raise
        if near is None or any(min(fit.penalties) < math.inf for fit in fits):
            candidates.append(Groups(option, weighted(fits) if n_held_out else fits, near))
    return min(candidates, key=lambda each: each.error) if len(candidates) > 1 else candidates[0]


def held_out_blocks(design: Design, cut: int, end: int) -> list[tuple[int, int]]:
    """Compute the begin and end of each block of held-out rows, the last one first: the rows after ``cut``, and blocks
    of as many rows before it, ``design.folds`` in all, or as many as have a window and leave one in the rows before or
    after them."""
    size = end - cut
    blocks = [(cut, end)]
    for _ in range(design.folds - 1 if size else 0):
        begin, stop = blocks[-1][0] - size, blocks[-1][0]
        windows = stop - max(begin, design.look_back) >= design.horizon
        if not windows or max(begin, end - stop) < design.width:
            break
        blocks.append((max(0, begin), stop))
    return blocks


def _series(count: int, shared: bool) -> list[Sequence[int]]:
    return [range(count)] if shared else [[each] for each in range(count)]
