"""Fit linear maps to series: choose windows and the penalty."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import NamedTuple

import numpy as np

from lagwise.forecasting.design import Design
from lagwise.forecasting.gaps import stretches
from lagwise.forecasting.moments import level_weights, window_moments
from lagwise.forecasting.smoothing import fit_smoothing
from lagwise.forecasting.solving import Refill, ridge_path
from lagwise.forecasting.unobserved import HeldOut, Stretch, Unobserved

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
