"""Exact convolution of a signal that arrives token by token, in O(log² n) per token with a bound for every token; and
its step for graphs, on states of fixed shapes."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from lagwise.ops.product import toeplitz_product
from lagwise.ops.streaming.blocks import (
    GROWTH,
    ONLINE_BLOCK,
    BlockSpectrum,
    Contribution,
    OnlineTaps,
)
from lagwise.ops.window import Window, ring_lags, ring_of, ring_write

_LONG_CHUNK = 256  # tokens from which on a chunk is mixed by one product, up to the end of its large block


class WindowState(NamedTuple):
    """The last tokens of a stream, a `Window` or a ring ``(batch, reach, channels)``, and their number so far,
    ``(batch,)``."""

    ring: Window | Tensor
    seen: Tensor


class DueState(NamedTuple):
    """The part of an `OnlineState` that a step needs: the last block of tokens, ``(batch, block, channels)``; the
    contribution of earlier blocks to the current one, ``(batch, block, channels)``; and the number of tokens so far,
    ``(batch,)``."""

    recent: Tensor
    due: Tensor
    seen: Tensor


class OnlineState(NamedTuple):
    """A stream's inputs ``(batch, n, channels)``, as far back as the taps reach, and their known contributions to later
    tokens.

    Attributes:
        seen: tokens of the row that started first.
        behind: how much later each row started, ``(batch,)``, on the CPU.
        far: for every size of large blocks, the contributions to the current block and to the next.
        tiles: those of neighbours to the current block, one per size, the smallest first.
        due: ``(batch, block, channels)``, the sum of all these for the smallest current block, or None.
        current: whether these are of the block of the next token; if not, they are computed with it (`online_block`),
            so that a stream that ends with a block does not wait for the next.
    """

    taps: OnlineTaps
    window: Window
    seen: int
    behind: Tensor
    far: tuple[tuple[Contribution | None, ...], ...] = ()
    tiles: tuple[Contribution, ...] = ()
    due: Tensor | None = None
    current: bool = True

    @classmethod
    def start(cls, batch_size: int, taps: OnlineTaps) -> OnlineState:
        """The state before the first token."""
        near = taps.near
        window = Window.empty(batch_size, near.shape[1], taps.support, like=near)
        return cls(taps, window, 0, torch.zeros(batch_size, dtype=torch.long, device="cpu"))

    @classmethod
    def of(cls, taps: OnlineTaps, tokens: Tensor, seen: Tensor) -> OnlineState:
        """The state of rows that have seen ``seen`` tokens ``(batch,)``, from their last tokens ``(batch, n,
        channels)``: as many as the taps reach, or all."""
        longest = int(seen.max())
        window = Window(tokens[:, max(0, tokens.shape[1] - longest) :], taps.support)
        return cls(taps, window, longest, (longest - seen).cpu(), current=False)

    def map_batch(self, change: Callable[[Tensor], Tensor]) -> OnlineState:
        """The state of other rows: ``change`` is applied to every tensor whose first axis is the batch. Time before the
        first token of the new rows is dropped."""
        behind = change(self.behind)
        early = int(behind.min()) if len(behind) else 0
        window = self.window.map_batch(change)
        if early:
            window = window.last(self.seen - early)
            return OnlineState(self.taps, window, self.seen - early, behind - early, current=False)
        far = []
        for pair in self.far:  # blocks that tasks of one size share stay shared
            shared: dict[int, BlockSpectrum] = {}
            far.append(tuple(None if task is None else task.map_batch(change, shared) for task in pair))
        tiles = tuple(tile.map_batch(change, {}) for tile in self.tiles)
        due = None if self.due is None else change(self.due)
        return OnlineState(self.taps, window, self.seen, behind, tuple(far), tiles, due, self.current)

    @staticmethod
    def join(states: Sequence[OnlineState]) -> OnlineState:
        """Join the rows of several states with the same taps to one batch. Rows that have seen fewer tokens get zeros
        before their first token; contributions to later tokens are computed again."""
        seen = max(state.seen for state in states)
        taps = max((state.taps for state in states), key=lambda taps: taps.computed)
        behind = torch.cat([state.behind + (seen - state.seen) for state in states])
        window = Window.join([state.window for state in states])
        return OnlineState(taps, window, seen, behind, current=False)


def online_prefill(x: Tensor, state: OnlineState) -> tuple[Tensor, OnlineState]:
    """The next tokens of a causal convolution, exactly as in a product with the whole signal.

    Formula: ``y_i = sum_j t_{i-j} x_j`` for the tokens x that follow those the state has seen. The signal is divided
    into blocks of 64 tokens, in which pairs of tokens meet directly, and large blocks of b = 1024. In a large block,
    pairs meet in the two halves of the one tile of 128, 256, ..., b tokens that divides them: by an FFT when the first
    half is complete. So do the pairs in neighbouring large blocks. Other pairs meet at the one size ``b, 4b, 16b, ...``
    at which their blocks are two or more apart and the blocks four times as large are the same or neighbours: by FFTs
    of twice the size, one of each block of inputs, one of each block of outputs, and sums of products between them.
    Such a block of inputs is complete one whole block before it is needed, and the work is spread over that time, a few
    channels at a time.

    Cost: O(log² n) operations per token and channel. The slowest tokens take one FFT of 2 b points for every channel,
    except where taps are computed for twice as many lags. Memory: O(n), or O(reach) for taps that end.

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
    batch, channels, shape = state.window.batch, state.taps.channels, x.shape
    if len(shape) != 3 or shape[0] != batch or shape[2] != channels or shape[1] == 0:
        raise ValueError(f"x must be (batch={batch}, length >= 1, channels={channels}), got {tuple(shape)}")
    # A loop over blocks is not worth compiling.
    return _outside_graphs(x, state) if torch.compiler.is_compiling() else _by_chunk(x, state)


def _by_chunk(x: Tensor, state: OnlineState) -> tuple[Tensor, OnlineState]:
    if x.dtype != state.taps.near.dtype:
        x = x.to(state.taps.near.dtype)
    if x.shape[1] == 1:
        return _token(x, state)
    parts, start = [], 0
    while start < x.shape[1]:
        size = _chunk_size(state, x.shape[1] - start)
        y, state = _next(x[:, start : start + size], state)
        parts.append(y)
        start += size
    return (parts[0] if len(parts) == 1 else torch.cat(parts, dim=1)), state


_outside_graphs = torch.compiler.disable(_by_chunk)


def _chunk_size(state: OnlineState, left: int) -> int:
    """Number of the remaining tokens to take at once: the whole start of a text, or up to the end of the smallest
    block or of the large one, or the largest block that starts here, or any number of blocks so large that the taps end
    within one."""
    if state.seen == 0:
        return left
    size = state.taps.large
    rest = size - state.seen % size
    if left < size or rest < size:
        return min(left, rest if left >= _LONG_CHUNK else ONLINE_BLOCK - state.seen % ONLINE_BLOCK)
    while GROWTH * size <= left and state.seen % (GROWTH * size) == 0 and state.taps.meets(size, 2):
        size *= GROWTH
    return size if state.taps.meets(size, 2) else left // size * size


def _token(x: Tensor, state: OnlineState) -> tuple[Tensor, OnlineState]:
    """`_next` for one token: it meets the tokens of its smallest block directly. This runs once for every token of
    every stream, so it takes as few operations as possible."""
    taps, window, seen, behind, far, tiles, due, _ = online_block(state)
    position, window = seen % ONLINE_BLOCK, window.append(x)
    lags = position + 1 if taps.support is None else min(position + 1, taps.support)
    y = (window.latest(lags) * taps.nearest[lags]).sum(1, keepdim=True)
    if due is not None:
        y += due[:, position : position + 1]
    return y, _advance(OnlineState(taps, window, seen + 1, behind, far, tiles, due), 1)


def _next(x: Tensor, state: OnlineState) -> tuple[Tensor, OnlineState]:
    """Push one chunk through the online convolution."""
    taps, window, seen, behind, far, tiles, due, _ = state = online_block(state)
    length, position = x.shape[1], seen % ONLINE_BLOCK
    small, large = position + length <= ONLINE_BLOCK, length >= taps.large
    before = position if small else length if large else seen % taps.large
    before = min(seen, before, (taps.support or seen + 1) - 1)
    window = window.append(x)
    past = state.window.tokens[:, state.window.size - before :]
    lags = before + length if taps.support is None else min(before + length, taps.support)
    y = toeplitz_product(torch.cat([past, x], dim=1), taps.upto(lags))[:, before:]
    if small:
        y = y if due is None else y + due.narrow(1, position, length)
    else:
        neighbour = () if large else [tile for tile in tiles if tile.size == taps.large]
        ahead = _ahead([*neighbour, *(pair[0] for pair in far)], seen, length)
        y = y if ahead is None else y + ahead
    return y, _advance(OnlineState(taps, window, seen + length, behind, far, tiles, due), length)


def _advance(state: OnlineState, length: int) -> OnlineState:
    """The state after its last ``length`` tokens, with a share of what later blocks need."""
    position = (state.seen - length) % ONLINE_BLOCK
    if (position + length) % ONLINE_BLOCK == 0 or length > ONLINE_BLOCK:
        return state._replace(current=False)
    for level in range(position, min(position + length, len(state.far))):
        task = state.far[level][-1]
        if task is not None:
            blocks = state.seen % task.size // ONLINE_BLOCK + 1
            task.advance(-(-state.taps.channels * blocks * ONLINE_BLOCK // task.size))
    return state


def online_block(state: OnlineState) -> OnlineState:
    """The state with the contributions to the current blocks of every size, and to the next of those that are spread
    over time."""
    if state.current:
        return state
    far = _far(state)
    start = state.seen // ONLINE_BLOCK * ONLINE_BLOCK
    tiles = _tiles(state, start)
    due = _ahead([*tiles, *(pair[0] for pair in far)], start, ONLINE_BLOCK)
    return state._replace(far=far, tiles=tiles, due=due, current=True)


def _far(state: OnlineState) -> tuple[tuple[Contribution | None, ...], ...]:
    """The known contributions to the current large block of every size, and to the next."""
    far: list[tuple[Contribution | None, ...]] = []
    size = state.taps.large
    while size <= state.seen and state.taps.meets(size, 2):
        block = state.seen // size
        previous = {f.block: f for f in (state.far[len(far)] if len(far) < len(state.far) else ()) if f is not None}
        blocks = {i: b for task in previous.values() for i, b in task.blocks.items()}
        pair = []
        for index in (block, block + 1):
            # Blocks that are farther, whose parents are two apart, meet at their parents' size.
            earlier = range(max(0, (index // GROWTH - 1) * GROWTH), index - 1)
            task = previous.get(index) or Contribution.of(
                state.taps, size, index, earlier, state.window, state.seen, blocks
            )
            blocks.update(task.blocks if task else {})
            pair.append(task)
        far.append(tuple(pair))
        size *= GROWTH
    return tuple(far)


def _tiles(state: OnlineState, start: int) -> tuple[Contribution, ...]:
    """The contributions to the block from ``start`` on of the halves before its own, and of the large block before."""
    previous = {(tile.block, tile.size): tile for tile in state.tiles}
    tiles, size = [], ONLINE_BLOCK
    while size <= state.taps.large:
        block = start // size
        if block and (size == state.taps.large or block % 2):
            tile = previous.get((block, size))
            tiles.append(tile or Contribution.of(state.taps, size, block, [block - 1], state.window, state.seen, {}))
        size *= 2
    return tuple(tile for tile in tiles if tile is not None)


def _ahead(tasks: Iterable[Contribution | None], start: int, length: int) -> Tensor | None:
    """The contributions of blocks of at least ``length`` to the tokens start..start + length: ``(batch, length,
    channels)``."""
    total: Tensor | None = None
    for task in tasks:
        if task is not None and task.size >= length:
            first = start - task.block * task.size
            part = task.part(first, first + length)
            total = part if total is None else total + part
    return None if total is None else total.transpose(1, 2).contiguous()


def due_step(x: Tensor, state: DueState, near: Tensor) -> tuple[Tensor, DueState]:
    """Process one token of a convolution with a kernel of any length, as `online_prefill` computes it.

    Shapes: x ``(batch, channels)``; near ``(block, channels)``, the first taps, lag 0 first. Returns a tensor like x.
    A step does not change ``due``: an `OnlineFollower` does, at the end of a block.
    """
    recent, position = ring_write(state.recent, x, state.seen), state.seen % ONLINE_BLOCK
    lags = ring_lags(recent, state.seen)
    # `due` contains all tokens before this block.
    met = near[lags] * (lags <= position[:, None])[..., None]
    y = (recent * met).sum(1) + state.due[torch.arange(x.shape[0], device=x.device), position]
    return y.to(x.dtype), DueState(recent, state.due, state.seen + 1)


def due_state(state: OnlineState) -> DueState:
    """Extract the state of a step from one that `online_block` has made current, or of one before the first token."""
    near = state.taps.near
    tokens, rows = state.window.latest(min(ONLINE_BLOCK, state.window.size)), state.window.batch
    seen = torch.full((rows,), state.seen, device=near.device)
    recent = ring_of(tokens, ONLINE_BLOCK, seen).to(near.dtype, copy=True).contiguous()
    due = torch.zeros_like(recent) if state.due is None else state.due.to(recent.dtype, copy=True).contiguous()
    return DueState(recent, due, seen)


class OnlineFollower:
    """Updates the `OnlineState` of a stream, from a current one on (`online_block`), whose steps change a `DueState` in
    place."""

    def __init__(self, state: OnlineState, fixed: DueState):
        self.state, self.fixed, self.waiting = state, fixed, 0

    def advance(self) -> None:
        """Count one more token. At the end of a block, update ``due`` for the next block."""
        position = (self.state.seen + self.waiting) % ONLINE_BLOCK
        self.waiting += 1
        if position < len(self.state.far) or position == ONLINE_BLOCK - 1:
            state = online_block(self.stopped())
            if state.due is None:
                self.fixed.due.zero_()
            elif state.due is not self.state.due:
                self.fixed.due.copy_(state.due)
            self.state, self.waiting = state, 0

    def stopped(self) -> OnlineState:
        """The state after the last token."""
        if self.waiting == 0:
            return self.state
        first, state = self.state.seen % ONLINE_BLOCK, online_block(self.state)
        window = state.window.append(self.fixed.recent[:, first : first + self.waiting])
        return _advance(state._replace(window=window, seen=state.seen + self.waiting), self.waiting)
