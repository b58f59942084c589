"""Exact convolution of a signal that arrives token by token, in O(log² n) per token with a bound for every token."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from lagwise.ops.product import toeplitz_product
from lagwise.ops.window import Window, may_write

# Tokens of the smallest block. The last one to two blocks meet the taps directly (docs/log.md, "online convolution").
ONLINE_BLOCK = 64
_FIRST_CAPACITY = 2048  # taps at the start of a stream, at most; doubled whenever it outgrows them
# Real elements of the padded inputs of channels that are transformed together when there is no deadline.
_GROUP_ELEMENTS = 1 << 19


class OnlineTaps:
    """Causal taps in the forms that a stream needs, computed at first use and shared by the states of a stream.

    ``make(n)`` gives taps ``(channels, at most n)`` from lag 0 on. ``reach`` is the number of lags after which all taps
    are zero, or None for a kernel without end. Only as many taps are computed as the text can meet, so that a slowly
    decaying kernel costs no more than one without end.
    """

    def __init__(self, make: Callable[[int], Tensor], reach: int | None):
        self.make, self.reach = make, reach
        self._taps = make(self._within_reach(_FIRST_CAPACITY))
        self._spectra: dict[tuple[int, int], tuple[Tensor, int]] = {}
        near = self.upto(self._within_reach(2 * ONLINE_BLOCK))
        self.near = near.t().flip(0).contiguous()  # lag 0 last, aligned with the end of a window

    def __deepcopy__(self, memo: dict) -> OnlineTaps:
        return self  # its cached values hold for every copy of a state

    @property
    def made(self) -> int:
        """Number of taps computed so far."""
        return self._taps.shape[1]

    def upto(self, lags: int) -> Tensor:
        """Taps ``(channels, lags)``, zero after the kernel's end."""
        if self.made < self._within_reach(lags):
            self._taps = self.make(self._within_reach(1 << (lags - 1).bit_length()))
        return F.pad(self._taps, (0, lags - self.made)) if lags > self.made else self._taps[:, :lags]

    def _within_reach(self, lags: int) -> int:
        return lags if self.reach is None else min(lags, self.reach)

    def meets(self, size: int, distance: int = 2) -> bool:
        """Whether any tap lies between blocks of this size at this distance."""
        return self.reach is None or (distance - 1) * size + 1 < self.reach

    def spectrum(self, size: int, distance: int, group: slice) -> Tensor:
        """rfft of the ``2 * size`` taps between blocks at a distance, for a group of channels that starts no later than
        the end of earlier groups."""
        first = (distance - 1) * size
        taps = self.upto(first + 2 * size)[:, first:]
        if torch.is_grad_enabled():
            return torch.fft.rfft(taps[group])
        memo, done = self._spectra.get((size, distance), (None, 0))
        if memo is None or (done < group.stop and not may_write(memo)):
            complex_dtype = torch.promote_types(taps.dtype, torch.complex64)
            memo, done = torch.empty((len(taps), size + 1), dtype=complex_dtype, device=taps.device), 0
        if done < group.stop:
            memo[done : group.stop] = torch.fft.rfft(taps[done : group.stop])
            done = group.stop
        self._spectra[size, distance] = (memo, done)
        return memo[group]


class _Far:
    """The contribution of the blocks two and three before a block to it: ``(batch, channels, size)``.

    It depends only on inputs that have already arrived, so it is computed a few channels at a time while the block
    before is streamed. States that share it, before and after branching, get the same values whichever of them computes
    it.
    """

    def __init__(
        self,
        taps: OnlineTaps,
        size: int,
        block: int,
        source: Tensor | None,
        result: Tensor | None = None,
        done: int = 0,
    ):
        self.taps, self.size, self.block = taps, size, block
        self.source = source  # None when complete, so that it does not keep an old window alive
        self.result, self.done = result, done

    @classmethod
    def of(cls, taps: OnlineTaps, size: int, block: int, window: Window, seen: int) -> _Far | None:
        """None for blocks without others that far before them. Tokens dropped from the window are beyond the taps'
        reach."""
        if block < 2 or not taps.meets(size):
            return None
        stop = (block - 1) * size
        # Blocks three apart whose parents are two apart are handled at the parents' level.
        start = stop - (2 if block % 2 and taps.meets(size, 3) else 1) * size
        tokens, oldest = window.tokens, seen - window.size
        source = tokens[:, max(0, start - oldest) : max(0, stop - oldest)]
        if start < oldest:
            source = F.pad(source, (0, 0, min(stop, oldest) - start, 0))
        return cls(taps, size, block, source)

    def map_batch(self, change: Callable[[Tensor], Tensor]) -> _Far:
        source, result = (None if t is None else change(t) for t in (self.source, self.result))
        return _Far(self.taps, self.size, self.block, source, result, self.done)

    def advance(self, channels: int) -> None:
        """Compute this many further channels."""
        source, result = self.source, self.result
        if source is None or torch.is_grad_enabled():
            return  # with gradients, `part` computes everything at once
        if result is None or not may_write(result):
            shape = (source.shape[0], source.shape[2], self.size)
            result, self.done = source.new_empty(shape, dtype=self.taps.near.dtype), 0
        stop = min(source.shape[2], self.done + channels)
        result[:, self.done : stop] = self._channels(source, slice(self.done, stop))
        self.result, self.done = result, stop
        if stop == source.shape[2]:
            self.source = None

    def part(self, start: int, stop: int) -> Tensor:
        """Tokens start..stop of the block, ``(batch, channels, stop - start)``."""
        source = self.source
        if source is not None and torch.is_grad_enabled():
            self.result, self.source = self._channels(source, slice(0, source.shape[2])), None
        while self.source is not None:
            self.advance(max(1, _GROUP_ELEMENTS // (4 * self.size * len(self.source))))
        assert self.result is not None
        return self.result[..., start:stop]

    def _channels(self, source: Tensor, group: slice) -> Tensor:
        blocks = source[..., group].unflatten(1, (-1, self.size)).permute(0, 3, 1, 2)
        points = torch.fft.rfft(blocks, 2 * self.size)
        product = points[:, :, -1] * self.taps.spectrum(self.size, 2, group)
        if points.shape[2] == 2:
            product = product + points[:, :, 0] * self.taps.spectrum(self.size, 3, group)
        return torch.fft.irfft(product, 2 * self.size)[..., self.size :]


class OnlineState(NamedTuple):
    """A stream's inputs ``(batch, n, channels)``, as far back as the taps reach, and their known contributions to later
    tokens.

    seen: tokens of the row that started first. behind: how much later each row started, ``(batch,)``, on the CPU. far:
    for every block size, the contributions to the current block and to the next. due: ``(batch, block, channels)``, the
    sum of these for the smallest current block, or None.
    """

    taps: OnlineTaps
    window: Window
    seen: int
    behind: Tensor
    far: tuple[tuple[_Far | None, ...], ...] = ()
    due: Tensor | None = None

    @classmethod
    def start(cls, batch_size: int, taps: OnlineTaps) -> OnlineState:
        """The state before the first token."""
        near = taps.near
        window = Window.empty(batch_size, near.shape[1], taps.reach, like=near)
        return cls(taps, window, 0, torch.zeros(batch_size, dtype=torch.long))

    @classmethod
    def of(cls, taps: OnlineTaps, tokens: Tensor, seen: Tensor) -> OnlineState:
        """The state of rows that have seen ``seen`` tokens ``(batch,)``, from their last tokens ``(batch, n,
        channels)``: as many as the taps reach, or all."""
        longest = int(seen.max())
        window = Window(tokens[:, max(0, tokens.shape[1] - longest) :], taps.reach)
        return _with_due(_with_far(cls(taps, window, longest, (longest - seen).cpu())))

    def map_batch(self, change: Callable[[Tensor], Tensor]) -> OnlineState:
        """The state of other rows: ``change`` is applied to every tensor whose first axis is the batch. Time before the
        first token of the new rows is dropped."""
        behind = change(self.behind)
        early = int(behind.min()) if len(behind) else 0
        window = self.window.map_batch(change)
        if early:
            window = window.last(self.seen - early)
            return _with_due(_with_far(OnlineState(self.taps, window, self.seen - early, behind - early)))
        far = tuple(tuple(None if f is None else f.map_batch(change) for f in pair) for pair in self.far)
        return OnlineState(self.taps, window, self.seen, behind, far, None if self.due is None else change(self.due))

    @staticmethod
    def join(states: Sequence[OnlineState]) -> OnlineState:
        """One batch of the rows of several states with the same taps. Rows that have seen fewer tokens get zeros before
        their first token; contributions to later tokens are computed again."""
        seen = max(state.seen for state in states)
        taps = max((state.taps for state in states), key=lambda taps: taps.made)
        behind = torch.cat([state.behind + (seen - state.seen) for state in states])
        return _with_due(_with_far(OnlineState(taps, Window.join([state.window for state in states]), seen, behind)))


@torch.compiler.disable  # a loop over blocks is not worth compiling
def online_prefill(x: Tensor, state: OnlineState) -> tuple[Tensor, OnlineState]:
    """The next tokens of a causal convolution, exactly as in a product with the whole signal.

    Formula: ``y_i = sum_j t_{i-j} x_j`` for the tokens x that follow those the state has seen. The signal is divided
    into blocks of every size ``b, 2b, 4b, ...``. Two tokens in the same or in neighbouring blocks of size b meet
    directly. Other pairs meet at the one size at which their blocks are two or three apart and the blocks twice as
    large are neighbours, by an FFT of twice that size. A block's inputs are complete one whole block before they are
    needed, two blocks later, and the FFT is spread over that time: its channels are distributed over the tokens in
    between.

    Cost: O(log² n) operations per token and channel, and no token takes more than about b times the average, except
    where taps are computed for twice as many lags. Memory: O(n), or O(reach) for taps that end.

    Args:
        x: ``(batch, length >= 1, channels)``.
        state: The state so far; it stays valid.

    Returns:
        A tensor like x, in the taps' dtype, and the state after x.

    Raises:
        ValueError: If x does not fit the state.

    Source: relaxed multiplication (van der Hoeven 2002), with the partition of multipole methods (Greengard and Rokhlin
    1987) in place of his, for deadlines; non-uniform partitioned convolution (Gardner 1995) has deadlines too.
    """
    expected = (state.window.tokens.shape[0], state.taps.near.shape[1])
    if x.dim() != 3 or (x.shape[0], x.shape[2]) != expected or x.shape[1] == 0:
        raise ValueError(f"x must be (batch={expected[0]}, length >= 1, channels={expected[1]}), got {tuple(x.shape)}")
    x = x.to(state.taps.near.dtype)
    parts, start = [], 0
    while start < x.shape[1]:
        size = _piece(state, x.shape[1] - start)
        y, state = _next(x[:, start : start + size], state)
        parts.append(y)
        start += size
    return (parts[0] if len(parts) == 1 else torch.cat(parts, dim=1)), state


def _piece(state: OnlineState, left: int) -> int:
    """How many of the remaining tokens to take at once: up to the end of the smallest block, or the largest block that
    starts here, or any number of blocks so large that the taps end within one."""
    if left < ONLINE_BLOCK or state.seen % ONLINE_BLOCK:
        return min(left, ONLINE_BLOCK - state.seen % ONLINE_BLOCK)
    size = ONLINE_BLOCK
    while 2 * size <= left and state.seen % (2 * size) == 0 and state.taps.meets(size):
        size *= 2
    return size if state.taps.meets(size) else left // size * size


def _next(x: Tensor, state: OnlineState) -> tuple[Tensor, OnlineState]:
    """One piece."""
    taps, window, seen, behind, far, due = state
    length, place = x.shape[1], seen % ONLINE_BLOCK
    before = min(seen, max(length, ONLINE_BLOCK) + place, (taps.reach or seen + 1) - 1)
    window = window.append(x)
    if length == 1:
        tokens = window.tokens[:, -before - 1 :]
        y = (tokens * taps.near[-before - 1 :]).sum(1, keepdim=True)
    else:
        past = state.window.tokens[:, state.window.size - before :]
        lags = before + length if taps.reach is None else min(before + length, taps.reach)
        y = toeplitz_product(torch.cat([past, x], dim=1), taps.upto(lags))[:, before:]
    if length > ONLINE_BLOCK:
        ahead = _ahead(far, seen, length)
        y = y if ahead is None else y + ahead
    elif due is not None:
        y = y + due[:, place : place + length]
    return y, _followed(OnlineState(taps, window, seen + length, behind, far, due), length)


def online_follow(x: Tensor, state: OnlineState) -> OnlineState:
    """The state after tokens ``(batch, length, channels)`` whose outputs are computed elsewhere, from the state's
    ``taps.near`` and ``due``. ValueError if the tokens pass the end of the current block."""
    place, length = state.seen % ONLINE_BLOCK, x.shape[1]
    if place + length > ONLINE_BLOCK:
        raise ValueError(f"at most {ONLINE_BLOCK - place} tokens are left of the block, got {length}")
    return _followed(state._replace(window=state.window.append(x), seen=state.seen + length), length)


def _followed(state: OnlineState, length: int) -> OnlineState:
    """The state after its last ``length`` tokens, with the contributions to later tokens: at the end of a block all of
    those to the next one, and before that a share of what later blocks need."""
    place = (state.seen - length) % ONLINE_BLOCK
    if (place + length) % ONLINE_BLOCK == 0:
        return _with_due(_with_far(state))
    for level in range(place, min(place + length, len(state.far))):
        task = state.far[level][1]
        if task is not None:
            task.advance(-(-state.window.tokens.shape[2] * ONLINE_BLOCK // task.size))
    return state


def _with_far(state: OnlineState) -> OnlineState:
    """The state with the known contributions to the current and the next block of every size."""
    far: list[tuple[_Far | None, ...]] = []
    size = ONLINE_BLOCK
    while size <= state.seen and state.taps.meets(size):
        block = state.seen // size
        known = {f.block: f for f in (state.far[len(far)] if len(far) < len(state.far) else ()) if f is not None}
        pair = (known.get(b) or _Far.of(state.taps, size, b, state.window, state.seen) for b in (block, block + 1))
        far.append(tuple(pair))
        size *= 2
    return state._replace(far=tuple(far))


def _with_due(state: OnlineState) -> OnlineState:
    start = state.seen // ONLINE_BLOCK * ONLINE_BLOCK
    return state._replace(due=_ahead(state.far, start, ONLINE_BLOCK))


def _ahead(far: Sequence[tuple[_Far | None, ...]], start: int, length: int) -> Tensor | None:
    """The contributions of blocks of at least ``length`` to the tokens start..start + length: ``(batch, length,
    channels)``."""
    total: Tensor | None = None
    for task, *_ in far:
        if task is not None and task.size >= length:
            part = task.part(start - task.block * task.size, start - task.block * task.size + length)
            total = part if total is None else total + part
    return None if total is None else total.transpose(1, 2).contiguous()
