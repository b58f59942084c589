"""Which series share a map."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import NamedTuple

import numpy as np

from lagwise.forecasting.design import CLOSED_FORM, Design
from lagwise.forecasting.fitting import Fit, fit_maps, held_out_stretches, usable_rows, weighted
from lagwise.forecasting.unobserved import Stretch


class Rows(NamedTuple):
    """Series ``(rows, series)`` with missing values filled in, where they were missing, and the columns beside them
    ``(rows, series, columns)`` with their kinds."""

    filled: np.ndarray
    missing: np.ndarray
    columns: np.ndarray | None = None
    kinds: Sequence[str] = ()

    def fit(
        self, design: Design, series: Sequence[int], cut: int, like: Fit | None = None, near: Fit | None = None
    ) -> Fit:
        """Maps for some series, from the rows before ``cut`` (`fit_maps`). All windows of the later rows are held out,
        so that forecasters of any look-back are compared on the same targets."""
        x, gaps, look_back = self.filled[:, series], self.missing[:, series], design.look_back
        own = None if self.columns is None else self.columns[:, series]
        if design.windowless:  # gaps do not matter
            train = [Stretch(x[:cut], gaps[:cut])]
        else:
            train = usable_rows(x[:cut], gaps[:cut], design.width, look_back, None if own is None else own[:cut])
        valid = held_out_stretches(x, gaps, cut - look_back, look_back, design.horizon, own) if cut < len(x) else []
        return fit_maps(design, train, valid, like, self.kinds, near)


class Groups(NamedTuple):
    """Whether all series share a map; the fits, of the shared map or of each series; and the shared one that separate
    ones are drawn to, if they are."""

    shared: bool
    fits: list[Fit]
    near: Fit | None = None

    @property
    def error(self) -> float:
        """The mean squared error on all observed held-out targets."""
        return sum(fit.squares for fit in self.fits) / sum(fit.count for fit in self.fits)

    def refit(self, design: Design, rows: Rows) -> Groups:
        """Those of all rows, with the choices and weights of these."""
        count, end = rows.filled.shape[1], len(rows.filled)
        near = None if self.near is None else rows.fit(design, range(count), end, like=self.near)
        pairs = zip(_series(count, self.shared), self.fits, strict=True)
        return Groups(self.shared, [rows.fit(design, series, end, like=fit, near=near) for series, fit in pairs], near)


def fit_groups(design: Design, rows: Rows, cut: int, shared: bool | None, name: Callable[[np.ndarray], str]) -> Groups:
    """Maps fitted to the rows before ``cut``.

    ``shared=None`` draws the map of each series to the shared one, by a penalty on their difference that is chosen on
    its held-out rows; with infinite ones only, it is the shared map. Where maps of a kind cannot be drawn to others, it
    takes the shared map, or separate ones if they have the lower error there.

    name: a message's name of the first series that is flagged.
    """
    count, held = rows.filled.shape[1], len(rows.filled) - cut
    options = [shared] if shared is not None else [True, False]
    if count == 1:
        options = [True]
    elif len(options) == 2 and not held:
        raise ValueError("shared=None chooses on held-out rows; give shared, or validation above 0")
    unknown = np.atleast_1d(rows.missing[cut:].all(0)) if held else np.zeros(1, dtype=bool)
    if unknown.all() or (unknown.any() and options == [False]):
        raise ValueError(
            f"the last {held} rows are held out, and {name(unknown)} has no observed value there; give "
            "shared=True, other held-out rows by validation, or data that end with observed values"
        )
    if unknown.any():  # no error is known for a separate map of such a series
        options = [True]
    drawn = len(design.penalties) > 1 and design.spec["name"] in CLOSED_FORM and design.rank is None and not rows.kinds
    found: list[Groups] = []
    for option in options:
        near = found[0].fits[0] if drawn and found else None
        try:
            fits = [rows.fit(design, series, cut, near=near) for series in _series(count, option)]
        except ValueError:  # one of the series has too few rows for a separate map
            if found:
                break
            raise
        if near is None or any(choice.penalty < math.inf for fit in fits for choice in fit.choices):
            found.append(Groups(option, weighted(fits) if held else fits, near))
    return min(found, key=lambda each: each.error) if len(found) > 1 else found[0]


def _series(count: int, shared: bool) -> list[Sequence[int]]:
    return [range(count)] if shared else [[each] for each in range(count)]
