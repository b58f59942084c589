"""Choose which series share a map."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import NamedTuple

import numpy as np

from lagwise.forecasting.design import CLOSED_FORM, Design
from lagwise.forecasting.fitting import Fit, Fold, fit_maps, held_out_stretches, usable_rows, weighted
from lagwise.forecasting.unobserved import Stretch


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
