"""Sequences that are split between processes: each has a contiguous shard of every row.

Three exchanges serve all mixers: the tokens near a shard (`Shard.near`), all tokens of some channels
(`Shard.by_channels`), and states that go from shard to shard (`Shard.state_before`). All are differentiable, by
PyTorch's own all-to-all, so every process must run the same mixers in the same order, forward and backward.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Sequence
from itertools import accumulate, pairwise

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed._functional_collectives import all_to_all_single_autograd, wait_tensor

from lagwise.ops.packing import Layout, document_numbers, per_document

Mix = Callable[[Tensor, Layout], Tensor]
Span = tuple[int, int]


class Shard:
    """The shard of every sequence that a rank has, and the collectives on it.

    Args:
        group: The processes that share every row, in the order of their shards.
        batch: Rows.
        length: Tokens of this shard.
        mask: ``(batch, length)`` of this shard, or None.
        seq_idx: Documents of packed rows, likewise.
        device: Device of the tokens.

    Attributes:
        spans: The first token of each shard, and the one after its last.
        start, end: Those of this shard.
        whole: The layout of all tokens. Every process has it: one number per token, beside `channels` of them.

    Raises:
        ValueError: If processes give different numbers of rows, or a shard without tokens.
    """

    def __init__(
        self,
        group: dist.ProcessGroup,
        batch: int,
        length: int,
        mask: Tensor | None,
        seq_idx: Tensor | None,
        device: torch.device,
    ):
        self.group, self.rank, self.count = group, dist.get_rank(group), dist.get_world_size(group)
        own = torch.tensor([batch, length, mask is not None, seq_idx is not None], device=device)
        shapes = torch.stack(_swapped([own] * self.count, [(4,)] * self.count, group)).cpu()
        if (shapes[:, 0] != batch).any() or (shapes[:, 1] < 1).any():
            raise ValueError(
                "processes that share sequences must each give a shard of the same rows, got (rows, tokens) "
                f"{[tuple(each) for each in shapes[:, :2].tolist()]}"
            )
        sizes = shapes[:, 1].tolist()
        self.spans: list[Span] = list(pairwise(accumulate(sizes, initial=0)))
        (self.start, self.end), self.length = self.spans[self.rank], sum(sizes)
        whole_mask = whole_documents = None
        if shapes[:, 2].any():
            real = torch.ones(batch, length, device=device) if mask is None else mask
            whole_mask = self.gathered(real.to(torch.uint8)).bool()
        if shapes[:, 3].any():
            document = torch.zeros(batch, length, device=device) if seq_idx is None else seq_idx
            whole_documents = self.gathered(document.long())
        self.whole = Layout(whole_mask, whole_documents)

    def gathered(self, x: Tensor) -> Tensor:
        """Gather all tokens of x ``(batch, length, ...)``, of which every process has its shard."""
        shapes = [(len(x), end - start, *x.shape[2:]) for start, end in self.spans]
        return torch.cat(_swapped([x] * self.count, shapes, self.group), 1)

    def own(self, x: Tensor) -> Tensor:
        """Cut the shard out of all tokens ``(batch, all, ...)``."""
        return x[:, self.start : self.end]

    def near(self, mix: Mix, x: Tensor, before: int, after: int) -> Tensor:
        """A mixer of limited reach: ``mix`` of the shard with ``before`` tokens before it and ``after`` after it.

        Args:
            mix: Called with tokens ``(batch, n, channels)`` of one document per row, zero at padding, and their layout.
            x: ``(batch, length, channels)``, zero at padding.
            before: Tokens that an output depends on, before its own.
            after: Tokens that an output depends on, after its own.
        """
        spans = [(max(0, start - before), min(self.length, end + after)) for start, end in self.spans]
        return self.within(mix, x, spans, self.layout(*spans[self.rank]))

    def layout(self, start: int, end: int) -> Layout:
        """The layout of these tokens."""
        return Layout(*(None if t is None else t[:, start:end] for t in (self.whole.mask, self.whole.seq_idx)))

    def within(self, mix: Mix, x: Tensor, spans: Sequence[Span], layout: Layout) -> Tensor:
        """``mix`` of the tokens of a span around each shard, cut to the shard. layout: of this process's span."""
        start, end = spans[self.rank]
        sent = [x[:, slice(*_common((self.start, self.end), span, self.start))] for span in spans]
        shapes = [(len(x), _size(_common(span, (start, end))), x.shape[2]) for span in self.spans]
        y = per_document(mix, torch.cat(_swapped(sent, shapes, self.group), 1), layout)
        return y.narrow(1, self.start - start, x.shape[1])

    def by_channels(self, mix: Mix, x: Tensor, *, groups: int | None = None, outputs: int | None = None) -> Tensor:
        """A mixer that acts on channels separately: ``mix`` of all tokens of this process's share of the channels.

        Args:
            mix: As in `near`.
            x: ``(batch, length, channels)``, zero at padding.
            groups: Number of equal groups of channels, such as heads, that stay together; by default every channel may
                be alone.
            outputs: Channels of the result; by default as many as x has.
        """
        groups = groups or x.shape[2]
        (each, left), result = divmod(x.shape[2], groups), (outputs or x.shape[2]) // groups
        assert left == 0
        sizes = [_size(share) for share in self.shares(groups)]
        shapes = [(len(x), end - start, sizes[self.rank] * each) for start, end in self.spans]
        sent = x.split([size * each for size in sizes], 2)
        whole = torch.cat(_swapped(sent, shapes, self.group), 1)
        y = per_document(mix, whole, self.whole) if sizes[self.rank] else whole[..., :0]
        sent = y.split([end - start for start, end in self.spans], 1)
        shapes = [(len(x), x.shape[1], size * result) for size in sizes]
        return torch.cat(_swapped(sent, shapes, self.group), 2)

    def shares(self, groups: int) -> list[Span]:
        """The share of each process in groups of channels."""
        return list(pairwise(groups * rank // self.count for rank in range(self.count + 1)))

    def share(self, groups: int) -> Span:
        """The share of this process."""
        return self.shares(groups)[self.rank]

    def state_before(self, state: Tensor, log_factor: Tensor | None = None, *, backward: bool = False) -> Tensor:
        """The state before this shard, of a recurrence that every process has run on its own shard alone.

        Formula: ``sum_s exp(log_factor * gap_s) state_s`` over the earlier shards s whose last token is of the document
        of this shard's first, with gap_s the tokens between the two shards. With ``backward``, the same from the end.

        Args:
            state: ``(batch, ...)`` after this shard: of its last document, see `open_end`.
            log_factor: Logarithm of the factor per token, which broadcasts to a row's state; by default 0.
            backward: Whether the recurrence runs from the end: state is then that of the first document.
        """
        states = _swapped([state] * self.count, [state.shape] * self.count, self.group)
        total = torch.zeros_like(state)
        for (start, end), each in zip(self.spans, states, strict=True):
            gap, here, there = (start - self.end, self.end, start) if backward else (self.start - end, self.start, end)
            if gap < 0:  # its own state, and those on the other side, count 0: so that all gradients are computed
                total = total + 0 * each
                continue
            if log_factor is not None:
                each = each * (log_factor * gap).exp().to(each.dtype)
            if (document := self.documents) is not None:
                pair = (here - 1, there) if backward else (here, there - 1)
                same = document[:, pair[0]] == document[:, pair[1]]
                each = each.where(same.view(-1, *[1] * (each.dim() - 1)), 0)
            total = total + each
        return total

    @functools.cached_property
    def documents(self) -> Tensor | None:
        """The number of every token's document in its row, ``(batch, all)``; None if rows are single documents."""
        return None if self.whole.seq_idx is None else document_numbers(self.whole.seq_idx)

    def open_end(self, *, backward: bool = False) -> Tensor | None:
        """Mask ``(batch, length)`` of the shard's tokens in the document of its last token, or of its first; None for
        all."""
        if self.documents is None:
            return None
        own = self.own(self.documents)
        return own == (own[:, :1] if backward else own[:, -1:])

    def positions(self) -> Tensor:
        """The position of every token in its document, ``(batch or 1, all)``, counted from the document's first real
        token; negative at padding before it."""
        mask, document = self.whole.mask, self.documents
        like = mask if document is None else document
        if like is None:
            return torch.arange(self.length)[None]
        index = torch.arange(self.length, device=like.device).expand(len(like), -1)
        document = torch.ones_like(index) if document is None else document
        first = index if mask is None else index.masked_fill(~mask, self.length)
        first = torch.full_like(index, self.length).scatter_reduce(1, document - 1, first, "amin")
        return index - first.gather(1, document - 1)

    def sum(self, x: Tensor) -> Tensor:
        """The sum of x over the processes."""
        return torch.stack(_swapped([x] * self.count, [x.shape] * self.count, self.group)).sum(0)


def _swapped(sent: Sequence[Tensor], shapes: Sequence[Sequence[int]], group: dist.ProcessGroup) -> list[Tensor]:
    """Send the r-th tensor to process r. Returns what each process sent here, of these shapes."""
    if sent[0].is_complex():
        shapes = [(*shape, 2) for shape in shapes]
        return [torch.view_as_complex(t) for t in _swapped([torch.view_as_real(t) for t in sent], shapes, group)]
    sizes = [math.prod(shape) for shape in shapes]
    flat = torch.cat([t.reshape(-1) for t in sent])
    received = wait_tensor(all_to_all_single_autograd(flat, sizes, [t.numel() for t in sent], group))
    return [t.view(tuple(shape)) for t, shape in zip(received.split(sizes), shapes, strict=True)]


def _common(a: Span, b: Span, origin: int = 0) -> Span:
    """The tokens in both spans, counted from ``origin``."""
    start, end = max(a[0], b[0]), min(a[1], b[1])
    return start - origin, max(start, end) - origin


def _size(span: Span) -> int:
    return span[1] - span[0]
