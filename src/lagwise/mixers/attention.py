"""Multi-head softmax attention, the baseline for other mixers."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple

import torch
from torch import Tensor, nn

from lagwise.mixers.base import Mixer, check_heads
from lagwise.ops import Layout
from lagwise.ops.attention import alibi_slopes, attention
from lagwise.ops.window import Window
from lagwise.tables import known

POSITIONS = ("alibi", "none")


class AttentionState(NamedTuple):
    """Keys and values so far, ``(batch * heads, n, width)``, and which of them are real, ``(batch, n, 1)``."""

    key: Window
    value: Window
    real: Window

    def map_batch(self, change: Callable[[Tensor], Tensor]) -> AttentionState:
        heads = len(self.key.tokens) // max(1, len(self.real.tokens))

        def by_row(t: Tensor) -> Tensor:
            return change(t.unflatten(0, (-1, heads))).flatten(0, 1)

        key, value = self.key.map_batch(by_row), self.value.map_batch(by_row)
        return AttentionState(key, value, self.real.map_batch(change))._trimmed()

    @staticmethod
    def join(states: Sequence[AttentionState]) -> AttentionState:
        return AttentionState(*map(Window.join, zip(*states, strict=True)))._trimmed()

    def _trimmed(self) -> AttentionState:
        """Drop the positions before every row's text: they would grow forever in a batch that rows join and leave."""
        if torch.compiler.is_compiling() or self.real.tokens.numel() == 0:
            return self
        real = self.real.tokens.any(0)
        start = int(real.int().argmax()) if real.any() else len(real)
        return self if start == 0 else AttentionState(*(window.last(len(real) - start) for window in self))


class AttentionMixer(Mixer):
    """Softmax attention with ALiBi's linear biases or without positions (TNN eq. 1, 6 and 9).

    Options:
        heads: must divide the channels, ValueError otherwise.
        position: ``alibi`` or ``none`` (the model adds learned positions to the embeddings).

    Streaming state: a key-value cache that grows with the text.
    """

    def __init__(self, channels: int, *, causal: bool = True, heads: int = 8, position: str = "alibi"):
        super().__init__(channels, causal)
        check_heads(channels, heads)
        self.heads = heads
        self.position = known(position, POSITIONS, "position")
        self.qkv = nn.Linear(channels, 3 * channels)
        self.out = nn.Linear(channels, channels)

    def mix(self, x: Tensor, layout: Layout) -> Tensor:
        query, key, value = self._project(x)
        return self._attend(query, key, value, layout.mask)

    def init_state(self, batch_size: int) -> AttentionState:
        self.require_causal()
        weight = next(self.parameters())
        like = torch.empty(0, dtype=weight.dtype, device=weight.device)  # the weight itself may be a quantized one
        key = Window.empty(batch_size * self.heads, self.channels // self.heads, None, like=like)
        return AttentionState(key, key, Window(like.new_zeros((batch_size, 0, 1), dtype=torch.bool), None))

    def mix_next(self, x: Tensor, state: AttentionState, mask: Tensor | None) -> tuple[Tensor, AttentionState]:
        query, *new = self._project(x)
        real = torch.ones(x.shape[:2], dtype=torch.bool, device=x.device) if mask is None else mask.bool()
        seen = state.real.append(real[..., None])
        if state.key.size == 0:  # the first tokens determine the dtype: under autocast that of the projections
            empty = Window.empty(len(state.key.tokens), new[0].shape[3], None, like=new[0])
            state = state._replace(key=empty, value=empty)
        key, value = (old.append(t.flatten(0, 1)) for old, t in zip((state.key, state.value), new, strict=True))
        state = AttentionState(key, value, seen)
        key, value = (window.tokens.to(query.dtype).unflatten(0, (-1, self.heads)) for window in (key, value))
        return self._attend(query, key, value, state.real.tokens[..., 0]), state

    def _project(self, x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        q, k, v = self.qkv(x).unflatten(2, (3, self.heads, -1)).permute(2, 0, 3, 1, 4)
        return q, k, v

    def _attend(self, query: Tensor, key: Tensor, value: Tensor, mask: Tensor | None) -> Tensor:
        slopes = alibi_slopes(self.heads) if self.position == "alibi" else None
        y = attention(query, key, value, causal=self.causal, slopes=slopes, mask=mask)
        return self.out(y.transpose(1, 2).flatten(2))
