"""Sum over the windows of series with filled missing values, without the targets that were not observed."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import NamedTuple

import numpy as np
from numpy.lib.stride_tricks import sliding_window_view

from lagwise.forecasting.errors import forecast_errors, max_windows, spaced_windows
from lagwise.forecasting.moments import window_count

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
