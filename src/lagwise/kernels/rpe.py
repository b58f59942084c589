"""The relative position encoder of TNN: a small network from lag to tap, times an exponential decay."""

from __future__ import annotations

import math

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from lagwise.kernels.base import LagKernel, negligible
from lagwise.kernels.network import KernelNetwork
from lagwise.ops import truncation_length
from lagwise.tables import known

INPUTS = ("integer", "normalized", "sincos")


class RPEKernel(LagKernel):
    """Taps from a fully connected network of the lag, with exponential decay.

    Formula: ``k(l) = decay**|l| * MLP(phi(l))`` (TNN §3.3 and eq. 5), where the MLP is a linear layer to ``hidden``
    features, then ``layers`` times (norm, activation, linear), then (norm, activation, linear to channels).

    Options (TNN tables 8 to 10):
        hidden: width of the network (table 13: 64).
        layers: its depth (table 13: 6).
        activation: its non-linearity (table 13: relu).
        inputs: phi(l) is ``integer`` (l itself), ``normalized`` (l / scale) or ``sincos`` (``hidden`` sines and cosines
            of l at the wavelengths of Vaswani et al. 2017).
        scale: the length that ``normalized`` divides by. The paper divides by the current length, so that the kernel
            depends on the prompt; a fixed scale keeps streaming exact.
        decay: decay per token, in [0, 1]; 1 disables it.
        learn_decay: make the decay a parameter of each channel, ``sigmoid(theta)``, starting from ``decay``.

    The norm has no parameters (root mean square). Everything is computed in float32 or better. ValueError for options
    out of range.

    >>> RPEKernel(4, decay=0.9).taps(1000).shape  # 0.9 ** 175 is below 1e-8
    torch.Size([4, 175])
    >>> RPEKernel(4, causal=False).taps(1000).shape  # lags -999 to 999
    torch.Size([4, 1999])
    """

    continuous = True

    def __init__(
        self,
        channels: int,
        *,
        causal: bool = True,
        hidden: int = 64,
        layers: int = 6,
        activation: str = "relu",
        inputs: str = "integer",
        scale: int = 512,
        decay: float = 0.99,
        learn_decay: bool = False,
    ):
        super().__init__(channels, causal)
        if scale < 1 or (inputs == "sincos" and hidden % 2):
            raise ValueError(f"scale must be at least 1, and hidden even for sincos; got {scale} and {hidden}")
        if not 0.0 <= decay <= 1.0 or (learn_decay and not 0.0 < decay < 1.0):
            raise ValueError(f"decay must be in [0, 1], and inside it when learned, got {decay}")
        self.inputs = known(inputs, INPUTS, "inputs")
        self.scale = scale
        self.decay = decay
        self.network = KernelNetwork(
            hidden if inputs == "sincos" else 1, channels, hidden=hidden, layers=layers, activation=activation
        )
        self.decay_logit = nn.Parameter(torch.empty(channels)) if learn_decay else None
        self.reset_parameters()

    def reset_parameters(self) -> None:
        if self.decay_logit is not None:
            nn.init.constant_(self.decay_logit, math.log(self.decay / (1 - self.decay)))

    @property
    def support(self) -> int | None:
        """The lag at which a fixed decay falls below rounding; None for a learned decay, which may take any value."""
        if self.decay_logit is not None:
            return None
        return truncation_length(self.decay, negligible(self.precision(self._weight)))

    def taps(self, length: int) -> Tensor:
        return self.smooth_at(self.lags(length, self._weight.device))

    def at(self, lags: Tensor) -> Tensor:
        """See `LagKernel.at`: only the requested lags are computed."""
        values = self.smooth_at(lags)
        return values * (lags >= 0) if self.causal else values

    def smooth_at(self, lags: Tensor) -> Tensor:
        dtype = self.precision(self._weight)
        with torch.autocast(lags.device.type, enabled=False):
            lags = lags.to(dtype)
            h = self.network.features(self._features(lags))
            return self.network.last.transposed(h) * self._log_decay(dtype).mul(lags.abs()).exp()

    @property
    def _weight(self) -> Tensor:
        return self.network.last.weight

    def _features(self, lags: Tensor) -> Tensor:
        if self.inputs == "integer":
            return lags[:, None]
        if self.inputs == "normalized":
            return lags[:, None] / self.scale
        half = self.network.first.in_features // 2
        frequency = 10000.0 ** (-torch.arange(half, dtype=lags.dtype, device=lags.device) / half)
        angle = lags[:, None] * frequency
        return torch.cat([angle.sin(), angle.cos()], dim=1)

    def _log_decay(self, dtype: torch.dtype) -> Tensor:
        """ln(decay) as (channels or 1, 1). A decay of 0 is replaced by the smallest number, which leaves only lag 0."""
        if self.decay_logit is not None:
            return F.logsigmoid(self.decay_logit.to(dtype))[:, None]
        log = math.log(self.decay) if self.decay > 0 else -1e4
        return torch.full((1, 1), log, dtype=dtype, device=self._weight.device)
