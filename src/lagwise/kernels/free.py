"""Free coefficients: one parameter for every channel and lag."""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn

from lagwise.kernels.base import LagKernel


class FreeKernel(LagKernel):
    """Taps that are parameters: TNN without RPE (TNN §3.2 and table 9).

    Formula: ``k(l) = decay**|l| * w_l`` for ``|l| < max_length``.

    The number of parameters grows with max_length, and longer inputs cannot be processed: `taps` raises a ValueError
    beyond it.

    Options:
        max_length: number of lags on each side.
        decay: decay per token, in (0, 1]; 1 disables it.

    >>> FreeKernel(4, max_length=64).taps(32).shape
    torch.Size([4, 32])
    """

    def __init__(self, channels: int, *, causal: bool = True, max_length: int = 512, decay: float = 0.99):
        super().__init__(channels, causal)
        if max_length < 1 or not 0.0 < decay <= 1.0:
            raise ValueError(f"max_length must be at least 1 and decay in (0, 1], got {max_length} and {decay}")
        self.max_length: int = max_length
        self.decay = decay
        self.weight = nn.Parameter(torch.empty(channels, max_length if causal else 2 * max_length - 1))
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Draw from a normal distribution with variance one over the effective number of lags, so that mixing keeps the
        scale."""
        effective = min(self.max_length, 1 / max(1 - self.decay**2, 1e-9))
        nn.init.normal_(self.weight, std=effective**-0.5)

    def taps(self, length: int) -> Tensor:
        """See `LagKernel.taps`. ValueError if length > max_length."""
        self.check_length(length)
        dtype = self.precision(self.weight)
        lags = self.lags(length, self.weight.device)
        first = 0 if self.causal else self.max_length - length
        # By its logarithm: the error of a decay rounded to float32 becomes large after some thousand lags.
        decay = (math.log(self.decay) * lags.abs().to(dtype)).exp()
        return self.weight[:, first : first + lags.numel()].to(dtype) * decay
