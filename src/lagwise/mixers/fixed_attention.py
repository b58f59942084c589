"""Chunked attention with a state of fixed shapes."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor, nn

from lagwise.mixers.chunked_attention import ChunkedAttention, ChunkState
from lagwise.ops.attention import pair_attention, rotary_factors, rotate
from lagwise.ops.streaming import ring_extend, ring_of, ring_tokens, ring_write
from lagwise.ops.window import Window


class FixedChunkState(NamedTuple):
    """As `ChunkState`: keys and values by their position in the chunk, ``(batch, chunk, heads * size)``, and the number
    of tokens of each row, ``(batch,)``. Positions not yet reached in the current chunk hold values of the previous
    one."""

    key: Tensor
    value: Tensor
    seen: Tensor


class FixedAttention(nn.Module):
    """`ChunkedAttention` of queries, keys and values ``(batch, heads, n, size)``, for one token or several in a graph.
    like: a tensor with the model's dtype and device."""

    cos: Tensor
    sin: Tensor
    bias: Tensor

    def __init__(self, attention: ChunkedAttention, like: Tensor):
        super().__init__()
        self.query_size, self.heads = attention.query_size, attention.heads
        self.chunk, self.function, self.position = attention.window, attention.function, attention.position
        self.dtype = like.dtype
        self.start = attention.init_state(1, 1)
        if self.position == "rope":
            places = torch.arange(self.chunk, device=like.device)
            cos, sin = rotary_factors(places, attention.query_size, dtype=like.dtype)
            self.register_buffer("cos", cos)
            self.register_buffer("sin", sin)
        self.has_bias = self.start.bias is not None
        if self.start.bias is not None:
            self.register_buffer("bias", self.start.bias.detach().clone())
        self.device = like.device

    def init_state(self, batch_size: int, value_size: int) -> FixedChunkState:
        key, value = (
            torch.zeros(batch_size, self.chunk, self.heads * n, dtype=self.dtype, device=self.device)
            for n in (self.query_size, value_size)
        )
        return FixedChunkState(key, value, torch.zeros(batch_size, dtype=torch.long, device=self.device))

    def prefill(
        self, query: Tensor, key: Tensor, value: Tensor, state: FixedChunkState, mask: Tensor | None = None
    ) -> tuple[Tensor, FixedChunkState]:
        """As `ChunkedAttention.prefill`, without a mask. Scores of several tokens cover all of them and the last
        chunk."""
        assert mask is None
        if query.shape[2] != 1:
            return self._run(query, key, value, state)
        places = torch.arange(self.chunk, device=query.device)
        place = state.seen % self.chunk
        if self.position == "rope":
            factors = self.cos[place][:, None], self.sin[place][:, None]
            query, key = rotate(query, factors), rotate(key, factors)
        # Concatenate heads without a branch on the batch size.
        key, value = (torch.cat(t[:, :, 0].unbind(1), 1) for t in (key, value))
        keys, values = ring_write(state.key, key, state.seen), ring_write(state.value, value, state.seen)
        bias = None
        if self.has_bias:
            lags = place[:, None] - places + self.chunk - 1
            bias = self.bias[:, lags].transpose(0, 1)[:, :, None]
        allowed = (places <= place[:, None])[:, None, None]
        keys_by_head, values_by_head = (
            t.to(query.dtype).unflatten(2, (self.heads, -1)).transpose(1, 2) for t in (keys, values)
        )
        y = pair_attention(query, keys_by_head, values_by_head, function=self.function, bias=bias, allowed=allowed)
        return y, FixedChunkState(keys, values, state.seen + 1)

    def _run(self, query: Tensor, key: Tensor, value: Tensor, state: FixedChunkState) -> tuple[Tensor, FixedChunkState]:
        n = query.shape[2]
        number = state.seen[:, None] + torch.arange(n, device=query.device)  # (batch, n), from 0 in every row
        if self.position == "rope":
            factors = self.cos[number % self.chunk], self.sin[number % self.chunk]
            query, key = rotate(query, factors), rotate(key, factors)
        keys, after_key = ring_extend(state.key, key.transpose(1, 2).flatten(2), state.seen)
        values, after_value = ring_extend(state.value, value.transpose(1, 2).flatten(2), state.seen)
        before = state.seen[:, None] + torch.arange(-self.chunk, 0, device=query.device)
        met = torch.cat([before, number], 1)[:, None]
        lags = number[..., None] - met
        allowed = (lags >= 0) & (lags <= (number % self.chunk)[..., None])
        bias = None
        if self.has_bias:
            bias = self.bias[:, lags.clamp(1 - self.chunk, self.chunk - 1) + self.chunk - 1].transpose(0, 1)
        keys, values = (t.to(query.dtype).unflatten(2, (self.heads, -1)).transpose(1, 2) for t in (keys, values))
        y = pair_attention(query, keys, values, function=self.function, bias=bias, allowed=allowed[:, None])
        return y, FixedChunkState(after_key, after_value, state.seen + n)

    def take(self, state: ChunkState) -> FixedChunkState:
        """Convert a streaming state to one of fixed shapes."""
        rows = len(state.key.tokens)
        seen = torch.full((rows,), state.seen, device=self.device)
        if state.padding is not None:
            seen = seen - state.padding
        key, value = (ring_of(w.tokens.to(self.device, self.dtype), self.chunk, seen) for w in state[:2])
        return FixedChunkState(key, value, seen)

    def give(self, state: FixedChunkState) -> ChunkState:
        """The inverse of `take`."""
        key, value = (Window(ring_tokens(ring, state.seen), self.chunk) for ring in state[:2])
        longest = int(state.seen.max())
        padding = longest - state.seen
        return ChunkState(key, value, longest, padding if padding.any() else None, self.start.bias)
