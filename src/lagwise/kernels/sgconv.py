"""The kernel of SGConv: parts of increasing length and decreasing size, each from equally many numbers."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from lagwise.kernels.base import LagKernel
from lagwise.tables import check_integer


class SGConvKernel(LagKernel):
    """Adjacent parts, each upsampled from ``size`` numbers to the total length of all parts before it (Li et al. 2023,
    "What Makes Convolutional Models Great on Long Sequence Modeling?").

    Formula: ``k = [w_0, decay w_1, decay**2 up_2(w_2), ..., decay**s up_{2**(s - 1)}(w_s), ...]`` for s < scales, where
    up_n is linear interpolation to n times as many values. The decay is learned for every channel and starts at 1/2.
    Lags from ``size * 2**(scales - 1)`` on are zero. A two-sided kernel has a second set for lags below 0.

    Options:
        size: numbers per part.
        scales: number of parts.

    Weights start so that the squares of a channel's taps sum to 1, where the published code divides by that norm.
    ValueError for options out of range.
    """

    def __init__(self, channels: int, *, causal: bool = True, size: int = 32, scales: int = 6):
        super().__init__(channels, causal)
        shape = (1 if causal else 2, channels, check_integer("scales", scales), check_integer("size", size))
        self.weight = nn.Parameter(torch.empty(shape))
        self.decay = nn.Parameter(torch.empty(channels))
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Draw normal weights, and rescale them."""
        with torch.no_grad():
            self.weight.normal_()
            self.decay.fill_(0.5)
            if not self.weight.is_meta:
                norm = self.taps(self.support).norm(dim=1)
                self.weight.div_(norm[:, None, None].to(self.weight.dtype))

    @property
    def support(self) -> int:
        scales, size = self.weight.shape[2:]
        return size << (scales - 1)

    def taps(self, length: int) -> Tensor:
        n, dtype = min(length, self.support), self.precision(self.weight)
        weight, decay = self.weight.to(dtype), self.decay.to(dtype)[:, None]
        parts, done = [], 0
        with torch.autocast(weight.device.type, enabled=False):
            for scale in range(weight.shape[2]):
                if done >= n:
                    break
                part, factor = weight[:, :, scale], 1 << max(0, scale - 1)
                if factor > 1:
                    part = F.interpolate(part, scale_factor=factor, mode="linear", align_corners=False)
                parts.append(part * decay**scale)
                done += part.shape[2]
        after, *before = torch.cat(parts, dim=2)[..., :n]
        return torch.cat([*(side[:, :-1].flip(1) for side in before), after], 1)
