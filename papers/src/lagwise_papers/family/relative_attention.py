"""Attention with relative positions and a memory of the last tokens, as in Transformer-XL."""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from lagwise.mixers.base import Mixer, check_heads
from lagwise.mixers.derived import Derived
from lagwise.ops import Layout
from lagwise.ops.operation import chunk_count, symbolic
from lagwise.ops.streaming import WindowState
from lagwise.ops.window import Window, extended, latest, ordered, recent
from lagwise.tables import check_integer


class LagKeys(NamedTuple):
    """``W_r r`` by lag, from memory to 0: ``(heads, d, memory + 1)``."""

    by_lag: Tensor


class RelativeAttentionMixer(Derived, Mixer):
    """Softmax attention to a token and the ``memory`` tokens before it, by content and by lag.

    Formula: ``s_ij = ((q_i + u)·k_j + (q_i + w)·W_r r_{i-j}) / sqrt(d)`` for ``0 <= i - j <= memory``, with learned u
    and w in each head and r the sines and cosines ``sin(l f), cos(l f)``, ``f = 10000**(-2 k / channels)``.

    Options:
        heads: must divide the channels.
        memory: in tokens.

    In the published training, texts are cut into segments, and a segment sees itself and a memory of earlier tokens,
    without gradients: how many tokens are seen depends on the position in the segment. Here every token sees equally
    many, as in the published evaluation by single tokens, also in training. Causal only. ValueError if heads does not
    divide the channels, and for options out of range.

    Streams in constant memory: keys and values of the last ``memory`` tokens.

    Source: Dai et al. 2019, "Transformer-XL", §3.3.
    """

    directions = (True,)
    takes_shards = True
    undecayed = ("content", "place")

    def __init__(self, channels: int, *, causal: bool = True, heads: int = 8, memory: int = 128):
        super().__init__(channels, causal)
        check_heads(channels, heads)
        self.heads, self.memory = heads, check_integer("memory", memory)
        self.qkv = nn.Linear(channels, 3 * channels)
        self.relative = nn.Linear(channels, channels, bias=False)
        self.content, self.place = (nn.Parameter(torch.empty(heads, channels // heads)) for _ in range(2))
        self.out = nn.Linear(channels, channels)
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Draw u and w from normal(0, 0.02), as published."""
        for parameter in (self.content, self.place):
            nn.init.normal_(parameter, std=0.02)

    def mix(self, x: Tensor, state: WindowState | None, layout: Layout) -> tuple[Tensor, Any]:
        if state is None:
            return layout.near(self._mix_tokens, x, self.memory, 0), None
        ring, seen = state
        query, new, now = self._project(x, layout)
        past = ordered(ring, seen)
        past = past[:, max(0, past.shape[1] - self.memory) :].to(new.dtype)
        before = torch.arange(past.shape[1] - 1, -1, -1, device=x.device) < seen[:, None]
        y = self._attend(query, torch.cat([past, new], 1), torch.cat([before, now], 1))
        return y, WindowState(extended(ring, new, seen), seen + now.sum(1))

    def _mix_tokens(self, x: Tensor, layout: Layout) -> Tensor:
        return self._attend(*self._project(x, layout))

    def _project(self, x: Tensor, layout: Layout) -> tuple[Tensor, Tensor, Tensor]:
        """Compute queries, pairs of keys and values, and which of them are real."""
        query, pairs = self.qkv(x).split([self.channels, 2 * self.channels], 2)
        return query, pairs, x.new_ones(x.shape[:2], dtype=torch.bool) if layout.mask is None else layout.mask

    def derive(self, form: str = "eager") -> Any:
        return LagKeys(self._positions())

    def init_state(self, batch_size: int) -> WindowState:
        self.require_causal()
        self.derived(checked=True)
        weight = self.out.weight
        window = Window.empty(batch_size, 2 * self.channels, self.memory + 1, like=weight)
        return WindowState(window, torch.zeros(batch_size, dtype=torch.long, device=weight.device))

    def mix_token(self, x: Tensor, state: WindowState) -> tuple[Tensor, WindowState]:
        ring, seen = state
        query, pair = self.qkv(x).split([self.channels, 2 * self.channels], 1)
        ring = extended(ring, pair[:, None], seen)
        met = recent(ring, (seen + 1).clamp(max=self.memory + 1), seen)
        query = query.unflatten(1, (self.heads, -1))[:, :, None]  # (batch, heads, 1, d)
        pairs = latest(ring, met).to(query.dtype)
        key, value = (t.unflatten(2, (self.heads, -1)).transpose(1, 2) for t in pairs.chunk(2, 2))
        by_lag = (query + self.place[:, None]).to(query.dtype) @ self.derived().by_lag.to(query.dtype)
        lags = self.memory - met.lags
        if met.lags.dim() == 1:
            by_lag = by_lag[..., lags]
        else:
            by_lag = by_lag.gather(3, lags[:, None, None].expand(-1, self.heads, 1, -1))
        scores = ((query + self.content[:, None]).to(query.dtype) @ key.mT + by_lag) / math.sqrt(query.shape[3])
        if met.allowed is not None:
            scores = scores.masked_fill(~met.allowed[:, None, None], float("-inf"))
        y = scores.softmax(3).to(value.dtype) @ value
        return self.out(y.flatten(1)), WindowState(ring, seen + 1)

    def _attend(self, query: Tensor, pairs: Tensor, real: Tensor) -> Tensor:
        """Attend from queries ``(batch, n, channels)`` to keys and values of these tokens and at most memory tokens
        before them."""
        n, memory = query.shape[1], self.memory
        # Queries are processed in blocks, which see a window of memory + size keys.
        size = memory if symbolic(n) else min(n, memory)
        padding = chunk_count(n, size) * size - n if symbolic(n) else -n % size
        front = memory - (pairs.shape[1] - n)
        query = F.pad(query, (0, 0, 0, padding)).unflatten(1, (-1, size)).unflatten(3, (self.heads, -1)).transpose(2, 3)
        pairs = F.pad(pairs, (0, 0, front, padding)).unfold(1, memory + size, size)  # (batch, blocks, 2 channels, keys)
        key, value = (t.unflatten(2, (self.heads, -1)) for t in pairs.chunk(2, 2))
        real = F.pad(real, (front, padding)).unfold(1, memory + size, size)[:, :, None, None]
        scores = (query + self.content[:, None]).to(query.dtype) @ key
        by_lag = (query + self.place[:, None]).to(query.dtype) @ self._positions().to(query.dtype)
        # Lag memory is first, so row i starts at key i. Rows one longer than the window shift it there.
        moved = F.pad(by_lag, (0, size)).flatten(3)[..., : size * (memory + size)].unflatten(3, (size, memory + size))
        index = torch.arange(memory + size, device=query.device) - torch.arange(size, device=query.device)[:, None]
        seen = (index == memory) | (real & (index >= 0) & (index <= memory))  # itself, for padding
        scores = ((scores + moved) / math.sqrt(query.shape[4])).masked_fill(~seen, float("-inf"))
        y = scores.softmax(4).to(value.dtype) @ value.mT
        return self.out(y.transpose(2, 3).flatten(3).flatten(1, 2)[:, :n])

    def _positions(self) -> Tensor:
        """Compute ``W_r r`` for lags memory to 0: ``(heads, d, memory + 1)``."""
        dtype = torch.promote_types(self.relative.weight.dtype, torch.float32)
        rates = 10000.0 ** (
            -torch.arange(0, self.channels, 2, dtype=dtype, device=self.out.weight.device) / self.channels
        )
        angle = torch.arange(self.memory, -1, -1, dtype=dtype, device=rates.device)[:, None] * rates
        waves = torch.cat([angle.sin(), angle.cos()], 1)[:, : self.channels].to(self.relative.weight.dtype)
        return self.relative(waves).unflatten(1, (self.heads, -1)).permute(1, 2, 0)
