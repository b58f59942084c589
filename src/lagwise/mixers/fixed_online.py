"""The step of an exact long kernel with a state of fixed shapes; long blocks are computed outside the graph."""

from __future__ import annotations

from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from lagwise.mixers.fixed import FixedMixer, counter
from lagwise.mixers.toeplitz import ToeplitzMixer
from lagwise.ops.streaming import (
    ONLINE_BLOCK,
    OnlineState,
    OnlineTaps,
    online_block,
    online_follow,
    ring_lags,
    ring_of,
    ring_write,
)


class FixedOnlineState(NamedTuple):
    """The part of an `OnlineState` that a step needs: the last block of tokens, ``(batch, block, channels)``; the
    contribution of earlier blocks to the current one, ``(batch, block, channels)``; and the number of tokens so far,
    ``(batch,)``."""

    recent: Tensor
    due: Tensor
    seen: Tensor


class FixedOnline(FixedMixer):
    """A kernel of any length, finite or infinite, in O(log² n) per token (see `lagwise.ops.online_prefill`).

    A step does not change ``due``. An `OnlineFollower` updates it at the end of a block.
    """

    near: Tensor

    def __init__(self, mixer: ToeplitzMixer):
        super().__init__()
        self.online = OnlineTaps(mixer.kernel.taps, mixer.kernel.reach)
        near = self.online.near.detach().flip(0)
        self.register_buffer("near", F.pad(near, (0, 0, 0, ONLINE_BLOCK - len(near))))

    def init_state(self, batch_size: int) -> FixedOnlineState:
        recent = self.near.new_zeros(batch_size, *self.near.shape)
        return FixedOnlineState(recent, torch.zeros_like(recent), counter(recent))

    def step(self, x: Tensor, state: FixedOnlineState) -> tuple[Tensor, FixedOnlineState]:
        recent, place = ring_write(state.recent, x, state.seen), state.seen % ONLINE_BLOCK
        lags = ring_lags(recent, state.seen)
        # `due` contains all tokens before this block.
        met = self.near[lags] * (lags <= place[:, None])[..., None]
        y = (recent * met).sum(1) + state.due[torch.arange(x.shape[0], device=x.device), place]
        return y.to(x.dtype), FixedOnlineState(recent, state.due, state.seen + 1)

    def take(self, state: OnlineState) -> FixedOnlineState:
        state = online_block(state)
        seen = torch.full_like(counter(state.window.tokens), state.seen)
        recent = ring_of(state.window.tokens[:, -ONLINE_BLOCK:], ONLINE_BLOCK, seen)
        due = torch.zeros_like(recent) if state.due is None else state.due.clone()
        return FixedOnlineState(recent, due, seen)

    def give(self, state: FixedOnlineState) -> OnlineState:
        raise NotImplementedError("the follower holds the tokens before the last blocks; use OnlineFollower.stopped")


class OnlineFollower:
    """Updates the `OnlineState` of a stream, from a current one on (`online_block`), whose steps change a
    `FixedOnlineState` in place."""

    def __init__(self, state: OnlineState, fixed: FixedOnlineState):
        self.state, self.fixed, self.waiting = state, fixed, 0

    def advance(self) -> None:
        """Count one more token. At the end of a block, update ``due`` for the next block."""
        place = (self.state.seen + self.waiting) % ONLINE_BLOCK
        self.waiting += 1
        if place < len(self.state.far) or place == ONLINE_BLOCK - 1:
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
