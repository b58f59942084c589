"""Attention with relative positions and a memory of the last tokens, as in Transformer-XL."""

from __future__ import annotations

import math

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from lagwise.mixers.base import Mixer, StateTuple, check_heads
from lagwise.ops import Layout
from lagwise.ops.symbolic import pieces, symbolic
from lagwise.ops.window import Window
from lagwise.tables import whole_number


class RelativeAttentionMixer(Mixer):
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
    undecayed = ("content", "place")

    def __init__(self, channels: int, *, causal: bool = True, heads: int = 8, memory: int = 128):
        super().__init__(channels, causal)
        check_heads(channels, heads)
        self.heads, self.memory = heads, whole_number("memory", memory)
        self.qkv = nn.Linear(channels, 3 * channels)
        self.relative = nn.Linear(channels, channels, bias=False)
        self.content, self.place = (nn.Parameter(torch.empty(heads, channels // heads)) for _ in range(2))
        self.out = nn.Linear(channels, channels)
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """u and w normal(0, 0.02), as published."""
        for parameter in (self.content, self.place):
            nn.init.normal_(parameter, std=0.02)

    def mix(self, x: Tensor, layout: Layout) -> Tensor:
        query, pairs = self.qkv(x).split([self.channels, 2 * self.channels], 2)
        real = torch.ones(x.shape[:2], dtype=torch.bool, device=x.device) if layout.mask is None else layout.mask
        return self._attend(query, pairs, real)

    def init_state(self, batch_size: int) -> StateTuple:
        self.require_causal()
        weight = self.out.weight
        real = Window(weight.new_zeros((batch_size, 0, 1), dtype=torch.bool), self.memory)
        return StateTuple((Window.empty(batch_size, 2 * self.channels, self.memory, like=weight), real))

    def mix_next(self, x: Tensor, state: StateTuple, mask: Tensor | None) -> tuple[Tensor, StateTuple]:
        pairs, real = state.parts
        query, new = self.qkv(x).split([self.channels, 2 * self.channels], 2)
        if pairs.size == 0:  # the first tokens determine the dtype: under autocast that of the projections
            pairs = Window.empty(len(x), new.shape[2], self.memory, like=new)
        seen = torch.ones(x.shape[:2], dtype=torch.bool, device=x.device) if mask is None else mask.bool()
        keys = torch.cat([pairs.tokens.to(new.dtype), new], 1)
        y = self._attend(query, keys, torch.cat([real.tokens[..., 0], seen], 1))
        return y, StateTuple((pairs.append(new), real.append(seen[..., None])))

    def _attend(self, query: Tensor, pairs: Tensor, real: Tensor) -> Tensor:
        """From queries ``(batch, n, channels)`` to keys and values of these tokens and at most memory tokens before
        them."""
        n, memory = query.shape[1], self.memory
        # Queries are processed in blocks, which see a window of memory + size keys.
        size = memory if symbolic(n) else min(n, memory)
        rest = pieces(n, size) * size - n if symbolic(n) else -n % size
        front = memory - (pairs.shape[1] - n)
        query = F.pad(query, (0, 0, 0, rest)).unflatten(1, (-1, size)).unflatten(3, (self.heads, -1)).transpose(2, 3)
        pairs = F.pad(pairs, (0, 0, front, rest)).unfold(1, memory + size, size)  # (batch, blocks, 2 channels, keys)
        key, value = (t.unflatten(2, (self.heads, -1)) for t in pairs.chunk(2, 2))
        real = F.pad(real, (front, rest)).unfold(1, memory + size, size)[:, :, None, None]
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
        """``W_r r`` for lags memory to 0: ``(heads, d, memory + 1)``."""
        dtype = torch.promote_types(self.relative.weight.dtype, torch.float32)
        rates = 10000.0 ** (
            -torch.arange(0, self.channels, 2, dtype=dtype, device=self.out.weight.device) / self.channels
        )
        angle = torch.arange(self.memory, -1, -1, dtype=dtype, device=rates.device)[:, None] * rates
        waves = torch.cat([angle.sin(), angle.cos()], 1)[:, : self.channels].to(self.relative.weight.dtype)
        return self.relative(waves).unflatten(1, (self.heads, -1)).permute(1, 2, 0)
