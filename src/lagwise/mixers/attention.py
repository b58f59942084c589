"""Multi-head softmax attention, the mixer to compare with."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import torch
from torch import Tensor, nn

from lagwise.mixers.base import Mixer
from lagwise.ops import alibi_slopes, attention
from lagwise.tables import known

POSITIONS = ("alibi", "none")


class AttentionState(NamedTuple):
    """Keys and values so far, ``(batch, heads, n, width)``, and which are real, ``(batch, n)``."""

    key: Tensor
    value: Tensor
    mask: Tensor

    def map_batch(self, change: Callable[[Tensor], Tensor]) -> AttentionState:
        return AttentionState(*map(change, self))


class AttentionMixer(Mixer):
    """Softmax attention with ALiBi's linear biases or no positions of its own (TNN eq. 1, 6 and 9).

    Options: heads; position, ``alibi`` or ``none`` (learned positions are added to the embeddings by the model).
    ValueError if heads does not divide the channels. Streaming state: a key-value cache that grows with the text.
    """

    def __init__(self, channels: int, *, causal: bool = True, heads: int = 8, position: str = "alibi"):
        super().__init__(channels, causal)
        if heads < 1 or channels % heads:
            raise ValueError(f"heads must divide the {channels} channels, got {heads}")
        self.heads = heads
        self.position = known(position, POSITIONS, "position")
        self.qkv = nn.Linear(channels, 3 * channels)
        self.out = nn.Linear(channels, channels)

    def mix(self, x: Tensor, mask: Tensor | None) -> Tensor:
        return self._attend(*self._project(x), mask)

    def init_state(self, batch_size: int) -> AttentionState:
        self.require_causal()
        weight = self.out.weight
        empty = weight.new_zeros(batch_size, self.heads, 0, self.channels // self.heads)
        return AttentionState(empty, empty, weight.new_zeros((batch_size, 0), dtype=torch.bool))

    def prefill(self, x: Tensor, state: AttentionState, *, mask: Tensor | None = None) -> tuple[Tensor, AttentionState]:
        query, key, value = self._project(x)
        real = torch.ones(x.shape[:2], dtype=torch.bool, device=x.device) if mask is None else mask.bool()
        state = AttentionState(
            torch.cat([state.key.to(key.dtype), key], dim=2),
            torch.cat([state.value.to(value.dtype), value], dim=2),
            torch.cat([state.mask, real], dim=1),
        )
        return self._attend(query, state.key, state.value, state.mask), state

    def _project(self, x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        q, k, v = self.qkv(x).unflatten(2, (3, self.heads, -1)).permute(2, 0, 3, 1, 4)
        return q, k, v

    def _attend(self, query: Tensor, key: Tensor, value: Tensor, mask: Tensor | None) -> Tensor:
        slopes = alibi_slopes(self.heads) if self.position == "alibi" else None
        y = attention(query, key, value, causal=self.causal, slopes=slopes, mask=mask)
        return self.out(y.transpose(1, 2).flatten(2))
