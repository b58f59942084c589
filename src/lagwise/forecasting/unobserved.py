"""Sum over the windows of series with filled missing values, without the targets that were not observed."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import NamedTuple

import numpy as np
from numpy.lib.stride_tricks import sliding_window_view

from lagwise.forecasting.errors import forecast_errors, most_windows, some_windows
from lagwise.forecasting.moments import window_count

_TARGETS_PER_CHUNK = 4096
_COMPARED_PER_INTERVAL_WINDOW = 4  # windows that maps are compared on, for each that intervals come from


class Stretch(NamedTuple):
    """Stretch of consecutive rows of some series ``(rows, series)``: the filled values, where they were missing, and
    the columns beside them ``(rows, series, columns)``."""

    filled: np.ndarray
    missing: np.ndarray
    columns: np.ndarray | None = None


class Unobserved:
    """Missing targets of all windows of some stretches.

    A missing row r is target h of the window whose inputs are the rows ``r - h - look_back`` to ``r - h - 1``, if the
    stretch has that window. All these inputs are among the ``look_back + horizon - 1`` rows before r, so the forecasts
    of r from every window are one product with the map, its columns shifted: ``f(r, h) = sum_q x(r - Q + q) S(q, h)``,
    ``S(q, h) = B(q - horizon + 1 + h, h)`` with Q rows before r. With M missing targets a product costs O(M (look_back
    + horizon) horizon), and memory is that of the series.
    """

    def __init__(self, stretches: Sequence[Stretch], look_back: int, horizon: int):
        self.horizon, self._width = horizon, look_back + horizon - 1
        places, values, used, beside, count = [], [], [], [], 0
        for filled, missing, columns in stretches:
            windows = window_count(len(filled), look_back, horizon)
            series = np.flatnonzero(missing[look_back:].any(0))
            size = len(filled) + horizon - 1  # the series with zeros before it, for windows that would begin earlier
            rows, own = np.nonzero(missing[look_back:, series])
            places.append(count + own * size + self._width + rows)
            values.append(np.pad(filled[:, series], ((horizon - 1, 0), (0, 0))).T.ravel())
            # Windows, marked by 1 beside their first target.
            own = np.ones((windows, len(series)))
            used.append(np.pad(own, ((self._width, horizon - 1), (0, 0))).T.ravel())
            if columns is not None:
                padded = np.pad(columns[:, series], ((horizon - 1, 0), (0, 0), (0, 0)))
                beside.append(padded.transpose(1, 0, 2).reshape(-1, columns.shape[2]))
            count += size * len(series)
        self._places = np.concatenate(places).astype(int)
        self._values, self._weights = np.concatenate(values), np.concatenate(used)
        self._beside = np.concatenate(beside) if beside else None

    def __bool__(self) -> bool:
        return len(self._places) > 0

    def cross(self, maps: np.ndarray) -> np.ndarray:
        """Sum ``u (f - y)`` over the filled targets y, their windows' inputs u and forecasts f: added to
        `Moments.cross`, it replaces targets by the maps' forecasts. Shape: that of maps, ``(look_back, horizon)``."""
        return self.crosses(maps, None)[0][0]

    def crosses(self, maps: np.ndarray, effects: np.ndarray | None) -> tuple[np.ndarray, np.ndarray]:
        """`cross` of the inputs of the series and of each column ``(1 + columns, look_back, horizon)``, and of each
        column in the row of the target ``(columns,)``, for forecasts by maps and by effects of columns ``(columns,
        look_back + 1, horizon)``, whose last row is that of the target."""
        every = [maps] if effects is None else [maps, *effects[:, :-1]]
        now = np.zeros(0) if effects is None else effects[:, -1].mean(1)  # the same for every horizon
        shifted, targets = np.zeros((len(every) * self._width, self.horizon)), np.zeros(len(now))
        for places, inputs, weights, errors in self._errors(every, now):
            shifted += inputs.T @ (weights * errors)
            if self._beside is not None and len(now):
                targets += self._beside[places].T @ (weights * errors).sum(1)
        made = np.empty((len(every), *maps.shape))
        for h, rows in self._rows(len(maps)):
            made[:, :, h] = shifted.reshape(len(every), self._width, -1)[:, rows, h]
        return made, targets

    def _errors(
        self, maps: Sequence[np.ndarray], now: np.ndarray | None = None
    ) -> Iterator[tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]]:
        """Places, inputs ``(targets, channels Q)``, weights and errors ``(targets, horizon)``, some thousand targets at
        a time, of maps of the series and of columns, and weights of columns in the row of the target."""
        if not self:
            return
        stacked, shifted = np.stack(maps), np.zeros((len(maps), self._width, self.horizon))
        for h, rows in self._rows(stacked.shape[1]):
            shifted[:, rows, h] = stacked[:, :, h]
        shifted = shifted.reshape(-1, self.horizon)
        before = sliding_window_view(self._values, self._width)
        weights = sliding_window_view(self._weights, self.horizon)
        for start in range(0, len(self._places), _TARGETS_PER_CHUNK):
            places = self._places[start : start + _TARGETS_PER_CHUNK]
            inputs = before[places - self._width]
            known = self._values[places]
            if self._beside is not None and len(maps) > 1 and now is not None:
                beside = sliding_window_view(self._beside, self._width, axis=0)[places - self._width]
                inputs = np.concatenate([inputs, beside.reshape(len(places), -1)], axis=1)
                known = known - self._beside[places] @ now
            errors = inputs @ shifted - known[:, None]
            yield places, inputs, weights[places - self.horizon + 1][:, ::-1], errors

    def _rows(self, look_back: int) -> Iterator[tuple[int, slice]]:
        """Yield for each column h of a map with this look-back the rows of S, which end where those of the longest
        look-back do."""
        for h in range(self.horizon):
            yield h, slice(self._width - h - look_back, self._width - h)


class HeldOut(NamedTuple):
    """Held-out windows, on which maps are compared: stretches of rows, and the longest look-back of a map."""

    stretches: Sequence[Stretch]
    look_back: int

    def products(self, parts: Sequence[tuple[np.ndarray, np.ndarray | None]]) -> tuple[np.ndarray, float]:
        """Sum the products of the errors of several maps ``(maps, maps)``, and count the observed targets, on at most
        2,000 windows of each stretch at even distances (fewer of hundreds of series).

        parts: maps ``(look_back, horizon)``, and effects of columns (`forecast_errors`) or None.
        """
        found, count = np.zeros((len(parts), len(parts))), 0.0
        for stretch in self.stretches:
            every = [self._errors(stretch, *part) for part in parts]
            for errors in zip(*every, strict=True):
                found += np.array([[np.nansum(one * other) for _, other in errors] for _, one in errors])
                count += np.count_nonzero(~np.isnan(errors[0][1]))
        return found, float(count)

    def _errors(
        self, stretch: Stretch, maps: np.ndarray, effects: np.ndarray | None
    ) -> Iterator[tuple[int, np.ndarray]]:
        look_back, horizon = maps.shape
        rows = slice(self.look_back - look_back, None)
        filled, targets = stretch.filled[rows], np.where(stretch.missing, np.nan, stretch.filled)[rows]
        columns = None if effects is None or stretch.columns is None else stretch.columns[rows]
        most = _COMPARED_PER_INTERVAL_WINDOW * most_windows(horizon, filled.shape[1])
        chosen = some_windows(len(filled), look_back, horizon, most)
        return forecast_errors([maps], filled, targets, chosen, effects=[effects], columns=columns)
