"""Compute second moments of all windows of a series, without creating the windows."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

LEVELS = ("mean", "last", "none")
_SERIES_PER_FFT_BATCH = 256
_PRODUCT_ROWS_PER_BATCH = 256


@dataclass(frozen=True)
class Moments:
    """The second moments of windows of ``look_back`` inputs u and the ``horizon`` targets y that follow them, as sums
    over the windows.

    Shapes: inputs ``sum u u^T`` (look_back, look_back); cross ``sum u y^T`` (look_back, horizon). count is that of the
    windows. Inputs are in temporal order.
    """

    inputs: np.ndarray
    cross: np.ndarray
    count: float

    def without_level(self, level: str) -> Moments:
        """Compute the moments of windows after subtracting the level ``r^T u`` of their inputs.

        Formula: with ``g = G r``, ``s = r^T G r`` and ones 1: ``G - 1 g^T - g 1^T + s`` and ``C - 1 r^T C - g 1^T +
        s``. Removing a level is linear, so it acts on the moments and needs no windows.
        """
        if level == "none":
            return self
        r = level_weights(level, len(self.inputs))
        g, c = self.inputs @ r, r @ self.cross
        s = r @ g
        return Moments(self.inputs - g - g[:, None] + s, self.cross - c - g[:, None] + s, self.count)


def level_weights(level: str, look_back: int) -> np.ndarray:
    """Make the weights r of a window's level ``r^T u``: its mean, its last value, or nothing."""
    weights = np.zeros(look_back)
    if level == "mean":
        weights[:] = 1 / look_back
    elif level == "last":
        weights[-1] = 1
    return weights


def window_moments(x: np.ndarray | Sequence[np.ndarray], look_back: int, horizon: int) -> Moments:
    """Compute the moments of all windows of some series ``(rows, series)``, or of several such together.

    Formula: windows start at t = 0..m-1, with ``m = rows - look_back - horizon + 1``. Entry (i, j) is ``a(i, j) = sum_t
    x(t + i) x(t + j)``; its neighbour on the diagonal is ``a(i + 1, j + 1) = a(i, j) + x(m + i) x(m + j) - x(i) x(j)``,
    and the first row is correlations, by FFT. The inputs are symmetric, so only j >= i is computed.

    Shapes: finite values, with any numbers of rows and series. It costs O(series * (rows log rows + look_back
    (look_back + horizon))) for any number of windows. ValueError if there is no window.

    Source: the covariance method of linear prediction (Makhoul 1975).
    """
    from scipy.fft import irfft, next_fast_len, rfft  # not of every install that reads tables

    arrays = [np.asarray(array, dtype=np.float64) for array in ([x] if isinstance(x, np.ndarray) else x)]
    width, count, first = look_back + horizon, 0, np.zeros(look_back + horizon)
    heads, tails = [], []
    for array in arrays:
        m = window_count(len(array), look_back, horizon)
        n_fft = next_fast_len(len(array) + width, real=True)
        for start in range(0, array.shape[1], _SERIES_PER_FFT_BATCH):
            batch = array[:, start : start + _SERIES_PER_FFT_BATCH]
            spectrum = (rfft(batch[:m], n_fft, axis=0).conj() * rfft(batch, n_fft, axis=0)).sum(1)
            first += irfft(spectrum, n_fft)[:width]
        heads.append(array[: width - 1])
        tails.append(array[m : m + width - 1])
        count += m * array.shape[1]
    head, tail = (np.concatenate(rows, axis=1) for rows in (heads, tails))
    a = np.empty((look_back, width))
    a[0] = first
    for begin in range(1, look_back, _PRODUCT_ROWS_PER_BATCH):  # above the diagonal, some rows at a time
        rows, columns = slice(begin - 1, min(begin + _PRODUCT_ROWS_PER_BATCH, look_back) - 1), slice(begin - 1, None)
        a[begin : begin + _PRODUCT_ROWS_PER_BATCH, begin:] = tail[rows] @ tail[columns].T - head[rows] @ head[columns].T
    for i in range(1, look_back):
        a[i, i:] += a[i - 1, i - 1 : -1]
        a[i, :i] = a[:i, i]
    return Moments(a[:, :look_back], a[:, look_back:], count)


def window_count(rows: int, look_back: int, horizon: int) -> int:
    """Count the windows in this many rows, with a stride of one. ValueError if there is none."""
    count = rows - look_back - horizon + 1
    if count < 1:
        raise ValueError(
            f"look_back + horizon = {look_back} + {horizon} rows must fit into the data, which has {rows} rows "
            "(without those that are held out to choose a penalty); give a smaller look_back"
        )
    return count
