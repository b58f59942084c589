"""Taps of a stream and contributions of earlier blocks of tokens to later ones, a few channels at a time."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping

import torch
import torch.nn.functional as F
from torch import Tensor

from lagwise.ops.window import Window, may_write

# Tokens of the smallest block, in which tokens meet directly (docs/log.md, "online convolution").
ONLINE_BLOCK = 64
FAR_BLOCK = 1024  # tokens of the smallest blocks whose contributions are spread over time
GROWTH = 4  # such blocks of one size in a block of the next
_FIRST_CAPACITY = 2048  # taps at the start of a stream, at most; doubled whenever it outgrows them
# Real elements of the padded inputs of channels that are transformed together when there is no deadline.
_GROUP_ELEMENTS = 1 << 19
_MIN_ROWS = 16  # rows that a transform takes; fewer take as long, because it is planned anew in every call


class _ByChannel:
    """A tensor ``(..., channels, n)`` whose channels are computed in order, a few at a time, and kept.

    States that share it, before and after branching, get the same values whichever of them computes it.
    """

    def __init__(self, values: Tensor | None = None, done: int = 0):
        self.values, self.done = values, done

    def map_batch(self, change: Callable[[Tensor], Tensor]) -> _ByChannel:
        # Contiguous, because the rows of an expanded tensor share memory, which cannot be written to.
        return _ByChannel(None if self.values is None else change(self.values).contiguous(), self.done)

    def upto(self, stop: int, channels: int, compute: Callable[[slice], Tensor]) -> Tensor:
        """The tensor with at least ``stop`` of its channels, in new storage if its own may not be written to."""
        if self.values is not None and self.done >= stop:
            return self.values
        kept = self.values if self.values is not None and may_write(self.values) else None
        start = 0 if kept is None else self.done
        part = compute(slice(start, stop))
        self.values = part.new_empty((*part.shape[:-2], channels, part.shape[-1])) if kept is None else kept
        self.values[..., start:stop, :] = part
        self.done = stop
        return self.values


class OnlineTaps:
    """Causal taps in the forms that a stream needs, computed at first use and shared by the states of a stream.

    ``make(n)`` gives taps ``(channels, at most n)`` from lag 0 on. ``support`` is the number of lags after which all
    taps are zero, or None for a kernel without end. Only as many are computed as the text can meet, so that a slowly
    decaying kernel costs no more than one without end.
    """

    def __init__(self, make: Callable[[int], Tensor], support: int | None):
        self.make, self.support = make, support
        self._taps = make(self._within_support(_FIRST_CAPACITY))
        self._without_graph = self._taps  # at least as many, perhaps without gradients
        self._spectra: defaultdict[tuple[int, int], _ByChannel] = defaultdict(_ByChannel)
        near = self.upto(self._within_support(ONLINE_BLOCK))
        self.near = near.t().flip(0).contiguous()  # lag 0 last, aligned with the end of a window
        lags, self.channels = self.near.shape
        #: the last n rows of near, at n, as every token needs them
        self.nearest = [self.near[lags - n :] for n in range(lags + 1)]
        #: tokens of a large block: fewer than usual if neighbours of fewer tokens hold all pairs in reach
        self.large = (
            FAR_BLOCK if support is None else min(FAR_BLOCK, max(ONLINE_BLOCK, 1 << (support - 1).bit_length()))
        )

    def __deepcopy__(self, memo: dict) -> OnlineTaps:
        return self  # its cached values hold for every copy of a state

    @property
    def computed(self) -> int:
        """Number of taps computed so far."""
        return self._taps.shape[1]

    def upto(self, lags: int) -> Tensor:
        """Return taps ``(channels, lags)``, zero after the kernel's end."""
        taps = self._taps_upto(lags)
        return F.pad(taps, (0, lags - taps.shape[1])) if lags > taps.shape[1] else taps[:, :lags]

    def _taps_upto(self, lags: int) -> Tensor:
        """Compute at least as many taps, or all until the kernel's end. Taps without gradients never replace those with
        a graph, which other states still need."""
        within = self._within_support(lags)
        if self.computed >= within:
            return self._taps
        looks_ahead = self._taps.requires_grad and not torch.is_grad_enabled()
        if looks_ahead and self._without_graph.shape[1] >= within:
            return self._without_graph
        taps = self.make(self._within_support(1 << (lags - 1).bit_length()))
        self._without_graph = taps
        if not looks_ahead:
            self._taps = taps
        return taps

    def _within_support(self, lags: int) -> int:
        return lags if self.support is None else min(lags, self.support)

    def meets(self, size: int, distance: int) -> bool:
        """Whether any tap lies between blocks of this size at this distance."""
        return self.support is None or (distance - 1) * size + 1 < self.support

    def spectrum(self, size: int, distance: int, group: slice) -> Tensor:
        """rfft of the ``2 * size`` taps between blocks at a distance, for a group of channels that starts no later than
        the end of earlier groups."""
        first = (distance - 1) * size
        taps = self._taps_upto(first + 2 * size)[:, first : first + 2 * size]
        compute = lambda part: torch.fft.rfft(taps[part], 2 * size)  # noqa: E731
        if torch.is_grad_enabled():
            return compute(group)
        return self._spectra[size, distance].upto(group.stop, len(taps), compute)[group]


class BlockSpectrum:
    """The rfft of one block of inputs ``(batch, size, channels)``, padded with as many zeros, computed a few channels
    at a time for the first of the later blocks that needs it."""

    def __init__(self, source: Tensor | None, points: _ByChannel):
        self.source = source  # None when complete, so that it does not keep an old window alive
        self.points = points

    @property
    def batch(self) -> int:
        """Number of rows."""
        values = self.points.values if self.source is None else self.source
        assert values is not None
        return values.shape[0]

    def map_batch(self, change: Callable[[Tensor], Tensor]) -> BlockSpectrum:
        return BlockSpectrum(None if self.source is None else change(self.source), self.points.map_batch(change))

    def spectrum(self, group: slice) -> Tensor:
        """``(batch, channels, size + 1)`` for a group of channels that starts no later than the end of earlier ones."""
        source = self.source
        if source is None:
            assert self.points.values is not None
            return self.points.values[:, group]
        _, size, channels = source.shape
        compute = lambda part: torch.fft.rfft(source[..., part].transpose(1, 2).contiguous(), 2 * size)  # noqa: E731
        if torch.is_grad_enabled():
            return compute(group)
        points = self.points.upto(group.stop, channels, compute)
        if self.points.done == channels:
            self.source = None
        return points[:, group]


class Contribution:
    """The contribution of earlier blocks to a block: ``(batch, channels, size)``, computed a few channels at a time.

    That of blocks from two before on depends only on inputs that have already arrived, so it is computed while the
    block before is streamed. ``blocks`` maps the indices of the earlier blocks to their spectra.
    """

    def __init__(
        self, taps: OnlineTaps, size: int, block: int, blocks: Mapping[int, BlockSpectrum], result: _ByChannel
    ):
        self.taps, self.size, self.block, self.blocks = taps, size, block, blocks
        self.result = result

    @classmethod
    def of(
        cls,
        taps: OnlineTaps,
        size: int,
        block: int,
        earlier: Iterable[int],
        window: Window,
        seen: int,
        shared: Mapping[int, BlockSpectrum],
    ) -> Contribution | None:
        """Return None unless a tap lies between the block and an earlier one of these. ``shared`` holds blocks of other
        tasks. Tokens dropped from the window are beyond the taps' reach."""
        tokens, oldest = window.tokens, seen - window.size
        starts = {i: i * size - oldest for i in earlier if taps.meets(size, block - i)}
        blocks = {
            i: shared.get(i) or BlockSpectrum(between(tokens, start, start + size), _ByChannel())
            for i, start in starts.items()
        }
        return cls(taps, size, block, blocks, _ByChannel()) if blocks else None

    def map_batch(self, change: Callable[[Tensor], Tensor], shared: dict[int, BlockSpectrum]) -> Contribution:
        """The task of other rows; ``shared`` collects its blocks, and gives those that it has."""
        for i, block in self.blocks.items():
            if i not in shared:
                shared[i] = block.map_batch(change)
        blocks = {i: shared[i] for i in self.blocks}
        return Contribution(self.taps, self.size, self.block, blocks, self.result.map_batch(change))

    def advance(self, channels: int) -> None:
        """Compute the first so many channels, and more if a transform of them would have too few rows."""
        if self.result.done >= channels or torch.is_grad_enabled():
            return  # `part` computes everything at once if there are gradients
        width, rows = self.taps.channels, -(-_MIN_ROWS // self._batch())
        self.result.upto(min(width, -(-channels // rows) * rows), width, self._channels)

    def part(self, start: int, stop: int) -> Tensor:
        """Return tokens start..stop of the block, ``(batch, channels, stop - start)``."""
        width = self.taps.channels
        if torch.is_grad_enabled() and self.result.done < width:
            self.result = _ByChannel(self._channels(slice(0, width)), width)
        group = max(1, _GROUP_ELEMENTS // (4 * self.size * self._batch()))
        while self.result.done < width:
            self.advance(min(width, self.result.done + group))
        assert self.result.values is not None
        return self.result.values[..., start:stop]

    def _batch(self) -> int:
        return next(iter(self.blocks.values())).batch

    def _channels(self, group: slice) -> Tensor:
        pairs = [
            (b.spectrum(group), self.taps.spectrum(self.size, self.block - i, group)) for i, b in self.blocks.items()
        ]
        total = pairs[0][0] * pairs[0][1]
        for points, taps in pairs[1:]:
            total = total.addcmul(points, taps) if torch.is_grad_enabled() else total.addcmul_(points, taps)
        return torch.fft.irfft(total, 2 * self.size)[..., self.size :]


def between(tokens: Tensor, start: int, stop: int) -> Tensor:
    """Return tokens start..stop, zero before the first."""
    part = tokens[:, max(0, start) : max(0, stop)]
    return F.pad(part, (0, 0, stop - start - part.shape[1], 0)) if start < 0 else part
