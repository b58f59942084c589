"""The base class of blocks, and channel mixers, which process each token separately."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from torch import Tensor, nn

from lagwise.blocks.norm import make_norm, residual_normed
from lagwise.mixers.base import StreamModule
from lagwise.mixers.gtu import gated_width
from lagwise.ops.activations import ACTIVATIONS
from lagwise.ops.tokens import apply_linear, linears, silu_product
from lagwise.tables import Spec, build, known


class Block(StreamModule):
    """A residual layer on ``(batch, length, channels)`` that streams as its mixers do. Abstract, as `StreamModule`."""


class GLU(nn.Module):
    """Gated linear unit: ``W_3 (silu(W_1 x) * W_2 x)`` (TNN §3.1 and fig. 2; Shazeer 2020).

    Shapes: ``(..., channels)`` to the same.

    Options:
        expansion: inner width relative to the channels (table 13: 1).
        bias: whether the layers have biases (Megalodon's SwiGLU has none).

    >>> GLU(8)(torch.randn(2, 100, 8)).shape
    torch.Size([2, 100, 8])
    """

    def __init__(self, channels: int, *, expansion: float = 1, bias: bool = True):
        super().__init__()
        width = gated_width(channels, expansion)
        self.gate = nn.Linear(channels, width, bias=bias)
        self.value = nn.Linear(channels, width, bias=bias)
        self.out = nn.Linear(width, channels, bias=bias)

    def forward(self, x: Tensor) -> Tensor:
        (gate, value), biases = apply_linear(x, self.gate, self.value)
        return linears(silu_product(gate, value, biases), self.out)[0]


class MLP(nn.Module):
    """The Transformer's feed-forward layer: ``W_2 act(W_1 x)`` (Vaswani et al. 2017).

    Shapes: ``(..., channels)`` to the same.

    Options:
        expansion: inner width relative to the channels.
        activation: ``gelu``, ``gelu_tanh`` (its approximation in GPT-2 and HyenaDNA), ``silu`` (MEGA's), ``relu``,
            ``tanh`` or ``none``.
        bias: whether the layers have biases (Megalodon's have none).
    """

    def __init__(self, channels: int, *, expansion: float = 4, activation: str = "gelu", bias: bool = True):
        super().__init__()
        width = gated_width(channels, expansion)
        self.activation = ACTIVATIONS[known(activation, ACTIVATIONS, "activation")]
        self.up = nn.Linear(channels, width, bias=bias)
        self.down = nn.Linear(width, channels, bias=bias)

    def forward(self, x: Tensor) -> Tensor:
        return linears(self.activation(linears(x, self.up)[0]), self.down)[0]


CHANNEL_MIXERS: dict[str, type[nn.Module]] = {"glu": GLU, "mlp": MLP}


class ChannelLayer(nn.Module):
    """``x + dropout(mix_channels(norm x))``: the second half of a block, or the identity for ``{"name": "none"}``.
    branch: what is added to x before; residual: what x is replaced by in the sum."""

    def __init__(self, channels: int, spec: Spec, norm: str | Mapping[str, Any], dropout: float):
        super().__init__()
        self.norm: nn.Module | None = None
        self.mixer: Any = None
        if spec != {"name": "none"}:
            self.norm = make_norm(norm, channels)
            self.mixer = build(CHANNEL_MIXERS, spec, channels, what="channel mixer")
        self.dropout = nn.Dropout(dropout)

    def forward(
        self, x: Tensor, mask: Tensor | None = None, *, branch: Tensor | None = None, residual: Tensor | None = None
    ) -> Tensor:
        if self.norm is None:
            return x if branch is None else x + branch
        x, h = residual_normed(self.norm, x, mask, branch)
        return (x if residual is None else residual) + self.dropout(self.mixer(h))
