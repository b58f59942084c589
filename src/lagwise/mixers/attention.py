"""Multi-head softmax attention, the baseline for other mixers."""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from lagwise.mixers.base import Mixer, check_heads
from lagwise.ops import Layout
from lagwise.ops.attention import alibi_slopes, attention
from lagwise.ops.constants import cached_tables
from lagwise.ops.window import Window, common
from lagwise.tables import known

POSITIONS = ("alibi", "none")


class AttentionState(NamedTuple):
    """Keys and values so far, windows ``(batch, heads, n, width)``, and the number of tokens of each row,
    ``(batch,)``."""

    key: Window
    value: Window
    seen: Tensor


class AttentionMixer(Mixer):
    """Softmax attention with ALiBi's linear biases or without positions (TNN eq. 1, 6 and 9).

    Options:
        heads: must divide the channels, ValueError otherwise.
        position: ``alibi`` or ``none`` (the model adds learned positions to the embeddings).

    Streaming state: a key-value cache that grows with the text.

    >>> AttentionMixer(8, heads=2)(torch.randn(2, 100, 8)).shape
    torch.Size([2, 100, 8])
    """

    grows = True
    takes_shards = True

    def __init__(self, channels: int, *, causal: bool = True, heads: int = 8, position: str = "alibi"):
        super().__init__(channels, causal)
        check_heads(channels, heads)
        self.heads = heads
        self.position = known(position, POSITIONS, "position")
        self.qkv = nn.Linear(channels, 3 * channels)
        self.out = nn.Linear(channels, channels)

    def mix(self, x: Tensor, state: AttentionState | None, layout: Layout) -> tuple[Tensor, Any]:
        if layout.shard is not None:
            return self._mix_shard(x, layout), None
        query, key, value = self._project(x)
        if state is None:
            return self.out(self._attend(query, key, value, layout.mask)), None
        seen = state.seen + (x.shape[1] if layout.mask is None else layout.mask.sum(1))
        key_window, value_window = state.key.append(key), state.value.append(value)
        keys, values = (window.tokens.to(query.dtype) for window in (key_window, value_window))
        real = None
        if layout.mask is not None or common(seen) != key_window.size:
            real = torch.arange(key_window.size - 1, -1, -1, device=x.device) < seen[:, None]
        return self.out(self._attend(query, keys, values, real)), AttentionState(key_window, value_window, seen)

    def _mix_shard(self, x: Tensor, layout: Layout) -> Tensor:
        """Split heads between processes: each attends with all tokens and its share of the heads."""
        shard, size = layout.shard, self.channels // self.heads
        first, end = shard.share(self.heads)

        def attend(joined: Tensor, layout: Layout) -> Tensor:
            query, key, value = joined.unflatten(2, (-1, 3, size)).permute(3, 0, 2, 1, 4)
            return self._attend(query, key, value, layout.mask, first, end)

        joined = torch.cat(self._project(x), 3).transpose(1, 2).flatten(2)
        return self.out(shard.by_channels(attend, joined, groups=self.heads, outputs=self.channels))

    def init_state(self, batch_size: int) -> AttentionState:
        self.require_causal()
        weight = next(self.parameters())
        like = torch.empty(0, dtype=weight.dtype, device=weight.device)  # the weight itself may be a quantized one
        empty = Window(like.new_zeros(batch_size, self.heads, 0, self.channels // self.heads), None)
        return AttentionState(empty, empty, like.new_zeros(batch_size, dtype=torch.long))

    def _project(self, x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        q, k, v = self.qkv(x).unflatten(2, (3, self.heads, -1)).permute(2, 0, 3, 1, 4)
        return q, k, v

    def _attend(
        self, query: Tensor, key: Tensor, value: Tensor, mask: Tensor | None, first: int = 0, end: int | None = None
    ) -> Tensor:
        """Attention by the heads from ``first`` to ``end``, ``(batch, n, channels)``."""
        slopes = None
        if self.position == "alibi":
            like = query.new_empty(0, dtype=torch.promote_types(query.dtype, torch.float32))
            (slopes,) = cached_tables(_slope_table, self.heads, like=like)
            slopes = slopes if end is None else slopes[first:end]
        y = attention(query, key, value, causal=self.causal, slopes=slopes, mask=mask)
        return y.transpose(1, 2).flatten(2)


def _slope_table(heads: int) -> tuple[Tensor]:
    return (alibi_slopes(heads),)
