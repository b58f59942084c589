"""The relative position encoder of TNN: a small network from lag to tap, times an exponential decay."""

from __future__ import annotations

import math

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from lagwise.kernels.base import KernelLinear, LagKernel, negligible
from lagwise.ops import truncation_length
from lagwise.tables import known

ACTIVATIONS = {"relu": F.relu, "silu": F.silu, "gelu": F.gelu, "tanh": torch.tanh, "none": lambda x: x}
INPUTS = ("integer", "normalized", "sincos")


class RPEKernel(LagKernel):
    """Taps from a fully connected network of the lag, with exponential decay.

    Formula: ``k(l) = decay**|l| * MLP(phi(l))`` (TNN §3.3 and eq. 5), where the MLP is a linear layer to ``hidden``
    features, then ``layers`` times (norm, activation, linear), then (norm, activation, linear to channels).

    Options (TNN tables 8 to 10):
        hidden, layers, activation: width, depth and non-linearity (table 13: 64, 6, relu).
        inputs: phi(l) is ``integer`` (l itself), ``normalized`` (l / scale) or ``sincos`` (``hidden`` sines and
            cosines of l at the wavelengths of Vaswani et al. 2017).
        scale: the length that ``normalized`` divides by. The paper divides by the current length, which gives every
            prompt another kernel; a fixed scale keeps streaming exact.
        decay: decay per token, in [0, 1]; 1 is no decay.
        learn_decay: make the decay a parameter of each channel, ``sigmoid(theta)``, starting from ``decay``.

    The norm has no parameters (root mean square). Everything is computed in float32 or better. ValueError for
    options out of range.
    """

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
        if hidden < 2 or hidden % 2 or layers < 0 or scale < 1:
            raise ValueError(f"hidden must be even, layers >= 0, scale >= 1; got {hidden}, {layers}, {scale}")
        if not 0.0 <= decay <= 1.0 or (learn_decay and not 0.0 < decay < 1.0):
            raise ValueError(f"decay must be in [0, 1], and inside it when learned, got {decay}")
        self.activation = known(activation, ACTIVATIONS, "activation")
        self.inputs = known(inputs, INPUTS, "inputs")
        self.scale = scale
        self.decay = decay
        self.first = KernelLinear(hidden if inputs == "sincos" else 1, hidden)
        self.hidden = nn.ModuleList(KernelLinear(hidden, hidden) for _ in range(layers))
        self.last = KernelLinear(hidden, channels)
        self.decay_logit = nn.Parameter(torch.empty(channels)) if learn_decay else None
        self.reset_parameters()

    def reset_parameters(self) -> None:
        if self.decay_logit is not None:
            nn.init.constant_(self.decay_logit, math.log(self.decay / (1 - self.decay)))

    def horizon(self) -> int | None:
        """Where a fixed decay falls below rounding; None for a learned one, which may come to be anything."""
        if self.decay_logit is not None:
            return None
        return truncation_length(self.decay, negligible(self.precision(self.last.weight)))

    def taps(self, length: int) -> Tensor:
        """See `LagKernel.taps`."""
        dtype = self.precision(self.last.weight)
        lags = self.lags(length, self.last.weight.device)
        with torch.autocast(lags.device.type, enabled=False):
            h = self._activated(self.first(self._features(lags.to(dtype))))
            for layer in self.hidden:
                h = self._activated(layer(h))
            return self.last.transposed(h) * self._log_decay(dtype).mul(lags.abs()).exp()

    def _activated(self, h: Tensor) -> Tensor:
        return ACTIVATIONS[self.activation](F.rms_norm(h, h.shape[-1:]))

    def _features(self, lags: Tensor) -> Tensor:
        if self.inputs == "integer":
            return lags[:, None]
        if self.inputs == "normalized":
            return lags[:, None] / self.scale
        half = self.first.in_features // 2
        frequency = 10000.0 ** (-torch.arange(half, dtype=lags.dtype, device=lags.device) / half)
        angle = lags[:, None] * frequency
        return torch.cat([angle.sin(), angle.cos()], dim=1)

    def _log_decay(self, dtype: torch.dtype) -> Tensor:
        """ln(decay) as (channels or 1, 1); a decay of 0 is the smallest that still leaves lag 0 alone."""
        if self.decay_logit is not None:
            return F.logsigmoid(self.decay_logit.to(dtype))[:, None]
        log = math.log(self.decay) if self.decay > 0 else -1e4
        return torch.full((1, 1), log, dtype=dtype, device=self.last.weight.device)
