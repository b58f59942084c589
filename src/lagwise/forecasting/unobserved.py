"""Sums over the windows of series with filled missing values, without the targets that were not observed."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import NamedTuple

import numpy as np
from numpy.lib.stride_tricks import sliding_window_view

from lagwise.forecasting.errors import forecast_errors
from lagwise.forecasting.moments import Moments, window_count, window_moments

_CHUNK = 4096  # missing targets at a time
_ROUNDING = 1e-9  # of a sum of squares, in units of the terms whose difference it is: 1e6 times that of float64


class Stretch(NamedTuple):
    """Consecutive rows of some series ``(rows, series)``: the filled values, and where they were missing."""

    filled: np.ndarray
    missing: np.ndarray


class Unobserved:
    """The missing targets of all windows of some stretches.

    A missing row r is target h of the window whose inputs are the rows ``r - h - look_back`` to ``r - h - 1``, if the
    stretch has that window. All these inputs are among the ``look_back + horizon - 1`` rows before r, so the forecasts
    of r from every window are one product with the map, its columns shifted: ``f(r, h) = sum_q x(r - Q + q) S(q, h)``,
    ``S(q, h) = B(q - horizon + 1 + h, h)`` with Q rows before r. With M missing targets a product costs O(M (look_back
    + horizon) horizon), and memory is that of the series.

    weights: for each stretch ``(windows, series)``, the weight of each window; 1 by default.
    """

    def __init__(
        self, stretches: Sequence[Stretch], look_back: int, horizon: int, weights: Sequence[np.ndarray] | None = None
    ):
        self.horizon, self._width = horizon, look_back + horizon - 1
        places, values, used, count = [], [], [], 0
        for i, (filled, missing) in enumerate(stretches):
            windows = window_count(len(filled), look_back, horizon)
            series = np.flatnonzero(missing[look_back:].any(0))
            size = len(filled) + horizon - 1  # of a series with zeros before it, for windows that would begin earlier
            rows, columns = np.nonzero(missing[look_back:, series])
            places.append(count + columns * size + self._width + rows)
            values.append(np.pad(filled[:, series], ((horizon - 1, 0), (0, 0))).T.ravel())
            own = np.ones((windows, len(series))) if weights is None else weights[i][:, series]
            # The weight of a window stands beside its first target.
            used.append(np.pad(own, ((self._width, horizon - 1), (0, 0))).T.ravel())
            count += size * len(series)
        self._places = np.concatenate(places).astype(int)
        self._values, self._weights = np.concatenate(values), np.concatenate(used)

    def __bool__(self) -> bool:
        return len(self._places) > 0

    def squares(self, maps: np.ndarray) -> tuple[float, float]:
        """The sum of the squared errors of the filled targets, and their number (weight), for maps ``(look_back,
        horizon)`` or the end of such maps."""
        found = count = 0.0
        for _, weights, errors in self._errors(maps):
            found += float((weights * errors**2).sum())
            count += float(weights.sum())
        return found, count

    def cross(self, maps: np.ndarray) -> np.ndarray:
        """``sum u (f - y)`` over the filled targets y, their windows' inputs u and forecasts f: added to
        `Moments.cross`, it replaces targets by the maps' forecasts. Shape: that of maps, ``(look_back, horizon)``."""
        shifted = np.zeros((self._width, self.horizon))
        for before, weights, errors in self._errors(maps):
            shifted += before.T @ (weights * errors)
        made = np.empty_like(maps)
        for h, rows in self._rows(len(maps)):
            made[:, h] = shifted[rows, h]
        return made

    def _errors(self, maps: np.ndarray) -> Iterator[tuple[np.ndarray, np.ndarray, np.ndarray]]:
        """Inputs ``(targets, Q)``, weights and errors ``(targets, horizon)``, some thousand targets at a time."""
        shifted = np.zeros((self._width, self.horizon))
        for h, rows in self._rows(len(maps)):
            shifted[rows, h] = maps[:, h]
        if not self:
            return
        before = sliding_window_view(self._values, self._width)
        weights = sliding_window_view(self._weights, self.horizon)
        for start in range(0, len(self._places), _CHUNK):
            places = self._places[start : start + _CHUNK]
            inputs = before[places - self._width]
            errors = inputs @ shifted - self._values[places, None]
            yield inputs, weights[places - self.horizon + 1][:, ::-1], errors

    def _rows(self, look_back: int) -> Iterator[tuple[int, slice]]:
        """The rows of S for column h of a map with this look-back, which end where those of the longest do."""
        for h in range(self.horizon):
            yield h, slice(self._width - h - look_back, self._width - h)


class HeldOut(NamedTuple):
    """Held-out windows, on which maps are compared."""

    moments: Moments
    unobserved: Unobserved
    stretches: Sequence[Stretch]

    def squares(self, maps: np.ndarray) -> tuple[float, float]:
        """The sum of squared errors on the observed targets, and their number, of maps ``(look_back, horizon)`` or maps
        with a shorter look-back.

        It is a difference of the moments. Where rounding would exceed a millionth of it, the errors are computed one by
        one: of series that are forecast nearly exactly, such as those that end with constant values.
        """
        horizon = maps.shape[1]
        moments = self.moments.latest(len(maps))
        found, count = self.unobserved.squares(maps)
        count = moments.count * horizon - count
        squares = float(moments.error(maps).sum()) * moments.count - found
        size = float(moments.targets.sum()) + float(np.trace(moments.inputs)) + found
        if squares > _ROUNDING * size:
            return squares, count
        before = len(self.moments.inputs) - len(maps)
        squares = 0.0
        for filled, missing in self.stretches:
            filled, targets = filled[before:], np.where(missing, np.nan, filled)[before:]
            windows = np.arange(window_count(len(filled), len(maps), horizon))
            squares += sum(
                float(np.nansum(errors**2)) for _, errors in forecast_errors([maps], filled, targets, windows)
            )
        return squares, count

    def error(self, maps: np.ndarray) -> float:
        """The mean squared error on the observed targets."""
        squares, count = self.squares(maps)
        return squares / count


def held_out_windows(stretches: Sequence[Stretch], look_back: int, horizon: int) -> HeldOut:
    """All windows of some stretches."""
    moments = window_moments([each.filled for each in stretches], look_back, horizon)
    return HeldOut(moments, Unobserved(stretches, look_back, horizon), stretches)
