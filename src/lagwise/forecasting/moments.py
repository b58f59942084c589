"""Linear maps in closed form: second moments of all windows of a series, without creating these, and their maps."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.lib.stride_tricks import sliding_window_view

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


# Maps from moments.

#: Penalties to try, relative to the variance of a standardised series.
PENALTIES = tuple(float(p) for p in np.logspace(-6, 1, 15))
_MAX_REFILL_ROUNDS, _CONVERGED_CHANGE = 30, 1e-6  # relative change of the map at which refilling targets stops

#: The cross moments of inputs and targets after a map has filled in missing targets.
Refill = Callable[[np.ndarray], np.ndarray]


def kernel_equations(moments: Moments, kernels: int) -> tuple[np.ndarray, np.ndarray]:
    """Set up the normal equations ``N k = r`` of Toeplitz maps, each entry a mean over windows and horizons.

    Formula: the horizons are divided into ``kernels`` groups of g consecutive ones. A group has one kernel k of
    ``look_back + g - 1`` values and forecasts ``y(t + h) = sum_i k(i + g - 1 - h) u(i)``, h = 0..g-1 in the group. So N
    is the sum over h of the moments of the inputs, shifted by g - 1 - h along the diagonal, the same for every group.
    ``kernels = horizon`` is the general linear map, ``kernels = 1`` one Toeplitz kernel for all horizons.

    Shapes: N ``(n, n)`` and r ``(n, kernels)`` with n = look_back + g - 1. Costs O(n^2 + look_back * horizon), because
    sums of g entries along diagonals are differences of cumulative sums. ValueError unless kernels divides the horizon.
    """
    look_back, horizon = moments.cross.shape
    if horizon % kernels:
        raise ValueError(f"kernels must divide the horizon of {horizon}, got {kernels}")
    width = horizon // kernels
    right = kernel_right(moments.cross, kernels) / (moments.count * width)
    if width == 1:
        return moments.inputs / moments.count, right
    n = look_back + width - 1
    matrix = np.zeros((n, n))
    matrix[:look_back, :look_back] = moments.inputs
    for i in range(1, n):
        matrix[i, 1:] += matrix[i - 1, :-1]
    matrix[width:, width:] -= matrix[:-width, :-width].copy()
    return matrix / (moments.count * width), right


def kernel_right(cross: np.ndarray, kernels: int) -> np.ndarray:
    """Compute the right side of `kernel_equations` as a sum over windows, from their cross moments ``(look_back,
    horizon)``."""
    look_back, horizon = cross.shape
    width = horizon // kernels
    if width == 1:
        return cross
    right = np.zeros((look_back + width - 1, kernels))
    for h in range(width):
        right[width - 1 - h :][:look_back] += cross[:, h::width]
    return right


def expand(kernels: np.ndarray, look_back: int) -> np.ndarray:
    """Expand kernels ``(look_back + g - 1, groups)`` of `kernel_equations` to the map ``(look_back, groups * g)``."""
    windows = sliding_window_view(kernels, look_back, axis=0)[::-1]  # (g, groups, look_back)
    return windows.transpose(2, 1, 0).reshape(look_back, -1)


def ridge_path(
    moments: Moments,
    penalties: Sequence[float],
    *,
    kernels: int,
    refill: Refill | None = None,
) -> Iterator[np.ndarray]:
    """Compute the map ``(look_back, horizon)`` for each penalty p, all from one eigendecomposition.

    Formula: ``k = (N + p I)^-1 r`` with N and r of `kernel_equations`.

    Args:
        moments: Of the training windows.
        penalties: The values of p.
        kernels: Number of groups of horizons.
        refill: Replaces missing targets by what the map forecasts, after which the map is solved for again, until it
            converges. These targets then have no error, so the map is that of least squares on the observed targets
            alone. Each round lowers the penalised error, as in the EM algorithm (Dempster et al. 1977).

    Costs O(n^3) once, and O(n^2 * kernels) for each penalty (and round).
    """
    matrix, right = kernel_equations(moments, kernels)
    values, vectors = np.linalg.eigh(matrix)
    values, right = values.clip(min=0), vectors.T @ right
    scale = moments.count * (moments.cross.shape[1] // kernels)

    def solved(right: np.ndarray, penalty: float) -> np.ndarray:
        return expand(vectors @ (right / (values + max(penalty, 1e-12))[:, None]), len(moments.inputs))

    for penalty in penalties:
        maps = solved(right, penalty)
        for _ in range(_MAX_REFILL_ROUNDS):
            if refill is None:
                break
            before, right = maps, vectors.T @ kernel_right(refill(maps), kernels) / scale
            maps = solved(right, penalty)
            if np.linalg.norm(maps - before) <= _CONVERGED_CHANGE * np.linalg.norm(maps):
                break
        yield maps


def parameter_count(look_back: int, horizon: int, *, kernels: int) -> int:
    """Count the parameters of a map of `ridge_path`."""
    return kernels * (look_back + horizon // kernels - 1)
