"""Attention within chunks, as MEGA and TCNCA use it together with a convolution."""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.fx.experimental.symbolic_shapes import has_static_value

from lagwise.kernels.base import cached
from lagwise.mixers.base import Mixer, check_heads, padded_prefill
from lagwise.mixers.derived import Derived
from lagwise.ops import Layout, chunked_attention
from lagwise.ops.attention import (
    ATTENTION_FUNCTIONS,
    first_real,
    pair_attention,
    rotary,
    rotary_factors,
    rotate,
)
from lagwise.ops.operation import traced
from lagwise.ops.packing import per_document
from lagwise.ops.shards import Shard, Span
from lagwise.ops.window import Window, common, extended, latest, recent
from lagwise.tables import check_integer, known

POSITIONS = ("none", "rope", "simple", "rotary")
_INITIAL_STD = 0.02


class ChunkState(NamedTuple):
    """The last chunk of a stream, or the last two if chunks slide: windows of keys, already rotated, and values,
    ``(batch, n, heads * size)``, and the number of tokens of each row, ``(batch,)``."""

    key: Window | Tensor
    value: Window | Tensor
    seen: Tensor


class LagBias(NamedTuple):
    """Biases by lag, ``(heads, 2 reach - 1)``, lag ``-(reach - 1)`` first; None if there are none."""

    bias: Tensor | None


class ChunkedAttention(Derived):
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
        sliding: whether a token also sees the whole chunk before its own, if causal (Gecko). ``rope`` then rotates by
            the position in the text.

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
        sliding: bool = False,
    ):
        super().__init__()
        evaluation_chunk = chunk if evaluation_chunk is None else evaluation_chunk
        widths = {"query_size": query_size, "heads": heads, "chunk": chunk, "evaluation_chunk": evaluation_chunk}
        for name, width in widths.items():
            check_integer(name, width)
        self.query_size, self.heads, self.causal = query_size, heads, causal
        self.chunk, self.evaluation_chunk = chunk, evaluation_chunk
        self.function: str = known(function, ATTENTION_FUNCTIONS, "function")
        self.position: str = known(position, POSITIONS, "position")
        if position in ("rope", "rotary") and query_size % 2:
            raise ValueError(f"position {position!r} needs an even size of queries, got {query_size}")
        if sliding and not causal:
            raise ValueError("sliding chunks need causal attention: a token sees the chunk before its own")
        self.chunks = 2 if sliding else 1  # chunks that a token sees
        self.widest = max(self.chunk, self.evaluation_chunk) * self.chunks  # tokens that a stream may keep
        self.lag_table: nn.Parameter | None = None
        self.rotary_pair: nn.Parameter | None = None
        if position == "simple":
            self.lag_table = nn.Parameter(torch.empty(heads, 2 * self.widest - 1))
        if position == "rotary":
            self.rotary_pair = nn.Parameter(torch.empty(2, heads, query_size))
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Initialise as MEGA: position parameters start as normal(0, 0.02)."""
        for parameter in (self.lag_table, self.rotary_pair):
            if parameter is not None:
                nn.init.normal_(parameter, std=_INITIAL_STD)

    @property
    def window(self) -> int:
        """The chunk in the current mode, training or evaluation."""
        return self.chunk if self.training else self.evaluation_chunk

    @property
    def sliding(self) -> bool:
        """Whether a token also sees the chunk before its own."""
        return self.chunks == 2

    def forward(self, query: Tensor, key: Tensor, value: Tensor, mask: Tensor | None = None) -> Tensor:
        """Attend over whole sequences. Shapes as in `chunked_attention`."""
        length, chunk = query.shape[2], self.window
        if self.position == "rope":
            position = torch.arange(length, device=query.device)
            if mask is not None:
                position = position - first_real(mask)[:, None]
            query, key = self._rotated(query, key, position, chunk)
        reach = self.chunks * chunk if not has_static_value(length) or length > chunk else length
        return self._in_chunks(query, key, value, chunk, self._lag_bias(reach), mask)

    def run(
        self, query: Tensor, key: Tensor, value: Tensor, state: ChunkState | None, layout: Layout
    ) -> tuple[Tensor, ChunkState | None]:
        """Attend over whole sequences, which may be packed or split between processes, or, with a state, from the next
        tokens of a stream. Returns the result and the state after them.

        Shapes: query, key, value and the result ``(batch, n, heads * size)``. A process attends in all chunks that its
        shard has tokens of: it needs no others where shards end with chunks. In a stream, a row with padding continues
        as if it had only its real tokens. A few tokens meet the window directly, O(n * chunk). More than a chunk are
        cut into chunks; rows that are out of step are aligned, which wastes less than one chunk of work (two if chunks
        slide).
        """
        if state is not None and layout.mask is None:
            step = query.shape[1] == 1
            return self.mix_token(query, key, value, state) if step else self._next(query, key, value, state)
        sizes = [t.shape[2] for t in (query, key, value)]

        def whole(x: Tensor, layout: Layout) -> Tensor:
            return _rows(self(*map(self._by_head, x.split(sizes, 2)), layout.mask))

        def attend(x: Tensor, state: ChunkState, layout: Layout) -> tuple[Tensor, ChunkState]:
            query, key, value = x.split(sizes, 2)
            return self._next(query, key, value, state, layout.mask)

        if state is None and layout.seq_idx is None and layout.shard is None:
            return _rows(self(*map(self._by_head, (query, key, value)), layout.mask)), None
        x = torch.cat([query, key, value], 2)
        if state is not None:
            y, after = padded_prefill(attend, x, state, Layout(layout.mask))
            return y[..., : sizes[2]], after
        if layout.shard is None:
            return per_document(whole, x, layout), None
        chunks = _chunks(layout.shard, self.window, causal=self.causal, sliding=self.sliding)
        return layout.shard.within(whole, x, *chunks), None

    def derive(self, form: str = "eager") -> Any:
        return LagBias(self._lag_bias(self.widest))  # a stream keeps its window, whatever the mode in a later step

    def init_state(self, batch_size: int, value_size: int, *, like: Tensor) -> ChunkState:
        """The state before the first token, for values of this width over all heads, with the device and, until then,
        the dtype of ``like``. ValueError if bidirectional."""
        if not self.causal:
            raise ValueError("bidirectional attention has no streaming state; build it with causal=True")
        self.derived(checked=True)
        reach, widths = self.chunks * self.window, (self.heads * self.query_size, value_size)
        key, value = (Window.empty(batch_size, width, reach, like=like) for width in widths)
        return ChunkState(key, value, torch.zeros(batch_size, dtype=torch.long, device=like.device))

    def _next(
        self, query: Tensor, key: Tensor, value: Tensor, state: ChunkState, mask: Tensor | None = None
    ) -> tuple[Tensor, ChunkState]:
        """Mix several tokens, with padding only before the first of a row, for states that are no rings."""
        assert isinstance(state.key, Window)
        assert isinstance(state.value, Window)
        n, seen, reach, stored = query.shape[1], state.seen, _reach(state), state.key.size
        chunk = reach // self.chunks
        before = reach - chunk  # tokens of the chunk before a token's own that it sees
        position = torch.arange(n, device=query.device)
        together = common(seen) if mask is None else None  # rows in step have seen equally many tokens
        if together is not None:
            position, n_past = position + together, min(stored, together % chunk + before)
        else:
            start = seen if mask is None else seen - torch.where(mask.any(1), first_real(mask), n)
            position, n_past = position + start[:, None], min(stored, reach - 1)
        query, key = self._by_head(query), self._by_head(key)
        if self.position == "rope":
            query, key = self._rotated(query, key, position, chunk)
        key = _rows(key)
        keys, values = (
            self._by_head(torch.cat([window.latest(n_past).to(new.dtype), new], 1))
            for window, new in ((state.key, key), (state.value, value))
        )
        count = n if mask is None else mask.sum(1)
        after = ChunkState(state.key.append(key), state.value.append(value), seen + count)
        index, bias = torch.arange(n_past + n, device=query.device), self._lag_bias(reach)
        if n_past and n <= chunk:
            lags, visible = index[n_past:, None] - index, self._visible(position, chunk)[..., None]
            return _rows(self._attend(query, keys, values, lags, (lags >= 0) & (lags < visible), bias)), after
        real = None
        if together is None:  # tokens before the chunks that a row's next token sees count as padding
            real = position[:, :1] - n_past + index >= ((seen // chunk * chunk - before).clamp(min=0))[:, None]
        y = self._in_chunks(F.pad(query, (0, 0, n_past, 0)), keys, values, chunk, bias, real)
        return _rows(y[:, :, n_past:]), after

    def mix_token(self, query: Tensor, key: Tensor, value: Tensor, state: ChunkState) -> tuple[Tensor, ChunkState]:
        """`run` for one token of every row: a pure function of tensors (see `Mixer.mix_token`)."""
        seen, reach = state.seen, _reach(state)
        chunk, query = reach // self.chunks, self._by_head(query)
        if self.position == "rope":
            factors = self._rotations(seen, chunk, query.dtype)
            query, key = rotate(query, *factors), _rows(rotate(self._by_head(key), *factors))
        keys, values = extended(state.key, key, seen), extended(state.value, value, seen)
        met = recent(keys, self._visible(seen, chunk), seen)
        met_keys, met_values = (self._by_head(latest(window, met).to(query.dtype)) for window in (keys, values))
        allowed, bias = None if met.allowed is None else met.allowed[:, None], _nearest(self.derived().bias, reach)
        y = self._attend(query, met_keys, met_values, met.lags[..., None, :], allowed, bias)
        return _rows(y), ChunkState(keys, values, seen + 1)

    def _visible(self, position: Tensor, chunk: int) -> Tensor:
        """Count the tokens, up to its own, that each token sees, by its position in its row."""
        return (position % chunk + chunk).minimum(position) + 1 if self.sliding else position % chunk + 1

    def _attend(
        self, query: Tensor, key: Tensor, value: Tensor, lags: Tensor, allowed: Tensor | None, bias: Tensor | None
    ) -> Tensor:
        """Attention over keys at lags ``(n, m)`` or ``(batch, n, m)`` behind the queries, where allowed, likewise."""
        if bias is not None:
            furthest = bias.shape[1] // 2
            bias = bias[:, lags.clamp(-furthest, furthest) + furthest]
            bias = bias if lags.dim() == 2 else bias.transpose(0, 1)
        allowed = allowed if allowed is None or allowed.dim() == 2 else allowed[:, None]
        return pair_attention(query, key, value, function=self.function, bias=bias, allowed=allowed)

    def _rotations(self, seen: Tensor, chunk: int, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
        """`rotary_factors` of one token of each row, from a table where it can be remembered."""
        if self.sliding or traced():
            return self._factors(seen[:, None], chunk, dtype, few=True)

        def table() -> tuple[Tensor, Tensor]:
            return self._factors(torch.arange(chunk, device=seen.device), chunk, dtype)

        cos, sin = cached(self, "rotations", (dtype, seen.device, chunk), table, by_value=False)
        offset = seen % chunk
        return cos[offset][:, None], sin[offset][:, None]

    def _factors(self, position: Tensor, chunk: int, dtype: torch.dtype, *, few: bool = False) -> tuple[Tensor, Tensor]:
        """`rotary_factors` of positions in a row: those in its chunk, or in the row if chunks slide. Angles of these
        are in float64, because those of float32 are wrong by thousandths of a radian after 100,000 tokens, and ever
        more. few: compute those of these positions alone."""
        if not self.sliding:
            return rotary_factors(position % chunk, self.query_size, dtype=dtype, limit=None if few else chunk)
        cos, sin = rotary_factors(position, self.query_size, dtype=torch.float64)
        return cos.to(torch.promote_types(dtype, torch.float32)), sin.to(torch.promote_types(dtype, torch.float32))

    def _rotated(self, query: Tensor, key: Tensor, position: Tensor, chunk: int) -> tuple[Tensor, Tensor]:
        factors = self._factors(position, chunk, query.dtype)
        return rotate(query, *factors), rotate(key, *factors)

    def _in_chunks(
        self, query: Tensor, key: Tensor, value: Tensor, chunk: int, bias: Tensor | None, mask: Tensor | None
    ) -> Tensor:
        options = {"causal": self.causal, "function": self.function, "sliding": self.sliding}
        return chunked_attention(query, key, value, chunk=chunk, bias=bias, mask=mask, **options)

    def _lag_bias(self, reach: int) -> Tensor | None:
        """Return biases ``(heads, 2 * reach - 1)``, lag ``-(reach - 1)`` first."""
        if self.rotary_pair is None:
            return _nearest(self.lag_table, reach)
        # Copy: weights mapped from a file may have any address, and complex numbers need an aligned one.
        a, b = self.rotary_pair[:, :, None].clone()
        lags = torch.arange(1 - reach, reach, device=a.device)
        return (rotary(a.expand(-1, len(lags), -1), lags) * b).sum(-1)

    def _by_head(self, rows: Tensor) -> Tensor:
        """``(batch, heads, n, size)`` of rows ``(batch, n, heads * size)``."""
        return rows.unflatten(2, (self.heads, -1)).transpose(1, 2)


def _rows(x: Tensor) -> Tensor:
    """The inverse of `_by_head`."""
    return x.transpose(1, 2).flatten(2)


def _reach(state: ChunkState) -> int:
    """The tokens that a stream keeps."""
    reach = state.key.reach if isinstance(state.key, Window) else state.key.shape[1]
    assert reach is not None
    return reach


class ChunkedAttentionMixer(Mixer):
    """Attention within chunks with its own projections (TCNCA §2 and fig. 1).

    Options:
        heads: must divide the channels (the papers have one).
        chunk: window in tokens.
        evaluation_chunk: window in evaluation mode; by default the same.
        function: ``softmax``, ``laplace`` or ``relu2``, as in `pair_attention`.
        position: ``none``, ``rope``, ``simple`` or ``rotary``, as in `ChunkedAttention`.
        sliding: whether a token also sees the whole chunk before its own, if causal.

    Streaming state: at most one chunk of keys and values, or two if chunks slide.

    >>> ChunkedAttentionMixer(8, chunk=32)(torch.randn(2, 100, 8)).shape
    torch.Size([2, 100, 8])
    """

    takes_shards = True

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
        sliding: bool = False,
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
            sliding=sliding,
        )
        self.qkv = nn.Linear(channels, 3 * channels)
        self.out = nn.Linear(channels, channels)

    def mix(self, x: Tensor, state: ChunkState | None, layout: Layout) -> tuple[Tensor, Any]:
        query, key, value = self.qkv(x).chunk(3, 2)
        y, state = self.attention.run(query, key, value, state, layout)
        return self.out(y), state

    def init_state(self, batch_size: int) -> ChunkState:
        self.require_causal()
        return self.attention.init_state(batch_size, self.channels, like=next(self.qkv.parameters()))


def _nearest(lag_bias: Tensor | None, reach: int) -> Tensor | None:
    """The biases of lags shorter than reach, from biases by lag; None if there are none."""
    if lag_bias is None:
        return None
    centre = lag_bias.shape[1] // 2
    return lag_bias[:, centre + 1 - reach : centre + reach]


def _chunks(shard: Shard, chunk: int, *, causal: bool, sliding: bool) -> tuple[list[Span], Layout]:
    """The tokens of the chunks that each shard has a part of, in any row, and of those before if they slide; and this
    process's layout of them, where tokens of a chunk that begins before them count as padding. ValueError for padding
    between the tokens of a chunk."""
    position = shard.positions()
    if shard.whole.has_holes:
        raise ValueError("attention in chunks cannot be split between processes with padding between tokens of a text")
    inside, spans = position.clamp(min=0) % chunk, []
    for start, end in shard.spans:
        before, after = int(inside[:, start].max()), 0 if causal else int((chunk - 1 - inside[:, end - 1]).max())
        spans.append((max(0, start - before - chunk * sliding), min(shard.length, end + after)))
    start, end = spans[shard.rank]
    layout = shard.layout(start, end)
    missing = (-position[:, start].clamp(min=0)) % chunk  # tokens until a chunk begins
    if not bool(missing.any()):
        return spans, layout
    index = torch.arange(end - start, device=position.device)
    cut = index < missing[:, None]
    if (number := shard.documents) is not None:
        cut = cut & (number[:, start:end] == number[:, start : start + 1])
    return spans, Layout(~cut if layout.mask is None else layout.mask & ~cut, layout.seq_idx)
