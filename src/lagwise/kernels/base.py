"""What every lag kernel is: something that produces taps."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

# Taps below this, relative to the largest, cannot change a sum in that precision.
_NEGLIGIBLE = {torch.float64: 1e-17}
_NEGLIGIBLE_FLOAT32 = 1e-8


class LagKernel(nn.Module):
    """A parametrisation of k(lag) for each channel. Abstract: subclasses give `taps` and, if they decay, `horizon`.

    `taps` must not depend on the length asked for (taps(n) starts with taps(m) for m < n), or a streamed prompt would
    see another kernel than a whole one.
    """

    def __init__(self, channels: int, causal: bool):
        super().__init__()
        if channels < 1:
            raise ValueError(f"channels must be at least 1, got {channels}")
        self.channels = channels
        self.causal = causal
        self.max_length: int | None = None  # longest signal that `taps` can serve; None for any

    def taps(self, length: int) -> Tensor:
        """Taps for a signal of this length, cut at the horizon.

        Result ``(channels, n)`` for lags 0..n-1 when causal, ``(channels, 2 n - 1)`` for lags -(n-1)..n-1 when not,
        with n = min(length, horizon). In float32 or better, whatever the dtype of the parameters.
        """
        raise NotImplementedError

    def horizon(self) -> int | None:
        """Lags from here on are below rounding in the kernel's own precision; None if it never decays that far."""
        return None

    def lags(self, length: int, device: torch.device) -> Tensor:
        """The integer lags that `taps` covers, in its order."""
        horizon = self.horizon()
        reach = length if horizon is None else min(length, horizon)
        return torch.arange(0 if self.causal else 1 - reach, reach, device=device)

    def reset_parameters(self) -> None:
        """Draw the parameters that the kernel holds directly; `KernelLinear` layers inside draw their own."""

    @staticmethod
    def precision(parameter: Tensor) -> torch.dtype:
        """Dtype in which taps are computed: lags above 256 are not even representable in bfloat16."""
        return torch.promote_types(parameter.dtype, torch.float32)


class KernelLinear(nn.Linear):
    """A linear layer of a kernel network: works in its input's precision, starts from PyTorch's own initialisation.

    A model's narrow initialisation with zero biases would make every tap of a network of the lag equal: the norm
    after a bias-free map from one number keeps only the sign of the lag.
    """

    def forward(self, x: Tensor) -> Tensor:
        return F.linear(x, self.weight.to(x.dtype), self.bias.to(x.dtype))

    def transposed(self, x: Tensor) -> Tensor:
        """The same for x ``(n, in)``, as ``(out, n)`` in memory: the layout of taps, which every FFT reads."""
        return torch.addmm(self.bias.to(x.dtype)[:, None], self.weight.to(x.dtype), x.t())


def negligible(dtype: torch.dtype) -> float:
    """Relative size below which a tap does not reach a sum of that dtype (float32 rounding is 6e-8)."""
    return _NEGLIGIBLE.get(dtype, _NEGLIGIBLE_FLOAT32)
