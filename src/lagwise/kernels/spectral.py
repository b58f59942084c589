"""The filters of spectral state spaces (STU): fixed eigenvectors of a Hankel matrix, mixed by learned weights."""

from __future__ import annotations

import functools
import math

import numpy as np
import torch
from torch import Tensor, nn

from lagwise.kernels.base import LagKernel
from lagwise.tables import check_integer

_MAX_SPAN = 8192
_STEP = 0.125  # spacing of the sum that replaces the integral, and equals it to 1e-30
_MIN_SINGULAR_VALUE = 1e-12  # least singular value, relative to the largest


class SpectralKernel(LagKernel):
    """A learned mixture of fixed filters (Agarwal et al. 2023, "Spectral State Space Models").

    Formula: ``k(l) = sum_i (w_i + (-1)**l v_i) s_i**(1/4) phi_i(l)`` for 0 <= l < span, where phi_i and s_i are the
    eigenvectors and eigenvalues, largest first, of the Hankel matrix ``Z_ij = 2 / ((i + j)**3 - (i + j))``, i, j =
    1..span: every state space with real poles is close to their span. v is for poles below 0. A two-sided kernel has a
    second set for lags below 0.

    Options:
        filters: number of eigenvectors (the paper: 24).
        span: number of lags.
        alternating: whether there is a v.

    Every channel has its own weights. The published layer also mixes channels, which a model does with the linear
    layers around the mixer, and adds terms in the last inputs and outputs, which are not part of a kernel. ValueError
    for options out of range.
    """

    def __init__(
        self, channels: int, *, causal: bool = True, filters: int = 24, span: int = 1024, alternating: bool = True
    ):
        super().__init__(channels, causal)
        if not 1 <= check_integer("filters", filters) <= check_integer("span", span) <= _MAX_SPAN:
            raise ValueError(f"filters must be at most span, and span at most {_MAX_SPAN}, got {filters} and {span}")
        self.span, self.alternating = span, alternating
        # Not a buffer: models are loaded via the meta device, where its values would be lost.
        self._filters = hankel_filters(span, filters)
        self.weight = nn.Parameter(torch.empty(1 if causal else 2, channels, 1 + alternating, filters))
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Draw from a normal distribution whose variance is such that the squares of a channel's taps sum to about
        1."""
        energy = float((self._filters**2).sum()) * self.weight.shape[2] * self.weight.shape[0]
        nn.init.normal_(self.weight, std=energy**-0.5)

    @property
    def support(self) -> int:
        return self.span

    def taps(self, length: int) -> Tensor:
        n, dtype = min(length, self.span), self.precision(self.weight)
        filters = torch.from_numpy(self._filters[:, :n]).to(self.weight.device, dtype)
        if self.alternating:
            signs = 1 - 2 * (torch.arange(n, device=filters.device) % 2)
            filters = torch.cat([filters, filters * signs])
        with torch.autocast(filters.device.type, enabled=False):
            after, *before = self.weight.to(dtype).flatten(2) @ filters
        return torch.cat([*(side[:, :-1].flip(1) for side in before), after], 1)


@functools.lru_cache(maxsize=8)
def hankel_filters(span: int, filters: int) -> np.ndarray:
    """``s_i**(1/4) phi_i``, ``(filters, span)`` in float64, largest eigenvalues first; the first value of each is
    positive.

    Formula: ``Z_ij = integral over 0 < a < 1 of (1 - a)**2 a**(i + j - 2)``. As a sum over nodes, evenly spaced in
    ``log(a / (1 - a))``, it is ``G G'``, so that singular vectors of G are eigenvectors of Z, and its singular values
    the roots of the eigenvalues. Many of these are below the rounding of Z, where its own eigenvectors would be noise
    that differs between machines. ValueError for filters that are below the rounding of G.
    """
    position = np.arange(-40, 20 + math.log(span), _STEP)[:, None]
    log_node, log_rest = -np.log1p(np.exp(-position)), -np.log1p(np.exp(position))  # logarithms of a and 1 - a
    powers = np.arange(span)
    vectors, roots, _ = np.linalg.svd(np.exp(1.5 * log_rest + (0.5 + powers) * log_node).T, full_matrices=False)
    roots = roots * math.sqrt(_STEP)
    if (count := int((roots > _MIN_SINGULAR_VALUE * roots[0]).sum())) < filters:
        raise ValueError(f"a span of {span} has at most {count} filters that are not lost in rounding, got {filters}")
    taps = (roots[:filters] ** 0.5 * vectors[:, :filters]).T
    return np.ascontiguousarray(taps * np.where(taps[:, :1] < 0, -1, 1))
