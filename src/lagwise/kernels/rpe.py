"""The relative position encoder of TNN: a small network from lag to tap, times an exponential decay; and the network,
which other kernels have too, from one lag or one frequency to a value for every channel."""

from __future__ import annotations

import math
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from lagwise.kernels.base import LagKernel, negligible
from lagwise.ops import truncation_length
from lagwise.ops.activations import ACTIVATIONS
from lagwise.ops.fused import autocast_dtype
from lagwise.ops.fused.network import at_once, normed_relu_layers
from lagwise.tables import known

INPUTS = ("integer", "normalized", "sincos")
# The norm's epsilon, inside the root. PyTorch's default depends on the dtype, and in float32 it is not small compared
# with the mean square of features that weight decay has shrunk: the same weights would give different kernels.
_EPSILON = 1e-20


class KernelLinear(nn.Module):
    """A linear layer of a kernel network: computes in its input's precision and keeps PyTorch's initialisation.

    A model's narrow initialisation with zero biases would make every tap of a network of the lag equal: the norm after
    a bias-free map from one number keeps only the sign of the lag.

    It is not an `nn.Linear`, though it has the same parameters: adapters and quantizers replace those by layers that
    only implement `forward`, whereas kernels also multiply by the weight directly.
    """

    def __init__(self, in_features: int, out_features: int):
        super().__init__()
        self.in_features, self.out_features = in_features, out_features
        self.weight = nn.Parameter(torch.empty(out_features, in_features))
        self.bias = nn.Parameter(torch.empty(out_features))
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Initialise as PyTorch does: uniform within one over the square root of the number of inputs."""
        bound = self.in_features**-0.5
        nn.init.uniform_(self.weight, -bound, bound)
        nn.init.uniform_(self.bias, -bound, bound)

    def forward(self, x: Tensor) -> Tensor:
        return F.linear(x, self.weight.to(x.dtype), self.bias.to(x.dtype))

    def transposed(self, x: Tensor) -> Tensor:
        """The output for x ``(n, in)`` as ``(out, n)`` in memory, the layout of taps, which every FFT reads."""
        return torch.addmm(self.bias.to(x.dtype)[:, None], self.weight.to(x.dtype), x.t())


class KernelNetwork(nn.Module):
    """A linear layer to ``hidden`` features, ``layers`` times (norm, activation, linear), then (norm, activation) and
    the linear layer ``last`` (TNN §3.3).

    Shapes: `features` maps ``(n, inputs)`` to ``(n, hidden)``; ``last`` maps these to ``outputs``. It is separate
    because a linear map of the features over n, such as a Fourier transform, can be applied before it, to few features
    rather than to many channels. The norm is the root mean square without parameters, with 1e-20 added to the mean
    square in every dtype, or none (``normalize=False``).
    """

    shared = ("first", "hidden")

    def __init__(self, inputs: int, outputs: int, *, hidden: int, layers: int, activation: str, normalize: bool = True):
        super().__init__()
        if hidden < 1 or layers < 0:
            raise ValueError(f"hidden must be at least 1 and layers at least 0, got {hidden} and {layers}")
        self.activation = known(activation, ACTIVATIONS, "activation")
        self.normalize = normalize
        self.first = KernelLinear(inputs, hidden)
        self.hidden = nn.ModuleList(KernelLinear(hidden, hidden) for _ in range(layers))
        self.last = KernelLinear(hidden, outputs)

    def features(self, x: Tensor) -> Tensor:
        usual = self.normalize and self.activation == "relu" and autocast_dtype(x) == x.dtype
        if usual and at_once(x, self.first.out_features):
            layers: list[Any] = [self.first, *self.hidden]
            weights = [layer.weight.to(x.dtype) for layer in layers]
            return normed_relu_layers(x, weights, [layer.bias.to(x.dtype) for layer in layers], _EPSILON)
        h = self._activated(self.first(x))
        for layer in self.hidden:
            h = self._activated(layer(h))
        return h

    def forward(self, x: Tensor) -> Tensor:
        return self.last(self.features(x))

    def _activated(self, h: Tensor) -> Tensor:
        return ACTIVATIONS[self.activation](F.rms_norm(h, h.shape[-1:], eps=_EPSILON) if self.normalize else h)


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
        """Return ln(decay) as (channels or 1, 1). The smallest number replaces a decay of 0: it leaves only lag 0."""
        if self.decay_logit is not None:
            return F.logsigmoid(self.decay_logit.to(dtype))[:, None]
        log = math.log(self.decay) if self.decay > 0 else -1e4
        return torch.full((1, 1), log, dtype=dtype, device=self._weight.device)
