"""Streaming steps of finite convolutions on a ring buffer of all tokens in reach."""

from __future__ import annotations

from typing import NamedTuple

from torch import Tensor, nn

from lagwise.mixers.fixed import FixedMixer, counter
from lagwise.mixers.toeplitz import ToeplitzMixer
from lagwise.ops.streaming import OnlineState, OnlineTaps, ring_convolve, ring_of, ring_product, ring_tokens, ring_write


class FixedRingState(NamedTuple):
    """The tokens in a kernel's reach, ``(batch, reach, channels)``, and the number of tokens so far, ``(batch,)``."""

    ring: Tensor
    seen: Tensor


class RingTaps(nn.Module):
    """Causal convolution by taps ``(reach, channels)``, lag 0 first, on a ring of ``reach`` tokens."""

    taps: Tensor

    def __init__(self, taps: Tensor):
        super().__init__()
        self.register_buffer("taps", taps.detach().contiguous())

    def init_state(self, batch_size: int) -> FixedRingState:
        ring = self.taps.new_zeros(batch_size, *self.taps.shape)
        return FixedRingState(ring, counter(ring))

    def forward(self, x: Tensor, state: FixedRingState) -> tuple[Tensor, FixedRingState]:
        """Convolve the next tokens, ``(batch, length, channels)``; return the output and the new state."""
        if x.shape[1] == 1:
            ring = ring_write(state.ring, x[:, 0], state.seen)
            y = ring_product(ring, self.taps, state.seen)[:, None]
        else:
            y, ring = ring_convolve(state.ring, x, self.taps, state.seen)
        return y.to(x.dtype), FixedRingState(ring, state.seen + x.shape[1])

    def take(self, tokens: Tensor, seen: Tensor) -> FixedRingState:
        """The state of rows that end in the given tokens."""
        return FixedRingState(ring_of(tokens, len(self.taps), seen), seen)


class FixedRing(FixedMixer):
    """A finite kernel, lag by lag, in O(reach) per token.

    ValueError for an infinite kernel, whose state grows with the text.
    """

    def __init__(self, mixer: ToeplitzMixer):
        super().__init__()
        reach = mixer.kernel.reach
        if reach is None:
            raise infinite_kernel_error(mixer)
        self.online = OnlineTaps(mixer.kernel.taps, reach)
        self.ring = RingTaps(self.online.upto(reach).t())

    def init_state(self, batch_size: int) -> FixedRingState:
        return self.ring.init_state(batch_size)

    def run(self, x: Tensor, state: FixedRingState) -> tuple[Tensor, FixedRingState]:
        return self.ring(x, state)

    def take(self, state: OnlineState) -> FixedRingState:
        return self.ring.take(state.window.tokens, (state.seen - state.behind).to(self.ring.taps.device))

    def give(self, state: FixedRingState) -> OnlineState:
        return OnlineState.of(self.online, ring_tokens(state.ring, state.seen), state.seen)


def infinite_kernel_error(mixer: ToeplitzMixer) -> ValueError:
    """The error for a kernel whose streaming state grows with the text."""
    return ValueError(
        f"kernel {type(mixer.kernel).__name__} has infinite support, so its streaming state grows with the text; "
        "convert it to a state space first: 'lagwise convert RUN', or model.to_recurrent()"
    )
