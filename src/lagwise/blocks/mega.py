"""The gated attention layer of MEGA, and of TCNCA, which uses another memory."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from lagwise.blocks.prenorm import Block, ChannelLayer, make_norm, residual_normed
from lagwise.mixers import MIXERS, ChunkedAttention
from lagwise.mixers.chunked_attention import ChunkState
from lagwise.ops import Layout
from lagwise.ops.activations import ACTIVATIONS
from lagwise.ops.fused.layers import gated_update
from lagwise.ops.tokens import linears, silu_product, split_linear
from lagwise.tables import build, check_integer, known


class MegaState(NamedTuple):
    """States of the memory and of the attention."""

    memory: Any
    attention: ChunkState


class MegaBlock(Block):
    """Gated attention in chunks over a memory that reaches beyond them, then a channel mixer.

    Formula, with ``x̂ = norm(x)`` and ``m = memory(x̂)``::

        [u | z | r | h] = W m,  u = sigmoid(u), z = silu(z), r = silu(r)
        q, k = z * γ_q + β_q, z * γ_k + β_k,  v = silu(W_v x̂)
        x <- x + u * (silu(h + W_h(r * attention(q, k, v))) - x)
        x <- x + mix_channels(norm x)

    Options:
        memory: spec of a token mixer. ``{"name": "ema"}`` is MEGA (the default), ``{"name": "tcn", ...}`` TCNCA; any
            other works too.
        query_size: width of queries and keys (MEGA: 128).
        value_size: width of values; by default twice the channels.
        chunk: window in tokens.
        evaluation_chunk: window in evaluation mode; by default the same.
        function: ``softmax``, ``laplace`` or ``relu2``, as in `pair_attention`.
        position: ``none``, ``rope``, ``simple`` or ``rotary``, as in `ChunkedAttention`.
        channel_mixer: spec of a channel mixer; by default MEGA's, an MLP of twice the width with SiLU.
        activation: of values and of the gated candidate: ``silu`` (the default, as above), ``gelu``, ``gelu_tanh``,
            ``relu``, ``tanh`` or ``none``.
        norm: ``layer``, ``scale``, ``rms`` (no parameters), ``batch`` or ``none``, by name or by name and options.
        dropout: rate for values, gated candidates and channel mixer outputs in training.

    ValueError for options out of range. Streams as its two parts do: in constant memory with either of these memories.

    Source: TCNCA app. C and fig. 3; MEGA (Ma et al. 2023), §3.2 and 3.3, eq. 6 to 15.

    >>> MegaBlock(8, memory={"name": "ema"}, chunk=32)(torch.randn(2, 100, 8)).shape
    torch.Size([2, 100, 8])
    """

    def __init__(
        self,
        channels: int,
        *,
        causal: bool = True,
        memory: Mapping[str, Any] | None = None,
        query_size: int = 128,
        value_size: int | None = None,
        chunk: int = 128,
        evaluation_chunk: int | None = None,
        function: str = "softmax",
        position: str = "rope",
        channel_mixer: Mapping[str, Any] | None = None,
        activation: str = "silu",
        norm: str | Mapping[str, Any] = "layer",
        dropout: float = 0.0,
    ):
        super().__init__(channels)
        self.activation = ACTIVATIONS[known(activation, ACTIVATIONS, "activation")]
        value_size = check_integer("value_size", 2 * channels if value_size is None else value_size)
        check_integer("query_size", query_size)
        self.sizes = (channels, query_size, value_size, channels)
        self.norm = make_norm(norm, channels)
        self.memory = build(
            MIXERS, {"name": "ema"} if memory is None else memory, channels, what="memory", causal=causal
        )
        self.value = nn.Linear(channels, value_size)
        self.gates = nn.Linear(channels, sum(self.sizes))
        self.query_key = QueryKey(query_size)
        self.attention = ChunkedAttention(
            query_size,
            causal=causal,
            chunk=chunk,
            evaluation_chunk=evaluation_chunk,
            function=function,
            position=position,
        )
        self.out = nn.Linear(value_size, channels)
        mixer = {"name": "mlp", "expansion": 2, "activation": "silu"} if channel_mixer is None else channel_mixer
        self.channels = ChannelLayer(channels, mixer, norm, dropout)
        self.dropout = nn.Dropout(dropout)

    def mix(self, x: Tensor, state: MegaState | None, layout: Layout) -> tuple[Tensor, Any]:
        before = (None, None) if state is None else state
        x, h = residual_normed(self.norm, x, layout.mask)
        mixed, memory = self.memory.run(h, before[0], layout)
        update, shared, reset, candidate = split_linear(mixed, self.gates, self.sizes)
        value = self.dropout(self.activation(linears(h, self.value)[0]))
        query, key = self.query_key(F.silu(shared))
        attended, attention = self.attention.run(query, key, value, before[1], layout)
        branch = linears(silu_product(reset, attended), self.out)[0]
        if self.activation is F.silu and not (self.training and self.dropout.p):
            x = gated_update(x, update, candidate, branch)
        else:
            candidate = self.dropout(self.activation(candidate + branch))
            x = torch.lerp(x, candidate.to(x.dtype), update.sigmoid().to(x.dtype))
        return self.channels(x, layout.mask), None if attention is None else MegaState(memory, attention)

    def init_state(self, batch_size: int) -> MegaState:
        attention = self.attention.init_state(batch_size, self.sizes[2], like=self.query_key.scale)
        return MegaState(self.memory.init_state(batch_size), attention)


class QueryKey(nn.Module):
    """Queries and keys from one shared vector: ``z * γ + β``, each with its own γ and β.

    Source: TCNCA fig. 3; MEGA eq. 8 and 9.
    """

    undecayed = ("scale", "shift")

    def __init__(self, size: int):
        super().__init__()
        self.scale = nn.Parameter(torch.empty(2, size))
        self.shift = nn.Parameter(torch.empty(2, size))
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Initialise as MEGA: small scales and no shift, so that attention starts nearly uniform."""
        nn.init.normal_(self.scale, std=0.02)
        nn.init.zeros_(self.shift)

    def forward(self, shared: Tensor, factor: float = 1.0) -> tuple[Tensor, Tensor]:
        query, key = torch.addcmul(self.shift, shared[..., None, :], self.scale, value=factor).unbind(-2)
        return query, key
