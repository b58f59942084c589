"""The kernel of SKI-TNN: a piecewise linear function of warped time, and free taps near the diagonal."""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn

from lagwise.kernels.base import LagKernel, negligible
from lagwise.ops import truncation_length


class WarpedKernel(LagKernel):
    """Taps without a network: a smooth part with values at any lag, and a few free taps.

    Formula: ``k(l) = RPE(x(l)) + s_l``, with the inverse time warp ``x(l) = sign(l) decay**|l|`` (SKI-TNN §3.2.2), RPE
    piecewise linear on [-1, 1] with ``RPE(0) = 0``, so that k decays to 0, and ``s_l`` free for the lags of a filter of
    ``filter_size`` taps (T_sparse of SKI-TNN alg. 1), else 0. RPE's value at a knot x is x times a parameter, so that
    parameters of equal size give a decaying kernel.

    Every lag from 0 to infinity lies in (0, 1]: lengths not seen in training are interpolated, not extrapolated. x(0)
    is +1; the filter determines the kernel at lag 0 (the paper leaves sign(0) open).

    Options:
        points: intervals of RPE from 0 to 1, and as many from 0 to -1 if two-sided.
        decay: of the warp, per token, in (0, 1).
        filter_size: taps of the filter: lags 0, 1, ... if causal, else around 0 with one more before it than after when
            even; 0 for none.

    ValueError for options out of range.

    >>> WarpedKernel(4, points=16).taps(1000).shape
    torch.Size([4, 1000])
    """

    continuous = True

    def __init__(
        self, channels: int, *, causal: bool = True, points: int = 64, decay: float = 0.99, filter_size: int = 32
    ):
        super().__init__(channels, causal)
        if points < 1 or filter_size < 0 or not 0.0 < decay < 1.0:
            raise ValueError(
                f"points must be at least 1, filter_size at least 0 and decay inside (0, 1), "
                f"got {points}, {filter_size} and {decay}"
            )
        self.points = points
        self.decay = decay
        self.filter_size = filter_size
        self.values = nn.Parameter(torch.empty(channels, points if causal else 2 * points))
        self.filter = nn.Parameter(torch.empty(channels, filter_size)) if filter_size else None
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Initialise both parts with squares that sum to about one over all lags, so that mixing preserves the
        scale."""
        nn.init.normal_(self.values, std=math.sqrt(1 - self.decay**2))
        if self.filter is not None:
            nn.init.normal_(self.filter, std=self.filter_size**-0.5)

    @property
    def support(self) -> int | None:
        """The lag at which the warp falls below rounding, but not before the filter ends."""
        warp = truncation_length(self.decay, negligible(self.precision(self.values))) or 1
        return max(warp, self.filter_size if self.causal else self.filter_size // 2 + 1)

    def taps(self, length: int) -> Tensor:
        lags = self.lags(length, self.values.device)
        return self.with_local(self.smooth_at(lags), lags)

    def smooth_at(self, lags: Tensor) -> Tensor:
        """See `LagKernel.smooth_at`: the part without the filter."""
        dtype = self.precision(self.values)
        with torch.autocast(lags.device.type, enabled=False):
            lags = lags.to(dtype)
            warped = self.points * torch.exp(math.log(self.decay) * lags.abs())
            # Piecewise linear is linear in the values: hat functions of the lags times the values.
            knots = torch.arange(1, self.points + 1, dtype=dtype, device=lags.device)
            hats = (1 - (warped - knots[:, None]).abs()).clamp(min=0) * (knots[:, None] / self.points)
            if not self.causal:
                hats = torch.cat([hats * (lags >= 0), hats * (lags < 0)])
            return self.values.to(dtype) @ hats

    def local_taps(self) -> tuple[Tensor, int] | None:
        if self.filter is None:
            return None
        return self.filter.to(self.precision(self.filter)), 0 if self.causal else self.filter_size // 2
