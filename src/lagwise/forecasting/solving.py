"""Solve for linear forecasters in closed form, from the moments of windows."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

import numpy as np
from numpy.lib.stride_tricks import sliding_window_view

from lagwise.forecasting.moments import Moments

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
