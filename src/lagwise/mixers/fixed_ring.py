"""The step of a kernel with an end on a ring of all the tokens that it reaches."""

from __future__ import annotations

from typing import NamedTuple

from torch import Tensor

from lagwise.mixers.fixed import FixedMixer, counter
from lagwise.mixers.toeplitz import ToeplitzMixer
from lagwise.ops.streaming import OnlineState, OnlineTaps, ring_convolve, ring_of, ring_product, ring_tokens, ring_write


class FixedRingState(NamedTuple):
    """The tokens that a kernel reaches, ``(batch, reach, channels)``, and the tokens so far, ``(batch,)``."""

    ring: Tensor
    seen: Tensor


class FixedRing(FixedMixer):
    """A kernel with an end, lag by lag: O(reach) a token.

    ValueError for a kernel without an end, whose state grows with the text.
    """

    taps: Tensor

    def __init__(self, mixer: ToeplitzMixer):
        super().__init__()
        self.online = OnlineTaps(mixer.kernel.taps, mixer.kernel.reach)
        self.reach = mixer.kernel.reach
        if self.reach is None:
            raise endless(mixer)
        self.register_buffer("taps", self.online.upto(self.reach).detach().t().contiguous())

    def init_state(self, batch_size: int) -> FixedRingState:
        ring = self.taps.new_zeros(batch_size, *self.taps.shape)
        return FixedRingState(ring, counter(ring))

    def step(self, x: Tensor, state: FixedRingState) -> tuple[Tensor, FixedRingState]:
        ring = ring_write(state.ring, x, state.seen)
        return ring_product(ring, self.taps, state.seen).to(x.dtype), FixedRingState(ring, state.seen + 1)

    def run(self, x: Tensor, state: FixedRingState) -> tuple[Tensor, FixedRingState]:
        y, ring = ring_convolve(state.ring, x, self.taps, state.seen)
        return y.to(x.dtype), FixedRingState(ring, state.seen + x.shape[1])

    def take(self, state: OnlineState) -> FixedRingState:
        seen = (state.seen - state.behind).to(self.taps.device)
        return FixedRingState(ring_of(state.window.tokens, len(self.taps), seen), seen)

    def give(self, state: FixedRingState) -> OnlineState:
        return OnlineState.of(self.online, ring_tokens(state.ring, state.seen), state.seen)


def endless(mixer: ToeplitzMixer) -> ValueError:
    """The error for a kernel whose streaming state grows with the text."""
    return ValueError(
        f"kernel {type(mixer.kernel).__name__} has no end, so its streaming state grows with the text; convert it to a "
        "state space first: 'lagwise convert RUN', or model.to_recurrent()"
    )
