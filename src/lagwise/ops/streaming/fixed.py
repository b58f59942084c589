"""The stream of a long kernel with states of fixed shapes, for graphs: a ring of all tokens in reach, or the last block
of an `OnlineState`, whose longer blocks are computed outside the graph."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from lagwise.ops.ring import ring_lags, ring_of, ring_write
from lagwise.ops.streaming.blocks import ONLINE_BLOCK
from lagwise.ops.streaming.online import OnlineState, online_block, online_follow
from lagwise.ops.window import Window


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
        first = self.state.seen % ONLINE_BLOCK
        return online_follow(self.fixed.recent[:, first : first + self.waiting], self.state)
