"""Streaming steps with fixed shapes for mixers that attend to a window of tokens."""

from __future__ import annotations

import math
from typing import NamedTuple

import torch
from torch import Tensor

from lagwise.mixers.base import StateTuple
from lagwise.mixers.fixed import FixedMixer, counter
from lagwise.mixers.fixed_ring import FixedRingState
from lagwise.mixers.flash import FlashMixer
from lagwise.mixers.relative_attention import RelativeAttentionMixer
from lagwise.ops.attention import rotary_factors, rotate
from lagwise.ops.streaming import ring_lags, ring_of, ring_tokens, ring_write
from lagwise.ops.window import Window


class FixedFlashState(NamedTuple):
    """A ring of the values and bases of the current chunk, ``(batch, chunk, channels)``; the sums over earlier chunks
    and over the current one, ``(batch, query_size, width)``; and the number of tokens so far, ``(batch,)``."""

    ring: Tensor
    sums: Tensor
    present: Tensor
    seen: Tensor


class FixedFlash(FixedMixer):
    """Causal `FlashMixer`. A full chunk is added to the sums at its last token."""

    cos: Tensor
    sin: Tensor

    def __init__(self, mixer: FlashMixer):
        super().__init__()
        self.mixer = mixer
        weight = mixer.out.weight
        self.dtype = torch.promote_types(weight.dtype, torch.float32)
        places = torch.arange(mixer.chunk, device=weight.device)
        cos, sin = rotary_factors(places, mixer.scale.shape[1], dtype=self.dtype)
        self.register_buffer("cos", cos)
        self.register_buffer("sin", sin)

    def init_state(self, batch_size: int) -> FixedFlashState:
        return self.take(self.mixer.init_state(batch_size))

    def step(self, x: Tensor, state: FixedFlashState) -> tuple[Tensor, FixedFlashState]:
        mixer, place = self.mixer, state.seen % self.mixer.chunk
        gate, inner = mixer._project(x[:, None], None)
        ring = ring_write(state.ring, inner[:, 0], state.seen)  # by position in the chunk
        value, base = ring.to(self.dtype).split([mixer.width, mixer.scale.shape[1]], 2)
        new_value, new_base = inner.to(self.dtype).split([mixer.width, mixer.scale.shape[1]], 2)
        query, _, far_query, far_key = mixer.heads(new_base).unbind(2)
        query = rotate(query, (self.cos[place][:, None], self.sin[place][:, None]))
        key = rotate(mixer.heads(base)[:, :, 1], (self.cos, self.sin))
        # Use `bmm`, since `@` branches on whether the batch size is 1.
        scores = (query.bmm(key.mT) / mixer.chunk).relu().square()
        seen = torch.arange(mixer.chunk, device=x.device) <= place[:, None]
        y = (scores * seen[:, None]).bmm(value)
        y = y + far_query.bmm(state.sums) / (state.seen - place).clamp(min=1)[:, None, None]
        present, full = state.present + far_key.mT.bmm(new_value), (place == mixer.chunk - 1)[:, None, None]
        sums = torch.where(full, state.sums + present, state.sums)
        present = torch.where(full, torch.zeros_like(present), present)
        y = mixer.out(gate * y.to(inner.dtype))
        return y[:, 0], FixedFlashState(ring, sums, present, state.seen + 1)

    def take(self, state: StateTuple) -> FixedFlashState:
        window, sums, present, seen = state.parts
        return FixedFlashState(ring_of(window.tokens, self.mixer.chunk, seen), sums, present, seen)

    def give(self, state: FixedFlashState) -> StateTuple:
        window = Window(ring_tokens(state.ring, state.seen), self.mixer.chunk)
        return StateTuple((window, state.sums, state.present, state.seen))


class FixedRelativeAttention(FixedMixer):
    """`RelativeAttentionMixer` with a ring of the keys and values of the last ``memory + 1`` tokens."""

    positions: Tensor

    def __init__(self, mixer: RelativeAttentionMixer):
        super().__init__()
        self.mixer = mixer
        self.register_buffer("positions", mixer._positions().detach().flip(2))  # by lag, from 0

    def init_state(self, batch_size: int) -> FixedRingState:
        mixer = self.mixer
        ring = mixer.out.weight.new_zeros(batch_size, mixer.memory + 1, 2 * mixer.channels)
        return FixedRingState(ring, counter(ring))

    def step(self, x: Tensor, state: FixedRingState) -> tuple[Tensor, FixedRingState]:
        mixer = self.mixer
        query, pair = mixer.qkv(x).split([mixer.channels, 2 * mixer.channels], 1)
        ring = ring_write(state.ring, pair, state.seen)
        lags = ring_lags(ring, state.seen)
        query = query.unflatten(1, (mixer.heads, -1))
        key, value = (t.to(query.dtype).unflatten(2, (mixer.heads, -1)) for t in ring.chunk(2, 2))
        scores = ((query + mixer.content).to(query.dtype)[:, None] * key).sum(3)  # (batch, memory + 1, heads)
        by_place = (query + mixer.place).to(query.dtype).transpose(0, 1)
        by_lag = by_place.bmm(self.positions.to(query.dtype)).permute(1, 2, 0)
        scores = scores + by_lag[torch.arange(x.shape[0], device=x.device)[:, None], lags]
        met = (lags <= state.seen[:, None])[..., None]
        weights = (scores / math.sqrt(query.shape[2])).masked_fill(~met, float("-inf")).softmax(1).to(value.dtype)
        y = (weights[..., None] * value).sum(1)
        return mixer.out(y.flatten(1)), FixedRingState(ring, state.seen + 1)

    def take(self, state: StateTuple) -> FixedRingState:
        pairs, real = state.parts
        seen = real.tokens[..., 0].sum(1)  # no padding follows a row's first token
        return FixedRingState(ring_of(pairs.tokens, self.mixer.memory + 1, seen), seen)

    def give(self, state: FixedRingState) -> StateTuple:
        memory = self.mixer.memory
        pairs = ring_tokens(state.ring, state.seen)[:, 1:]
        real = torch.arange(memory, 0, -1, device=pairs.device) <= state.seen[:, None]
        return StateTuple((Window(pairs, memory), Window(real[..., None], memory)))
