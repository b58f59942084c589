"""Streaming steps with fixed shapes for mixers with their own projections: recurrences, linear attention, gates."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from lagwise.mixers.base import StateTuple
from lagwise.mixers.fixed import FixedMixer, counter
from lagwise.mixers.fixed_ring import FixedRingState, RingTaps
from lagwise.mixers.hyena import HyenaMixer
from lagwise.mixers.linear_attention import LinearAttentionMixer
from lagwise.mixers.recurrence import RecurrentMixer
from lagwise.mixers.short_conv import ShortConvMixer
from lagwise.ops.streaming import ring_tokens
from lagwise.ops.symbolic import symbolic_product
from lagwise.ops.window import Window


class FixedRecurrenceState(NamedTuple):
    """Real and imaginary parts of the states, ``(batch, states)``."""

    real: Tensor
    imaginary: Tensor


class FixedRecurrence(FixedMixer):
    """A diagonal recurrence with multiple inputs and outputs (see `RecurrentMixer`), in real arithmetic."""

    log_decay: Tensor
    angle: Tensor
    input: Tensor
    output: Tensor
    direct: Tensor

    def __init__(self, mixer: RecurrentMixer):
        super().__init__()
        log_decay, angle, into, (out, *_), direct = mixer.recurrence()
        self.register_buffer("log_decay", log_decay.detach().double())
        self.register_buffer("angle", angle.detach().double())
        self.register_buffer("input", torch.cat([into.real, into.imag]).detach())
        self.register_buffer("output", torch.cat([out.real, -out.imag], 1).detach())
        self.register_buffer("direct", direct.detach().clone())

    def init_state(self, batch_size: int) -> FixedRecurrenceState:
        zeros = self.input.new_zeros(batch_size, len(self.angle))
        return FixedRecurrenceState(zeros, zeros.clone())

    def run(self, x: Tensor, state: FixedRecurrenceState) -> tuple[Tensor, FixedRecurrenceState]:
        n, dtype, signal = x.shape[1], self.direct.dtype, x.to(self.direct.dtype)
        lags = torch.arange(n + 1, dtype=torch.float64, device=x.device)[:, None]
        size, turn = (self.log_decay * lags).exp(), self.angle * lags
        cos, sin = (size * turn.cos()).to(dtype), (size * turn.sin()).to(dtype)  # of powers, (n + 1, states)
        u, v = F.linear(signal, self.input).chunk(2, 2)
        a, b = state.real[:, None], state.imaginary[:, None]
        if n != 1:
            c, s = cos[:n].t(), sin[:n].t()
            u, v = (
                symbolic_product(u, c, 0) - symbolic_product(v, s, 0),
                symbolic_product(u, s, 0) + symbolic_product(v, c, 0),
            )
        real, imaginary = u + cos[1:] * a - sin[1:] * b, v + cos[1:] * b + sin[1:] * a
        y = self.direct * signal + F.linear(torch.cat([real, imaginary], 2), self.output)
        return y.to(x.dtype), FixedRecurrenceState(real[:, -1], imaginary[:, -1])

    def take(self, state: StateTuple) -> FixedRecurrenceState:
        (memory,) = state.parts
        return FixedRecurrenceState(memory.real.clone(), memory.imag.clone())

    def give(self, state: FixedRecurrenceState) -> StateTuple:
        return StateTuple((torch.complex(*state),))


class FixedSums(NamedTuple):
    """Sums of products of keys and values, and the number of tokens of each row, as in the mixer's own state."""

    sums: Tensor
    seen: Tensor


class FixedLinearAttention(FixedMixer):
    """`LinearAttentionMixer`, whose own state already has a fixed shape."""

    def __init__(self, mixer: LinearAttentionMixer):
        super().__init__()
        self.mixer = mixer

    def init_state(self, batch_size: int) -> FixedSums:
        return self.take(self.mixer.init_state(batch_size))

    def run(self, x: Tensor, state: FixedSums) -> tuple[Tensor, FixedSums]:
        y, after = self.mixer.mix_next(x, StateTuple(tuple(state)), None)
        return y, self.take(after)

    def take(self, state: StateTuple) -> FixedSums:
        return FixedSums(*state.parts)

    def give(self, state: FixedSums) -> StateTuple:
        return StateTuple(tuple(state))


class FixedShortConv(FixedMixer):
    """`ShortConvMixer`."""

    def __init__(self, mixer: ShortConvMixer):
        super().__init__()
        self.mixer, self.short = mixer, RingTaps(mixer.taps.t())

    def init_state(self, batch_size: int) -> FixedRingState:
        return self.short.init_state(batch_size)

    def run(self, x: Tensor, state: FixedRingState) -> tuple[Tensor, FixedRingState]:
        before, after, value = self.mixer.input(x).chunk(3, 2)
        y, state = self.short(before * value, state)
        return self.mixer.out(after * y), state

    def take(self, state: StateTuple) -> FixedRingState:
        return _taken(self.short, state.parts[0])

    def give(self, state: FixedRingState) -> StateTuple:
        return StateTuple((_given(state),))


class FixedHyenaState(NamedTuple):
    """States of the short convolution and of each long one."""

    short: FixedRingState
    filters: tuple[Any, ...]


class FixedHyena(FixedMixer):
    """`HyenaMixer`. make: a function that returns the fixed form of a long convolution, or raises ValueError."""

    filters: Any

    def __init__(self, mixer: HyenaMixer, make: Callable[[nn.Module], Any]):
        super().__init__()
        self.mixer, self.short = mixer, RingTaps(mixer.taps.t())
        self.filters = nn.ModuleList(make(long) for long in mixer.filters)

    def init_state(self, batch_size: int) -> FixedHyenaState:
        filters = tuple(long.init_state(batch_size) for long in self.filters)
        return FixedHyenaState(self.short.init_state(batch_size), filters)

    def run(self, x: Tensor, state: FixedHyenaState) -> tuple[Tensor, FixedHyenaState]:
        short, window = self.short(self.mixer.input(x), state.short)
        value, *gates = short.chunk(len(self.filters) + 1, 2)
        states = []
        for gate, long, held in zip(gates, self.filters, state.filters, strict=True):
            value, after = long.prefill(value, held)
            value, states = gate * value, [*states, after]
        return self.mixer.out(value), FixedHyenaState(window, tuple(states))

    def take(self, state: StateTuple) -> FixedHyenaState:
        window, *states = state.parts
        taken = tuple(long.take(held) for long, held in zip(self.filters, states, strict=True))
        return FixedHyenaState(_taken(self.short, window), taken)

    def give(self, state: FixedHyenaState) -> StateTuple:
        given = (long.give(held) for long, held in zip(self.filters, state.filters, strict=True))
        return StateTuple((_given(state.short), *given))


def _taken(short: RingTaps, window: Window) -> FixedRingState:
    return short.take(window.tokens, counter(window.tokens))


def _given(state: FixedRingState) -> Window:
    return Window(ring_tokens(state.ring, state.seen), state.ring.shape[1])
