"""Second moments of all windows of a series, without creating the windows."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.lib.stride_tricks import sliding_window_view
from scipy.fft import irfft, next_fast_len, rfft

LEVELS = ("mean", "last", "none")
_CHUNK = 4096  # windows to create at a time where they are needed
_SERIES = 256  # to transform at a time


@dataclass(frozen=True)
class Moments:
    """Sums over windows of ``look_back`` inputs u and the ``horizon`` targets y that follow them.

    Shapes: inputs ``sum u u^T`` (look_back, look_back); cross ``sum u y^T`` (look_back, horizon); targets ``sum y^2``
    (horizon,). count is the (weighted) number of windows. Inputs are in temporal order.
    """

    inputs: np.ndarray
    cross: np.ndarray
    targets: np.ndarray
    count: float

    def __add__(self, other: Moments) -> Moments:
        return Moments(
            self.inputs + other.inputs,
            self.cross + other.cross,
            self.targets + other.targets,
            self.count + other.count,
        )

    def latest(self, look_back: int) -> Moments:
        """The moments for a shorter look-back: of the last ``look_back`` inputs."""
        return Moments(self.inputs[-look_back:, -look_back:], self.cross[-look_back:], self.targets, self.count)

    def without_level(self, level: str) -> Moments:
        """The moments of windows after subtracting the level ``r^T u`` of their inputs.

        Formula: with ``g = G r``, ``s = r^T G r`` and ones 1: ``G - 1 g^T - g 1^T + s``, ``C - 1 r^T C - g 1^T + s``
        and ``y^2 - 2 r^T C + s``. Removing a level is linear, so it acts on the moments and needs no windows.
        """
        if level == "none":
            return self
        r = level_weights(level, len(self.inputs))
        g, c = self.inputs @ r, r @ self.cross
        s = r @ g
        return Moments(
            self.inputs - g - g[:, None] + s, self.cross - c - g[:, None] + s, self.targets - 2 * c + s, self.count
        )

    def error(self, maps: np.ndarray) -> np.ndarray:
        """Mean squared error ``(horizon,)`` of forecasts ``maps^T u``, for maps ``(look_back, horizon)``."""
        products = ((self.inputs @ maps - 2 * self.cross) * maps).sum(0)
        return (self.targets + products) / self.count


def level_weights(level: str, look_back: int) -> np.ndarray:
    """The weights r of a window's level ``r^T u``: its mean, its last value, or nothing."""
    weights = np.zeros(look_back)
    if level == "mean":
        weights[:] = 1 / look_back
    elif level == "last":
        weights[-1] = 1
    return weights


def window_moments(x: np.ndarray | Sequence[np.ndarray], look_back: int, horizon: int) -> Moments:
    """Moments of all windows of some series together.

    Formula: windows start at t = 0..m-1, with ``m = rows - look_back - horizon + 1``. Entry (i, j) is ``a(i, j) = sum_t
    x(t + i) x(t + j)``; its neighbour on the diagonal is ``a(i + 1, j + 1) = a(i, j) + x(m + i) x(m + j) - x(i) x(j)``,
    and the first row is a correlation, by FFT.

    Shapes: x ``(rows, series)`` of finite values, float64, or several such with different numbers of rows and series.
    Costs O(series * (rows log rows + look_back * (look_back + horizon))) for any number of windows. ValueError if there
    is no window.

    Source: the covariance method of linear prediction (Makhoul 1975).
    """
    parts = [np.ascontiguousarray(part, dtype=np.float64) for part in ([x] if isinstance(x, np.ndarray) else x)]
    width, count = look_back + horizon, 0
    first, squares, heads, tails = np.zeros(width), np.zeros(horizon), [], []
    for part in parts:
        m = window_count(len(part), look_back, horizon)
        n_fft = next_fast_len(len(part) + width, real=True)
        for start in range(0, part.shape[1], _SERIES):
            own = part[:, start : start + _SERIES]
            spectrum = (rfft(own[:m], n_fft, axis=0).conj() * rfft(own, n_fft, axis=0)).sum(1)
            first += irfft(spectrum, n_fft)[:width]
        sums = np.concatenate([np.zeros(1), np.einsum("ts,ts->t", part, part).cumsum()])
        squares += sums[look_back + m :][:horizon] - sums[look_back : look_back + horizon]
        heads.append(part[: width - 1])
        tails.append(part[m : m + width - 1])
        count += m * part.shape[1]
    head, tail = (np.concatenate(rows, axis=1) for rows in (heads, tails))
    a = np.empty((look_back, width))
    a[0] = first
    a[1:, 1:] = tail[: look_back - 1] @ tail.T - head[: look_back - 1] @ head.T
    for i in range(1, look_back):
        a[i, i:] += a[i - 1, i - 1 : -1]
    inputs = np.triu(a[:, :look_back])
    return Moments(inputs + np.triu(inputs, 1).T, a[:, look_back:], squares, count)


def normalized_moments(x: np.ndarray, look_back: int, horizon: int, level: str) -> Moments:
    """Moments of windows after removing the level and dividing by the deviation of their inputs.

    The deviation is ``sqrt(mean((u - level)^2) + 1e-5)``, as in reversible instance normalisation (Kim et al. 2022). A
    linear map without a constant commutes with a scale, so dividing by the deviation and multiplying the forecast by it
    leaves a given map unchanged: normalisation only changes how much each window counts in the fit. Here windows are
    created, some thousands at a time: O(windows * look_back * (look_back + horizon)).
    """
    width = look_back + horizon
    total = np.zeros((width, width))
    count = 0.0
    for chunk in _levelled(x, look_back, horizon, level):
        chunk *= np.sqrt(_precision(chunk, look_back))[:, None]
        total += chunk.T @ chunk
        count += len(chunk)
    inputs, outputs = slice(look_back), slice(look_back, None)
    return Moments(total[inputs, inputs], total[inputs, outputs], np.diag(total)[outputs], count)


def normalized_weights(x: np.ndarray, look_back: int, horizon: int, level: str) -> np.ndarray:
    """The weight of each window in `normalized_moments`: one over its squared deviation, ``(windows, series)``."""
    found = [_precision(chunk, look_back) for chunk in _levelled(x, look_back, horizon, level)]
    return np.concatenate(found).reshape(x.shape[1], -1).T


def _levelled(x: np.ndarray, look_back: int, horizon: int, level: str) -> Iterator[np.ndarray]:
    """Windows ``(windows, look_back + horizon)`` without their level, series by series, some thousands at a time."""
    window_count(len(x), look_back, horizon)
    weights = level_weights(level, look_back)
    for series in np.ascontiguousarray(x, dtype=np.float64).T:
        windows = sliding_window_view(series, look_back + horizon)
        for start in range(0, len(windows), _CHUNK):
            chunk = windows[start : start + _CHUNK]
            yield chunk - chunk[:, :look_back] @ weights[:, None]


def _precision(windows: np.ndarray, look_back: int) -> np.ndarray:
    return 1 / ((windows[:, :look_back] ** 2).mean(1) + 1e-5)


def window_count(rows: int, look_back: int, horizon: int) -> int:
    """Number of windows in this many rows, with a stride of one. ValueError if none."""
    count = rows - look_back - horizon + 1
    if count < 1:
        raise ValueError(
            f"look_back + horizon = {look_back} + {horizon} rows must fit into the data, which has {rows} rows "
            "(without those that are held out to choose a penalty); give a smaller look_back"
        )
    return count


def total(moments: Iterable[Moments]) -> Moments:
    """The sum of at least one set of moments."""
    first, *rest = moments
    for each in rest:
        first = first + each
    return first
