"""The theorems of SKI-TNN in numbers: bounds compared with measured values."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from lagwise.kernels import FrequencyKernel, KernelNetwork
from lagwise.ops.ski import inducing_grid, interpolation_matrix

DECAY_ACTIVATIONS = ("gelu", "silu", "relu")


@dataclass(frozen=True)
class SKIErrorBound:
    """Spectral norms for one rank: of the SKI error, its bound (SKI-TNN th. 1), the Nyström error in the bound, and the
    matrix itself."""

    rank: int
    error: float
    bound: float
    nystrom: float
    matrix: float


def smooth_kernel(lag: Tensor) -> Tensor:
    """A smooth, asymmetric two-sided kernel for `ski_error_bound`: a wave under a Gaussian of 40 tokens."""
    return torch.exp(-((lag / 40) ** 2)) * torch.cos(lag / 15 + 0.3)


def ski_error_bound(
    kernel: Callable[[Tensor], Tensor] = smooth_kernel, *, length: int = 256, rank: int = 32, degree: int = 1
) -> SKIErrorBound:
    """Compute both sides of SKI-TNN th. 1.

    Formula: ``|W A Wᵀ - T_opt| <= sqrt(n r) m L ((N + 1) sqrt(n) + min(s_1(F), s_1(B)) / s_r(A)) + |F A^-1 B - T_opt|``
    in the spectral norm, with T_opt the best matrix of rank r, L a bound on the derivative of order N + 1, s_i singular
    values, ``F_ij = k(i - p_j)``, ``B_ij = k(p_i - j)``, and m the largest ``prod |i - p| / (N + 1)!`` over the N + 1
    nodes around a token. (The paper's product runs over N nodes; its own example, linear with two nodes, has N + 1.)

    The bound is loose: it grows with 1 / s_r(A), and a smooth kernel has small singular values.

    Args:
        kernel: Of real lags in tokens, differentiable ``degree + 1`` times.
        length: Tokens n.
        rank: Nodes r.
        degree: N, of the interpolation.

    Raises:
        ValueError: If rank is over the length.
    """
    if rank > length:
        raise ValueError(f"rank must be at most the length {length}, got {rank}")
    grid = inducing_grid(length, rank, degree)
    tokens = torch.arange(length, dtype=torch.float64)
    nodes = grid.start + grid.spacing * torch.arange(rank, dtype=torch.float64)
    w = interpolation_matrix(grid)
    matrix = kernel(tokens[:, None] - tokens[None, :])
    a = kernel(nodes[:, None] - nodes[None, :])
    f, b = kernel(tokens[:, None] - nodes[None, :]), kernel(nodes[:, None] - tokens[None, :])
    u, s, vt = torch.linalg.svd(matrix)
    best = (u[:, :rank] * s[:rank]) @ vt[:rank]
    nystrom = _norm(f @ torch.linalg.solve(a, b) - best)
    used = [row.nonzero()[:, 0] for row in w]
    around = [nodes[int(i.min()) : int(i.min()) + degree + 1] for i in used]
    product = max(float((t - p).abs().prod()) for t, p in zip(tokens, around, strict=True) if len(p) == degree + 1)
    ratio = min(_norm(f), _norm(b)) / float(torch.linalg.svdvals(a)[-1])
    order = degree + 1
    each = product / math.factorial(order) * _derivative(kernel, length, order)
    bound = math.sqrt(length * rank) * each * (order * math.sqrt(length) + ratio) + nystrom
    return SKIErrorBound(rank, _norm(w @ a @ w.t() - best), bound, nystrom, float(s[0]))


@torch.no_grad()
def random_responses(activation: str, inputs: str, *, grid: int = 2048) -> tuple[np.ndarray, np.ndarray]:
    """Draw the frequency response and taps, each ``(8, grid + 1)``, of a kernel at its initialisation (SKI-TNN app. E.3
    and fig. 4, 5 and 6), in float64."""
    torch.manual_seed(0)
    kernel = FrequencyKernel(8, activation=activation, inputs=inputs, grid=grid).double()
    taps = kernel.taps(grid + 1)
    return torch.fft.rfft(taps, 2 * grid).real.numpy(), taps.numpy()


def decay_order(taps: np.ndarray, first: int = 8, last: int = 64) -> float:
    """Estimate how fast taps decay: p in ``max |k(l)| ~ l^-p`` between two lags, by least squares in the logarithms.

    SKI-TNN th. 2 and 3 state that the taps of GELU and SiLU decay faster than any p, SKI-TNN th. 4 for ReLU only that
    their squares can be summed.
    """
    lags = np.arange(first, last)
    size = np.abs(taps[:, first:last]).max(axis=0)
    # Zeros of the taps would bias the fit: use the envelope.
    envelope = np.maximum.accumulate(size[::-1])[::-1]
    return -float(np.polyfit(np.log(lags), np.log(np.maximum(envelope, 1e-300)), 1)[0])


@torch.no_grad()
def curved_share(*, normalize: bool, points: int = 4096) -> float:
    """Compute the share of an interval in which a random ReLU network of one number is not a straight line (SKI-TNN
    prop. 1).

    Computed from second differences on a fine grid: those of a piecewise linear function are nonzero only at its kinks,
    a vanishing share. The proposition holds without the norm. With it, it does not: a norm divides by the size of its
    input, which is never affine in the features (lemma 2 treats the scale as a constant).
    """
    torch.manual_seed(0)
    network = KernelNetwork(1, 8, hidden=32, layers=3, activation="relu", normalize=normalize).double()
    x = torch.linspace(-3, 3, points, dtype=torch.float64)[:, None]
    bend = network(x).diff(n=2, dim=0).abs()
    return float((bend > 1e-12 * network(x).abs().max()).double().mean())


def _norm(matrix: Tensor) -> float:
    return float(torch.linalg.matrix_norm(matrix, 2))


def _derivative(kernel: Callable[[Tensor], Tensor], length: int, order: int) -> float:
    """Compute the largest derivative of that order over the lags of the signal, by automatic differentiation."""
    lag = torch.linspace(1 - length, length - 1, 8 * length, dtype=torch.float64, requires_grad=True)
    value = kernel(lag)
    for _ in range(order):
        (value,) = torch.autograd.grad(value.sum(), lag, create_graph=True)
    return float(value.detach().abs().max())
