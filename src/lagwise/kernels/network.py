"""The small network in kernels, from one lag or one frequency to a value for every channel."""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from lagwise.ops.activations import ACTIVATIONS
from lagwise.ops.fused import autocast_dtype
from lagwise.ops.fused.network import at_once, normed_relu_layers
from lagwise.tables import known

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

    def extra_repr(self) -> str:
        return f"in_features={self.in_features}, out_features={self.out_features}"

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
