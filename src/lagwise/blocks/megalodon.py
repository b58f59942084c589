"""The layer of Megalodon."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

import torch.nn.functional as F
from torch import Tensor, nn

from lagwise.blocks.mega import QueryKey
from lagwise.blocks.prenorm import Block, ChannelLayer, RMSNorm, residual_normed
from lagwise.mixers import MIXERS, ChunkedAttention, TimestepNorm
from lagwise.mixers.base import check_heads
from lagwise.mixers.chunked_attention import ChunkState
from lagwise.ops import Layout
from lagwise.ops.recurrence import Moments
from lagwise.ops.tokens import linears, rms_norm, silu_product
from lagwise.tables import build, check_integer

_MEMORY = {"name": "toeplitz", "kernel": {"name": "cema"}}
_CHANNELS = {"name": "mlp", "expansion": 2, "activation": "silu", "bias": False}


class MegalodonState(NamedTuple):
    """States of the norm, the memory and the attention."""

    norm: Moments
    memory: Any
    attention: ChunkState


class MegalodonBlock(Block):
    """Normalised attention in chunks over a memory, then a channel mixer, in a two-hop residual.

    Formula, with ``x̂ = timestep_norm(x)`` and ``m = rms_norm(memory(x̂))``::

        z = W_z m, divided by its root mean square in each head
        q = z * γ_q + β_q,  with γ that starts at 1 / sqrt(size of a head)
        k = z * γ_k + β_k,  likewise
        v = silu(W_v x̂)
        r = silu(W_r m)
        y = x + W_h m + W_a(r * attention(q, k, v)),  attention = softmax(q k') v in chunks
        x <- x + mix_channels(layer_norm y)

    Options:
        memory: spec of a token mixer; by default ``toeplitz`` with the kernel ``cema``.
        heads: of the attention; must divide query_size and value_size.
        query_size: width of queries and keys over all heads (Megalodon: a quarter of the channels).
        value_size: width of values over all heads; by default twice the channels.
        chunk: window in tokens.
        evaluation_chunk: window in evaluation mode; by default the same.
        position: ``rope``, as published, or another of `ChunkedAttention`.
        sliding: whether attention also sees the whole chunk before a token's own (Gecko).
        groups: of channels in the timestep norm; must divide the channels.
        channel_mixer: spec of a channel mixer; by default an MLP of twice the width with SiLU and without biases.
            ``{"name": "glu", "expansion": ..., "bias": false}`` is SwiGLU.
        epsilon: of all norms.
        dropout: rate in training for the memory's output, the gated values and both residual branches.

    ValueError for options out of range. Streams as its parts do: in constant memory with this memory.

    Source: Megalodon (Ma et al. 2024), §3.3 and 3.4, as released. Weights of the same names and shapes give
    the outputs of the released code; there, γ is stored as the difference from its start. ``sliding``:
    Gecko (Ma et al. 2026), without its decays and its adaptive working memory.

    >>> MegalodonBlock(16, chunk=32)(torch.randn(2, 100, 16)).shape
    torch.Size([2, 100, 16])
    """

    def __init__(
        self,
        channels: int,
        *,
        causal: bool = True,
        memory: Mapping[str, Any] | None = None,
        heads: int = 1,
        query_size: int = 128,
        value_size: int | None = None,
        chunk: int = 128,
        evaluation_chunk: int | None = None,
        position: str = "rope",
        sliding: bool = False,
        groups: int = 1,
        channel_mixer: Mapping[str, Any] | None = None,
        epsilon: float = 1e-5,
        dropout: float = 0.0,
    ):
        super().__init__(channels)
        value_size = check_integer("value_size", 2 * channels if value_size is None else value_size)
        for size in (check_integer("query_size", query_size), value_size):
            check_heads(size, check_integer("heads", heads))
        self.value_size = value_size
        self.timestep_norm = TimestepNorm(channels, causal=causal, groups=groups, epsilon=epsilon)
        self.memory = build(MIXERS, _MEMORY if memory is None else memory, channels, what="memory", causal=causal)
        self.memory_norm = RMSNorm(channels, epsilon=epsilon, affine=True)
        self.value = nn.Linear(channels, value_size)
        self.shared = nn.Linear(channels, query_size)
        self.reset = nn.Linear(channels, value_size)
        self.candidate = nn.Linear(channels, channels)
        self.out = nn.Linear(value_size, channels, bias=False)
        self.query_key = NormalizedQueryKey(query_size, heads, epsilon)
        self.attention = ChunkedAttention(
            query_size // heads,
            heads=heads,
            causal=causal,
            chunk=chunk,
            evaluation_chunk=evaluation_chunk,
            position=position,
            sliding=sliding,
        )
        mixer = _CHANNELS if channel_mixer is None else channel_mixer
        self.channels = ChannelLayer(channels, mixer, {"name": "layer", "epsilon": epsilon}, dropout)
        self.dropout = nn.Dropout(dropout)

    def mix(self, x: Tensor, state: MegalodonState | None, layout: Layout) -> tuple[Tensor, Any]:
        before = (None, None, None) if state is None else state
        h, norm = self.timestep_norm.run(x, before[0], layout)
        mixed, memory_state = self.memory.run(h, before[1], layout)
        memory = self.dropout(residual_normed(self.memory_norm, mixed, layout.mask)[1])
        shared, reset, candidate = linears(memory, self.shared, self.reset, self.candidate)
        query, key = self.query_key(shared)
        value = F.silu(linears(h, self.value)[0])
        attended, attention = self.attention.run(query, key, value, before[2], layout)
        gated = self.dropout(silu_product(reset, attended))
        branch = self.dropout(candidate + linears(gated, self.out)[0])
        y = self.channels(x, layout.mask, branch=branch, residual=x)
        return y, None if attention is None else MegalodonState(norm, memory_state, attention)

    def init_state(self, batch_size: int) -> MegalodonState:
        attention = self.attention.init_state(batch_size, self.value_size, like=self.query_key.scale)
        norm = self.timestep_norm.init_state(batch_size)
        return MegalodonState(norm, self.memory.init_state(batch_size), attention)


class NormalizedQueryKey(QueryKey):
    """Queries and keys from one shared vector that is normalised in each head: ``z / rms(z) * γ + β``, each with its
    own γ and β. ``scale`` is γ over its start, 1 / sqrt(size of a head). The query is multiplied by the square root of
    that size, by which attention divides it.

    Source: Megalodon (Ma et al. 2024), §3.3.
    """

    def __init__(self, size: int, heads: int, epsilon: float):
        super().__init__(size)
        self.heads, self.epsilon = heads, epsilon

    def reset_parameters(self) -> None:
        """Initialise as Megalodon: γ at its start, and no shift."""
        nn.init.ones_(self.scale)
        nn.init.zeros_(self.shift)

    def forward(self, shared: Tensor, factor: float = 1.0) -> tuple[Tensor, Tensor]:
        normed = rms_norm(shared.unflatten(-1, (self.heads, -1)), self.epsilon)
        root = normed.shape[-1] ** 0.5
        query, key = super().forward(normed.flatten(-2), factor / root)
        return query * root, key
