"""Attention within chunks, as MEGA and TCNCA use it together with a convolution."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from lagwise.mixers.base import Mixer, check_heads
from lagwise.ops import Layout, chunked_attention
from lagwise.ops.attention import (
    ATTENTION_FUNCTIONS,
    first_real,
    lag_matrix,
    pair_attention,
    rotary,
    rotary_factors,
    rotate,
)
from lagwise.ops.packing import check_unbroken
from lagwise.ops.symbolic import symbolic
from lagwise.ops.window import Window
from lagwise.tables import known, whole_number

POSITIONS = ("none", "rope", "simple", "rotary")
_INITIAL_STD = 0.02


class ChunkState(NamedTuple):
    """The last chunk of a stream.

    key and value: windows of at most one chunk, ``(batch, n, heads * size)``; keys are already rotated. seen: tokens so
    far. padding: how many of them come before each row's text, ``(batch,)``; None if none in any row. bias: added to
    scores, ``(heads, 2 * chunk - 1)`` by lag, or None.
    """

    key: Window
    value: Window
    seen: int
    padding: Tensor | None
    bias: Tensor | None

    def map_batch(self, change: Callable[[Tensor], Tensor]) -> ChunkState:
        return self._replace(
            key=self.key.map_batch(change),
            value=self.value.map_batch(change),
            padding=None if self.padding is None else change(self.padding),
        )

    @staticmethod
    def join(states: Sequence[ChunkState]) -> ChunkState:
        key, value = Window.join([state.key for state in states]), Window.join([state.value for state in states])
        first, seen = states[0], max(state.seen for state in states)
        none = torch.zeros((), dtype=torch.long, device=key.tokens.device)
        padding = torch.cat(
            [(none if s.padding is None else s.padding).expand(s.key.tokens.shape[0]) + (seen - s.seen) for s in states]
        )
        # Positions before the longest text are dropped: the counts refer to it.
        least = int(padding.min())
        padding = padding - least
        return ChunkState(key, value, seen - least, padding if padding.any() else None, first.bias)


class ChunkedAttention(nn.Module):
    """Attention within chunks, between given queries, keys and values (TCNCA §2 and fig. 1).

    Options:
        heads: number of heads.
        chunk: window in tokens.
        evaluation_chunk: window in evaluation mode (None: the same; TCNCA app. F trains with 2048 and evaluates with
            4096).
        function: as in `pair_attention`.
        position: ``none``; ``rope``: queries and keys are rotated by their position in the chunk (TCNCA app. F);
            ``simple``: a table of biases (MEGA app. D.1), one per lag and head, for windows up to the larger of chunk
            and evaluation_chunk, where lags that training never meets keep their initial values; ``rotary``: MEGA's
            bias ``<R_i a, R_j b>`` with learned a and b for each head, for windows of any width.

    A stream keeps the window that it started with. ValueError for widths below 1, unknown names, or an odd query_size
    with ``rope`` or ``rotary``.
    """

    undecayed = ("lag_table", "rotary_pair")

    def __init__(
        self,
        query_size: int,
        *,
        heads: int = 1,
        causal: bool = True,
        chunk: int = 128,
        evaluation_chunk: int | None = None,
        function: str = "softmax",
        position: str = "rope",
    ):
        super().__init__()
        for name, width in (("query_size", query_size), ("heads", heads), ("chunk", chunk)):
            whole_number(name, width)
        if evaluation_chunk is not None:
            whole_number("evaluation_chunk", evaluation_chunk)
        self.query_size, self.heads, self.causal = query_size, heads, causal
        self.chunk, self.evaluation_chunk = chunk, evaluation_chunk or chunk
        self.function: str = known(function, ATTENTION_FUNCTIONS, "function")
        self.position: str = known(position, POSITIONS, "position")
        if position in ("rope", "rotary") and query_size % 2:
            raise ValueError(f"position {position!r} needs an even size of queries, got {query_size}")
        widest = max(self.chunk, self.evaluation_chunk)
        self.lag_table: nn.Parameter | None = None
        self.rotary_pair: nn.Parameter | None = None
        if position == "simple":
            self.lag_table = nn.Parameter(torch.empty(heads, 2 * widest - 1))
        if position == "rotary":
            self.rotary_pair = nn.Parameter(torch.empty(2, heads, query_size))
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """As in MEGA: position parameters start as normal(0, 0.02)."""
        for parameter in (self.lag_table, self.rotary_pair):
            if parameter is not None:
                nn.init.normal_(parameter, std=_INITIAL_STD)

    @property
    def window(self) -> int:
        """The chunk in the current mode, training or evaluation."""
        return self.chunk if self.training else self.evaluation_chunk

    def forward(self, query: Tensor, key: Tensor, value: Tensor, mask: Tensor | None = None) -> Tensor:
        """Attend over whole sequences. Shapes as in `chunked_attention`."""
        length, chunk = query.shape[2], self.window
        if self.position == "rope":
            number = torch.arange(length, device=query.device)
            if mask is not None:
                number = number - first_real(mask)[:, None]
            query, key = _rotated(query, key, number, chunk)
        bias = self._lag_bias(chunk if symbolic(length) else min(chunk, length))
        return self._in_chunks(query, key, value, chunk, bias, mask)

    def init_state(self, batch_size: int, value_size: int) -> ChunkState:
        """The state before the first token. ValueError if bidirectional."""
        if not self.causal:
            raise ValueError("bidirectional attention has no streaming state; build it with causal=True")
        # No dtype or device is known yet: the first prefill takes those of its keys and values.
        empty, chunk = torch.empty(0), self.window
        key, value = (
            Window.empty(batch_size, self.heads * n, chunk, like=empty) for n in (self.query_size, value_size)
        )
        return ChunkState(key, value, 0, None, self._lag_bias(chunk))

    def prefill(
        self, query: Tensor, key: Tensor, value: Tensor, state: ChunkState, mask: Tensor | None = None
    ) -> tuple[Tensor, ChunkState]:
        """Attend from the next ``n >= 1`` tokens of every row. Returns the result and the state after them.

        Shapes as in `forward`. Padding may come before a row's text, and after it in the last call, but not within
        (ValueError). A few tokens meet the window directly, O(n * chunk). More than a chunk are cut into chunks; rows
        that are out of step are aligned, which wastes less than one chunk of work.
        """
        n, seen, chunk = query.shape[2], state.seen, state.key.reach
        assert chunk is not None
        padding = _padding(state, mask, n)
        number = torch.arange(seen, seen + n, device=query.device)
        if self.position == "rope":
            query, key = _rotated(query, key, number if padding is None else number - padding[:, None], chunk)
        # In step, all rows have seen equally many tokens of the current chunk; otherwise any number.
        kept = seen % chunk if padding is None else min(seen, chunk - 1)
        keys, key_window = self._extended(state.key, key, kept, seen)
        values, value_window = self._extended(state.value, value, kept, seen)
        after = ChunkState(key_window, value_window, seen + n, padding, state.bias)
        number = torch.arange(seen - kept, seen + n, device=query.device)
        if padding is not None:
            number = number - padding[:, None]
        if kept and n <= chunk:
            return self._few(query, keys, values, number, chunk, state.bias, padding is None), after
        real = None
        if padding is not None:  # tokens before a row's current chunk count as padding
            real = number >= ((seen - padding).clamp(min=0) // chunk * chunk)[:, None]
        y = self._in_chunks(F.pad(query, (0, 0, kept, 0)), keys, values, chunk, state.bias, real)
        return y[:, :, kept:], after

    def _few(
        self,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        number: Tensor,
        chunk: int,
        bias: Tensor | None,
        in_step: bool,
    ) -> Tensor:
        """The last n tokens as queries; number ``(m,)`` or ``(batch, m)``, a key's position in its row."""
        n, m = query.shape[2], key.shape[2]
        index = torch.arange(m, device=query.device)
        lags = index[m - n :, None] - index
        allowed = None
        if not in_step or n > 1:  # one token in step with the others sees all tokens kept
            home = number.div(chunk, rounding_mode="floor")
            allowed = (home[..., m - n :, None] == home[..., None, :]) & (lags >= 0)
            allowed = allowed if in_step else allowed[:, None]
        if bias is not None:
            bias = bias[:, lags.clamp(max=chunk - 1) + chunk - 1]
        return pair_attention(query, key, value, function=self.function, bias=bias, allowed=allowed)

    def _in_chunks(
        self, query: Tensor, key: Tensor, value: Tensor, chunk: int, lag_bias: Tensor | None, mask: Tensor | None
    ) -> Tensor:
        bias = None
        if lag_bias is not None:
            length = query.shape[2]
            bias = lag_matrix(_nearest(lag_bias, chunk if symbolic(length) else min(chunk, length)))
        return chunked_attention(
            query, key, value, chunk=chunk, causal=self.causal, function=self.function, bias=bias, mask=mask
        )

    def _lag_bias(self, reach: int) -> Tensor | None:
        """Biases ``(heads, 2 * reach - 1)``, lag ``-(reach - 1)`` first."""
        if self.lag_table is not None:
            return _nearest(self.lag_table, reach)
        if self.rotary_pair is None:
            return None
        # Copy: weights mapped from a file may have any address, and complex numbers need an aligned one.
        a, b = self.rotary_pair[:, :, None].clone()
        lags = torch.arange(1 - reach, reach, device=a.device)
        return (rotary(a.expand(-1, len(lags), -1), lags) * b).sum(-1)

    def _extended(self, window: Window, x: Tensor, kept: int, seen: int) -> tuple[Tensor, Window]:
        """The last ``kept`` tokens of the window and the new ones, ``(batch, heads, kept + n, size)``, and the window
        after them."""
        new = x.transpose(1, 2).flatten(2)
        if seen == 0:
            window = Window.empty(new.shape[0], new.shape[2], window.reach, like=new)
        after, total = window.append(new), kept + new.shape[1]
        if kept == 0:
            tokens = new
        elif total <= after.size:
            tokens = after.tokens[:, after.size - total :]
        else:
            tokens = torch.cat([window.tokens[:, window.size - kept :].to(new.dtype), new], dim=1)
        return tokens.to(new.dtype).unflatten(2, (self.heads, -1)).transpose(1, 2), after


class ChunkedAttentionMixer(Mixer):
    """Attention within chunks with its own projections (TCNCA §2 and fig. 1).

    Options:
        heads: must divide the channels (the papers have one).
        chunk: window in tokens.
        evaluation_chunk: window in evaluation mode; by default the same.
        function: ``softmax``, ``laplace`` or ``relu2``, as in `pair_attention`.
        position: ``none``, ``rope``, ``simple`` or ``rotary``, as in `ChunkedAttention`.

    Streaming state: at most one chunk of keys and values.
    """

    def __init__(
        self,
        channels: int,
        *,
        causal: bool = True,
        heads: int = 1,
        chunk: int = 128,
        evaluation_chunk: int | None = None,
        function: str = "softmax",
        position: str = "rope",
    ):
        super().__init__(channels, causal)
        check_heads(channels, heads)
        self.attention = ChunkedAttention(
            channels // heads,
            heads=heads,
            causal=causal,
            chunk=chunk,
            evaluation_chunk=evaluation_chunk,
            function=function,
            position=position,
        )
        self.qkv = nn.Linear(channels, 3 * channels)
        self.out = nn.Linear(channels, channels)

    def mix(self, x: Tensor, layout: Layout) -> Tensor:
        return self._joined(self.attention(*self._project(x), layout.mask))

    def init_state(self, batch_size: int) -> ChunkState:
        self.require_causal()
        return self.attention.init_state(batch_size, self.channels // self.attention.heads)

    def mix_next(self, x: Tensor, state: ChunkState, mask: Tensor | None) -> tuple[Tensor, ChunkState]:
        y, state = self.attention.prefill(*self._project(x), state, mask)
        return self._joined(y), state

    def _project(self, x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        q, k, v = self.qkv(x).unflatten(2, (3, self.attention.heads, -1)).permute(2, 0, 3, 1, 4)
        return q, k, v

    def _joined(self, y: Tensor) -> Tensor:
        return self.out(y.transpose(1, 2).flatten(2))


def _rotated(query: Tensor, key: Tensor, number: Tensor, chunk: int) -> tuple[Tensor, Tensor]:
    """Query and key rotated by their position in the chunk; number: their position in the row, as in `rotary`."""
    factors = rotary_factors(number % chunk, query.shape[3], dtype=query.dtype, limit=chunk)
    return rotate(query, factors), rotate(key, factors)


def _nearest(lag_bias: Tensor, reach: int) -> Tensor:
    """The biases of lags shorter than reach, from biases by lag."""
    centre = lag_bias.shape[1] // 2
    return lag_bias[:, centre + 1 - reach : centre + reach]


def _padding(state: ChunkState, mask: Tensor | None, n: int) -> Tensor | None:
    """Padding before each row's text, after n more tokens; all of them count in a row of only padding."""
    if mask is not None:
        check_unbroken(mask.bool(), state.seen > 0 if state.padding is None else state.padding < state.seen)
    if mask is None or (state.seen and state.padding is None):
        return state.padding
    length = torch.where(mask.any(dim=1), first_real(mask), n)
    if state.padding is not None:
        return torch.where(state.padding == state.seen, state.seen + length, state.padding)
    return length if torch.compiler.is_compiling() or length.any() else None
