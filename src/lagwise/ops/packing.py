"""Layout of a batch's tokens: padding, packed rows and grids, computed once and used by every layer."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from lagwise.ops.host import note_host_copy, on_device, on_host
from lagwise.ops.operation import Engine, Values, device_check, operation, surely, traced, with_open_sizes

# Gather real tokens into one row if they are at most this share of a padded batch: the time that layers save on padding
# then exceeds that of gathering (measured with 4 layers of 64 channels; up to 0.95 the two are about equal).
_COMPACT_BELOW = 0.8
_GROUPS = 6  # max. groups of documents of similar lengths: more would hardly save padding (docs/log.md)
_GROUPS_OF_GRAPHS = 3  # max. groups in a graph, each of which is compiled
_COST_OF_A_GROUP = 100  # tokens that could be computed during the calls of a group
_FILLED = 4  # tokens of documents that fill a group in a graph: so that even one less is not 1


def _once(compute: Callable[[Any], Any]) -> Any:
    """A property that is computed at its first use."""
    name = compute.__name__

    @functools.wraps(compute)
    def get(layout: Layout) -> Any:
        if name not in layout._cached:
            layout._cached[name] = compute(layout)
        return layout._cached[name]

    return property(get)


class Layout:
    """Real tokens of a batch, and the document that each belongs to.

    Models create one at the start of a forward pass and pass it to every layer. Each layer asks for what it needs;
    costly results are computed once.

    Args:
        mask: ``(batch, length)``, true (or nonzero) where a token is real; None if all are.
        seq_idx: ``(batch, length)`` of integers, constant over a document of a packed row; None if every row is one
            document.
        token_time: ``(batch, length)``, the time of each token since the one before, relative to that for which a
            model's parameters are; None if it is 1 everywhere. 0 at padding, whatever is given there. Or ``(batch,
            1)``, that of all tokens of a row: kernels then have a step for each row, and none for each token.
        grid: The (height, width) of rows that are images, stored row by row.
        shard: A `lagwise.ops.shards.Shard`, where these positions are in rows that are split between processes; None
            if rows are whole.

    Raises:
        ValueError: If seq_idx and mask differ in shape.

    >>> layout = Layout(torch.tensor([[False, True, True]]))  # one position of padding
    >>> layout.padded_before, layout.padded_after
    (True, False)
    """

    def __init__(
        self,
        mask: Tensor | None = None,
        seq_idx: Tensor | None = None,
        *,
        token_time: Tensor | None = None,
        grid: tuple[int, int] | None = None,
        shard: Any = None,
    ):
        if mask is not None and seq_idx is not None and mask.shape != seq_idx.shape:
            raise ValueError(f"mask must be like seq_idx {tuple(seq_idx.shape)}, got {tuple(mask.shape)}")
        self.mask = None if mask is None else mask.bool()
        if self.mask is mask and mask is not None and mask.device.type != "cpu":
            self.mask = mask.view(mask.shape)  # an object of its own, whose values the host may know (`on_host`)
        self.seq_idx = seq_idx
        if token_time is not None and seq_idx is not None:
            token_time = token_time.expand(seq_idx.shape)
        longer = self.mask is None or self.mask.shape[1] > 1
        #: whether each row has one time for all its tokens
        self.by_row = token_time is not None and token_time.shape[1:] == (1,) and longer
        self.token_time = token_time
        if token_time is not None and self.mask is not None and not self.by_row:
            self.token_time = token_time.masked_fill(~self.mask, 0)
        self.grid = grid
        self.shard = shard
        self._cached: dict[str, Any] = {}  # not `cached_property`, whose lock (Python 3.11) cannot be compiled

    def check(self, batch: int, length: int) -> None:
        """Raise ValueError unless mask, seq_idx and token_time are ``(batch, length)``, or times ``(batch, 1)``, and
        the grid has that many positions."""
        for name, value in (("mask", self.mask), ("seq_idx", self.seq_idx), ("token_time", self.token_time)):
            expected = (batch, 1) if name == "token_time" and self.by_row else (batch, length)
            if value is not None and value.shape != expected:
                raise ValueError(f"{name} must be (batch, length) = {(batch, length)}, got {tuple(value.shape)}")
        if self.grid is not None and self.grid[0] * self.grid[1] != length:
            raise ValueError(f"a grid of {self.grid[0]} x {self.grid[1]} does not hold {length} tokens")

    def near(self, mix: Callable[[Tensor, Layout], Tensor], x: Tensor, before: int, after: int) -> Tensor:
        """``mix(x, layout)``, whose outputs depend on so many tokens before and after their own: where rows are split
        between processes, with those of other shards."""
        return mix(x, self) if self.shard is None else self.shard.near(mix, x, before, after)

    def require_grid(self, who: str) -> tuple[int, int]:
        """Return the grid. ValueError, naming ``who`` requires it, if there is none."""
        if self.grid is None:
            raise ValueError(
                f"{who} needs a grid, and these tokens have none: give images (inputs 'patches'), one in each "
                "row, or a Layout with a grid"
            )
        return self.grid

    @_once
    def host(self) -> Layout:
        """Copy the layout to the CPU, where shapes that depend on values are computed; the host waits once. Returns the
        layout itself on the CPU, and in a graph."""
        parts = [t for t in (self.mask, self.seq_idx) if t is not None]
        if not surely(lambda: any(t.device.type != "cpu" for t in parts)):
            return self
        mask, seq_idx = on_host(self.mask, self.seq_idx)
        if self.mask is not None and mask is not None:
            note_host_copy(self.mask, mask)
        return Layout(mask, seq_idx, grid=self.grid, shard=self.shard)

    def _here(self, *tensors: Tensor | None) -> list[Any]:
        """Return tensors of the host's layout on this one's device, by one copy."""
        like = self.seq_idx if self.mask is None else self.mask
        return list(tensors) if self.host is self or like is None else on_device(tensors, like.device)

    @_once
    def padded_before(self) -> bool:
        """Whether a row starts with padding, or may do so, where nothing may depend on values."""
        return self.mask is not None and not surely(lambda: _mask(self.host)[:, 0].all())

    @_once
    def padded_after(self) -> bool:
        """Whether a row ends with padding, or may do so, where nothing may depend on values."""
        return self.mask is not None and not surely(lambda: _mask(self.host)[:, -1].all())

    @_once
    def has_holes(self) -> bool:
        """Whether there is padding between two tokens of a document."""
        return self.mask is not None and bool(_holes(self.host).any())

    def at(self, rows: Tensor, order: Tensor) -> Layout:
        """The layout of the tokens of these rows ``(n, 1)`` at these positions ``(n, length)``."""
        mask, seq_idx, time = self.mask, self.seq_idx, self.token_time
        mask = None if mask is None else mask[rows, order]
        mask = None if mask is None else _unless_full(mask)
        seq_idx = None if seq_idx is None else document_numbers(seq_idx)[rows, order]
        if time is not None:
            time = time[rows[:, 0]] if self.by_row else time[rows, order]
        return Layout(mask, seq_idx, token_time=time)

    def require_no_holes(self) -> None:
        """Have the device fail at the first batch with padding between two tokens of a document, where it cannot be
        moved, or the host should not wait to know: in graphs, and before graphs on a GPU."""
        if self.mask is not None:
            device_check(lambda: ~_holes(self).any(), "padding between tokens, in a compiled model; leave it out")

    @_once
    def extents(self) -> tuple[Tensor, Tensor, int]:
        """`row_extents` of the mask, and the largest of these lengths, or that of rows, where nothing may depend on
        values."""
        mask = _mask(self.host)
        extents = row_extents(mask)
        first, lengths = self._here(*extents)
        return first, lengths, mask.shape[1] if traced() else int(extents[1].max())

    @_once
    def buckets(self) -> tuple[Bucket, ...]:
        """The documents of packed rows, in at most six groups of similar lengths, without documents that are only
        padding. In a graph there are three, whatever the rows hold, and none of their sizes is 0 or 1, which compilers
        take for constants."""
        return self._for_graphs() if torch.compiler.is_compiling() else self._grouped(graph=False)

    def group_for_graphs(self) -> None:
        """Find `buckets` before graphs need them: those of a graph, which cannot find them, as they depend on
        values."""
        self._cached["buckets"] = self._for_graphs()

    @torch.compiler.disable(reason="groups of packed rows depend on the values of seq_idx: leave out fullgraph=True")
    def _for_graphs(self) -> tuple[Bucket, ...]:
        buckets = self._grouped(graph=True)
        for bucket in buckets:
            for each in (bucket.source, bucket.target, bucket.layout.mask):
                assert each is not None
                with_open_sizes(each)
        return buckets

    def _grouped(self, graph: bool) -> tuple[Bucket, ...]:
        groups = _groups(self.host, _GROUPS_OF_GRAPHS if graph else _GROUPS, graph)
        moved = self._here(*(each for group in groups for each in group))
        buckets = []
        for source, target, mask in zip(*(moved[n::3] for n in range(3)), strict=True):
            time = None if self.token_time is None else self.token_time.flatten()[source]
            buckets.append(Bucket(source, target, _host_layout(mask, None, time)))
        return tuple(buckets)

    @_once
    def axes(self) -> tuple[Layout, Layout]:
        """The layouts, for a batch of grids, of all rows as one batch ``(batch * height, width)``, and of all columns
        ``(batch * width, height)``. Rows and columns that are only padding count as real, because mixers need at
        least one token per row."""
        assert self.grid is not None
        if self.mask is None:
            return Layout(), Layout()
        mask = self.mask.unflatten(1, self.grid)
        rows, columns = mask.flatten(0, 1), mask.transpose(1, 2).flatten(0, 1)
        return Layout(rows | ~rows.any(1, keepdim=True)), Layout(columns | ~columns.any(1, keepdim=True))

    @_once
    def compact(self) -> tuple[Tensor, Layout] | None:
        """The positions ``(n,)``, in the flattened batch, from each row's first real token to its last, and the layout
        of these n tokens as one packed row. None if this is hardly shorter than the batch, or if there is a grid."""
        if self.mask is None or self.grid is not None or self.shard is not None or self.by_row:
            return None
        compacted = _compacted(self.host)
        if compacted is None:
            return None
        positions, mask, seq_idx = self._here(*compacted)
        time = None if self.token_time is None else self.token_time.flatten()[positions][None]
        return positions, _host_layout(mask, seq_idx, time)

    @_once
    def rows_by_time(self) -> list[tuple[float, Tensor, Layout]]:
        """Group rows with one time each: return every time, the indices of its rows, and their layout without times."""
        assert self.token_time is not None
        times, groups = self.token_time[:, 0], []
        for time in times.unique().tolist():
            rows = (times == time).nonzero()[:, 0]
            groups.append((time, rows, Layout(None if self.mask is None else self.mask[rows])))
        return groups

    def times(self, causal: bool) -> list[Tensor]:
        """The time from each token to the one before it and, for recurrences from the end, to the one after it, which
        is 1 for the last of a row."""
        assert self.token_time is not None
        if causal:
            return [self.token_time]
        after = torch.cat([self.token_time[:, 1:], torch.ones_like(self.token_time[:, :1])], 1)
        if self.mask is not None:
            followed = torch.cat([self.mask[:, 1:], torch.ones_like(self.mask[:, :1])], 1)
            after = after.masked_fill(~followed, 1).masked_fill(~self.mask, 0)
        return [self.token_time, after]


class Bucket(NamedTuple):
    """Documents of similar length as a padded batch, and its layout.

    Shapes: source and target ``(documents, longest)``, the position in the flattened batch of every position of the
    padded one; at padding, that of any token, and one past the last.
    """

    source: Tensor
    target: Tensor
    layout: Layout


def per_document(mix: Callable[[Tensor, Layout], Tensor], x: Tensor, layout: Layout) -> Tensor:
    """Apply a mixer to rows, or to every document of packed rows separately.

    Formula: cut each packed row where ``seq_idx`` changes, pad documents of similar length to the longest of them, mix
    each such batch, and put the outputs back in place. Documents of only padding give zeros.

    Shapes: x and result ``(batch, length, channels)``, with the channels that mix returns: it is called as
    ``mix(padded, its_layout)`` with a batch that is zero at padding. ValueError if packed rows do not fit x.
    """
    if layout.seq_idx is None:
        return mix(x, layout)
    layout.check(*x.shape[:2])
    flat = x.flatten(0, 1)
    result: Tensor | None = None
    for bucket in layout.buckets:
        padded = flat.index_select(0, bucket.source.flatten()).unflatten(0, bucket.source.shape)
        if bucket.layout.mask is not None:
            padded = padded.masked_fill(~bucket.layout.mask[..., None], 0)
        mixed = mix(padded, bucket.layout).flatten(0, 1)
        if result is None:
            result = mixed.new_zeros(len(flat) + 1, mixed.shape[1])
        result = result.index_copy(0, bucket.target.flatten(), mixed.to(result.dtype))
    if result is None:  # only padding: any token tells the channels
        mixed = mix(x.new_zeros(1, 1, x.shape[2]), Layout())
        result = mixed.new_zeros(len(flat), mixed.shape[2])
    return result[: len(flat)].unflatten(0, x.shape[:2])


def _host_layout(mask: Tensor | None, seq_idx: Tensor | None, time: Tensor | None) -> Layout:
    """A layout of tensors whose values the host knows."""
    layout = Layout(mask, seq_idx, token_time=time)
    layout.mask = mask  # the object itself
    return layout


def _groups(layout: Layout, max_groups: int, graph: bool) -> list[tuple[Tensor, Tensor, Tensor | None]]:
    """Source, target and mask of the buckets."""
    assert layout.seq_idx is not None
    starts = document_starts(layout.seq_idx).flatten()
    first = starts.nonzero()[:, 0]
    lengths = torch.diff(first, append=first.new_tensor([starts.numel()]))
    real = None if layout.mask is None else layout.mask.flatten()
    if real is not None:
        document = starts.cumsum(0) - 1
        has_tokens = torch.zeros_like(lengths).index_add(0, document, real.long()) > 0
        first, lengths = first[has_tokens], lengths[has_tokens]
    groups = similar_lengths(lengths, max_groups, min_rows=2 if graph else 1)
    if graph:
        groups += [first.new_zeros(0)] * (max_groups - len(groups))
    buckets = []
    for each in groups:
        begin, count = first[each], lengths[each]
        longest = max(count.tolist(), default=0)
        if graph:  # empty documents sort to the end, where `per_document` drops them
            longest, missing = max(longest, _FILLED), max(2 - len(each), 0)
            begin, count = F.pad(begin, (0, missing)), F.pad(count, (0, missing), value=_FILLED)
        offset = torch.arange(longest, device=first.device)
        inside = offset < count[:, None]
        source = (begin[:, None] + offset).where(inside, begin[:, None])  # a valid position: its value is not used
        source = source.clamp(max=starts.numel() - 1)  # a row may be shorter than what fills a group
        mask, target = inside if real is None else inside & real[source], source.where(inside, starts.numel())
        if graph:
            fills = torch.arange(len(begin), device=first.device)[:, None] >= len(each)
            token = 0 if real is None else int(real.int().argmax())  # a real token, if any, has finite values
            mask, target = mask | (inside & fills), target.masked_fill(fills, starts.numel())
            source = source.masked_fill(fills, token)
        buckets.append((source, target, mask if graph else _unless_full(mask)))
    return buckets


def similar_lengths(lengths: Tensor, max_groups: int, *, min_rows: int = 1) -> list[Tensor]:
    """Return groups of documents of similar lengths: those that pad the fewest tokens, where a group of k documents is
    padded to ``max(k, min_rows)`` times its longest, and costs a hundred tokens.

    Shapes: lengths ``(documents,)``. Returns the indices of each group's documents, at most ``max_groups`` groups from
    the shortest to the longest.

    >>> [group.tolist() for group in similar_lengths(torch.tensor([900, 4, 1000, 5]), 4)]
    [[1, 3], [0, 2]]
    """
    if not len(lengths):
        return []
    sizes, size, counts = lengths.unique(return_inverse=True, return_counts=True)
    before = F.pad(counts.cumsum(0), (1, 0))
    # of a group from one size to another; there are few sizes, as their sum is at most the number of tokens
    cost = (before[1:] - before[:-1, None]).clamp(min=min_rows) * sizes + _COST_OF_A_GROUP
    cost = cost.masked_fill(torch.ones_like(cost, dtype=torch.bool).tril(-1), torch.iinfo(cost.dtype).max // 4)
    totals, starts = [cost[0]], []  # cost of the sizes up to each, and start of its last group
    for _ in range(min(max_groups, len(sizes)) - 1):
        total, start = (totals[-1][:-1, None] + cost[1:]).min(0)
        totals.append(total)
        starts.append(start + 1)
    groups, end = [], len(sizes)
    for index in range(int(torch.stack(totals)[:, -1].argmin()), -1, -1):
        start = int(starts[index - 1][end - 1]) if index else 0
        groups.append(((size >= start) & (size < end)).nonzero()[:, 0])
        end = start
    return groups[::-1]


def _compacted(layout: Layout) -> tuple[Tensor, Tensor | None, Tensor] | None:
    """Positions, mask and documents of `Layout.compact`."""
    mask = _mask(layout)
    if not mask.any(1).all():
        return None
    inside = mask.cumsum(1).bool() & mask.flip(1).cumsum(1).flip(1).bool()
    positions = inside.flatten().nonzero()[:, 0]
    if len(positions) > _COMPACT_BELOW * mask.numel():
        return None
    document = positions // mask.shape[1]
    if layout.seq_idx is not None:  # a new number wherever the row or document changes
        numbers = layout.seq_idx.flatten()[positions]
        changed = (document.diff() != 0) | (numbers.diff() != 0)
        document = F.pad(changed.cumsum(0), (1, 0))
    return positions, _unless_full(mask.flatten()[positions][None]), document[None]


def _holes(layout: Layout) -> Tensor:
    """Mark tokens after padding that is between them and another token of their document, ``(batch, length)``."""
    mask = _mask(layout)
    index = torch.arange(mask.shape[1], device=mask.device)
    before = F.pad(torch.where(mask, index, -1).cummax(1).values[:, :-1], (1, 0), value=-1)
    after = mask & (before >= 0) & (before < index - 1)
    if layout.seq_idx is None:
        return after
    document = document_numbers(layout.seq_idx)
    return after & (document == document.gather(1, before.clamp(min=0)))


def tokens_last(mask: Tensor) -> Tensor:
    """Return positions ``(batch, length)`` of every row's padding, then of its real tokens, both in order."""
    return mask.long().argsort(dim=1, stable=True)


def row_extents(mask: Tensor) -> tuple[Tensor, Tensor]:
    """Return first tokens and lengths of padded rows, including holes between tokens.

    Shapes: mask ``(batch, length)``, boolean. Returns the position of each row's first token and the number of tokens
    from it to the last, both ``(batch,)``: 0 and 1 for a row of only padding.
    """
    first = mask.int().argmax(1)
    lengths = mask.shape[1] - mask.flip(1).int().argmax(1) - first
    return first, lengths.where(mask.any(1), 1)


@operation
def move_rows(x: Tensor, shift: Tensor, length: int) -> Tensor:
    """Shift every row to the right by its own amount, or to the left if it is negative.

    Formula: ``y[b, i] = x[b, i - shift[b]]``, zero where that is outside the row.

    Shapes: x ``(batch, n, channels)`` with n >= 1; shift ``(batch,)``; result ``(batch, length, channels)``.
    """
    source = torch.arange(length, device=x.device) - shift[:, None]
    outside = (source < 0) | (source >= x.shape[1])
    row = torch.arange(x.shape[0], device=x.device)[:, None] * x.shape[1]
    position = row + source.clamp(0, x.shape[1] - 1)
    return x.flatten(0, 1)[position].masked_fill_(outside[..., None], 0)


@move_rows.engine("back")
class _MoveRows(Engine):
    """The gradient moves rows back, which is faster than a scatter."""

    unsaved = (0,)

    @staticmethod
    def forward(x: Tensor, shift: Tensor, length: int) -> tuple[Tensor, Values]:
        return move_rows.plain(x, shift, length), (x.new_empty(0, *x.shape),)

    @staticmethod
    def backward(args: Values, saved: Values, grads: Values, needs_grad: Sequence[bool]) -> Values:
        return (move_rows.plain(grads[0], -args[1], saved[0].shape[2]),)

    @staticmethod
    def restored(args: Values, saved: Values) -> Values:
        return [saved[0].new_zeros(()).expand(saved[0].shape[1:]).requires_grad_(), *args[1:]]


def from_first_token(mix: Callable[[Tensor, Tensor | None], Tensor], x: Tensor, mask: Tensor | None) -> Tensor:
    """Apply a function that counts positions from the start to rows whose text starts anywhere.

    Formula: every row is moved so that its first real token is at position 0, mixed, and moved back. Positions after
    the longest text are left out, and are zero in the result.

    Shapes: x ``(batch, length, channels)``, zero at padding; mask ``(batch, length)``, boolean, or None. ``mix(moved,
    its_mask)`` returns as many tokens, with any number of channels, as has the result.
    """
    if mask is None:
        return mix(x, None)
    first, lengths = row_extents(mask)
    longest = int(lengths.max())
    moved = move_rows(mask[..., None].float(), -first, longest)[..., 0] > 0
    return move_rows(mix(move_rows(x, -first, longest), moved), first, x.shape[1])


def document_starts(seq_idx: Tensor) -> Tensor:
    """Mark the starts of documents in packed rows: true at its first token and wherever seq_idx changes.

    Shapes: seq_idx ``(batch, length)`` of integers; result like it, boolean.
    """
    starts = torch.ones_like(seq_idx, dtype=torch.bool)
    starts[:, 1:] = seq_idx[:, 1:] != seq_idx[:, :-1]
    return starts


def document_numbers(seq_idx: Tensor) -> Tensor:
    """The number of each token's document in its row, from 1."""
    return document_starts(seq_idx).long().cumsum(1)


def seq_idx_from_cu_seqlens(cu_seqlens: Tensor, length: int) -> Tensor:
    """Return document numbers of one packed row from cumulative lengths.

    Shapes: cu_seqlens ``(documents + 1,)``, from 0 to at most length; result ``(1, length)``. Tokens after the last
    boundary are a separate document. ValueError unless cu_seqlens starts at 0, increases, and ends within length.
    """
    device, cu_seqlens = cu_seqlens.device, cu_seqlens.cpu()
    whole = cu_seqlens.dim() == 1 and cu_seqlens.numel() and not cu_seqlens.is_floating_point()
    if not whole or cu_seqlens[0] != 0 or (cu_seqlens.diff() <= 0).any() or cu_seqlens[-1] > length:
        raise ValueError(f"cu_seqlens must grow from 0 to at most {length}, got {cu_seqlens.tolist()}")
    here = torch.searchsorted(cu_seqlens, torch.arange(length, device="cpu"), right=True)[None] - 1
    (there,) = on_device([here], device)
    return here if there is None else there


def _mask(layout: Layout) -> Tensor:
    assert layout.mask is not None
    return layout.mask


def _unless_full(mask: Tensor) -> Tensor | None:
    """The mask, or None if nothing is padding."""
    return None if surely(mask.all) else mask
