"""The base class of linear recurrences with one diagonal state for all channels."""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from lagwise.kernels.base import KeepsFloat32
from lagwise.mixers.base import Mixer, masked
from lagwise.mixers.derived import Derived
from lagwise.ops import Layout
from lagwise.ops.operation import symbolic
from lagwise.ops.packing import per_document
from lagwise.ops.recurrence import varying_scan, zoh_tokens
from lagwise_papers.family.diagonal_scan import diagonal_graph_scan, diagonal_scan


class Recurrence(NamedTuple):
    """Parameters of the recurrence ``h_t = p h_{t-1} + B x_t`` and ``y_t = Re C h_t + D x_t`` with ``p = exp(log_decay
    + j angle)``.

    Shapes: log_decay and angle ``(states,)``; input B ``(states, channels)`` and each of outputs C ``(channels,
    states)`` complex; direct D ``(channels,)``. There is one C, or two if two-sided: the second is for the recurrence
    from the end.
    """

    log_decay: Tensor
    angle: Tensor
    input: Tensor
    outputs: tuple[Tensor, ...]
    direct: Tensor


class RecurrentState(NamedTuple):
    """Streaming state: real and imaginary parts of the states, ``(batch, states)``."""

    real: Tensor
    imaginary: Tensor


class RealRecurrence(NamedTuple):
    """A causal `Recurrence` in real numbers: real above imaginary parts of the input, ``(2 states, channels)``; real
    beside negative imaginary parts of the output, ``(channels, 2 states)``; real and imaginary parts of the poles,
    ``(states,)``, and their logarithms, in float64."""

    log_decay: Tensor
    angle: Tensor
    input: Tensor
    output: Tensor
    direct: Tensor
    cos: Tensor
    sin: Tensor


class RecurrentMixer(KeepsFloat32, Derived, Mixer):
    """A linear recurrence with many inputs and outputs. Abstract: subclasses implement `recurrence` and hold the poles;
    B, C and D are held here, B and C as real and imaginary parts. states: the number of states.

    It streams exactly, in constant memory and time: one complex number per state. A two-sided one runs once from either
    end, so that lag 0 counts in both.
    """

    any_rate = takes_times = takes_shards = True
    needs_float64 = True

    def __init__(self, channels: int, causal: bool, states: int):
        super().__init__(channels, causal)
        self.input = nn.Parameter(torch.empty(states, channels, 2))
        self.output = nn.Parameter(torch.empty(1 if causal else 2, channels, states, 2))
        self.direct = nn.Parameter(torch.empty(channels))

    def reset_maps(self, states: int) -> None:
        """Draw B, C and D from normal distributions with variance 1 / (2 channels) per part, 1 / (2 states) per part,
        and 1; a pair of conjugate states counts twice."""
        with torch.no_grad():
            self.input.normal_(std=(2 * self.channels) ** -0.5)
            self.output.normal_(std=(2 * states) ** -0.5)
            self.direct.normal_()

    def maps(self, dtype: torch.dtype) -> tuple[Tensor, Tensor, Tensor]:
        """Return B ``(states, channels)`` and C ``(directions, channels, states)``, complex, and D, in this
        precision."""
        into, out = (torch.view_as_complex(p.to(dtype).contiguous()) for p in (self.input, self.output))
        return into, out, self.direct.to(dtype)

    def recurrence(self) -> Recurrence:
        """Return the recurrence in float32 or better, with the angle in float64, because its error grows with the
        text."""
        raise NotImplementedError

    def mix(self, x: Tensor, state: RecurrentState | None, layout: Layout) -> tuple[Tensor, Any]:
        if layout.token_time is not None:
            return self._mix_timed(x, state, layout)
        if layout.shard is not None:
            return self._mix_shard(x, layout), None
        if self._frozen is not None or (state is not None and symbolic(x.shape[1])):
            return self._in_graph(x, self.init_state(x.shape[0]) if state is None else state)
        y, memory = self._run(x, None if state is None else torch.complex(*state))
        return y, RecurrentState(memory.real, memory.imag)

    def _mix_shard(self, x: Tensor, layout: Layout) -> Tensor:
        shard = layout.shard
        y = per_document(lambda x, _: self._run(x, None)[0], x, Layout(layout.mask, layout.seq_idx))
        log_decay, angle, into, outputs, _ = self.recurrence()
        lags = torch.arange(x.shape[1] + 1, dtype=torch.float64, device=x.device)[:, None]
        log_pole = torch.complex(log_decay.double(), angle.double())
        with torch.autocast(x.device.type, enabled=False):
            powers = (log_pole * lags).exp().to(into.dtype)  # (length + 1, states)
            for output, backward in zip(outputs, (False, True), strict=False):
                last, first = shard.open_end(backward=backward), shard.open_end(backward=not backward)
                ending = F.linear(masked(x, last).to(log_decay.dtype), _stack_rows(into)).unflatten(2, (2, -1))
                added = torch.complex(*ending.unbind(2))
                state = torch.einsum("bts,ts->bs", added, powers[:-1] if backward else powers[:-1].flip(0))
                before = shard.state_before(state, log_pole, backward=backward)
                more = _real_product(before[:, None] * (powers[1:].flip(0) if backward else powers[1:]), output)
                y = y + masked(more, first).to(x.dtype)
        return y

    def _mix_timed(self, x: Tensor, state: RecurrentState | None, layout: Layout) -> tuple[Tensor, Any]:
        assert layout.token_time is not None
        log_decay, angle, into, outputs, direct = self.recurrence()
        memory = None if state is None else torch.complex(*state)
        with torch.autocast(x.device.type, enabled=False):
            signal = x.to(log_decay.dtype)
            added = torch.complex(*F.linear(signal, _stack_rows(into)).chunk(2, 2))
            exponent = torch.complex(log_decay.double(), angle.double()).to(added.dtype)
            poles, factors = zoh_tokens(exponent, layout.token_time)
            states = varying_scan(factors * added, poles, memory)
            y = direct * signal + _real_product(states, outputs[0])
            if not self.causal:
                poles, factors = (each.flip(1) for each in zoh_tokens(exponent, layout.times(False)[1]))
                y = y + _real_product(varying_scan(factors * added.flip(1), poles).flip(1), outputs[1])
        after = None if state is None else RecurrentState(states[:, -1].real, states[:, -1].imag)
        return y.to(x.dtype), after

    def derive(self, form: str = "eager") -> Any:
        if not self.causal:
            return ()
        log_decay, angle, into, (out, *_), direct = self.recurrence()
        log_decay, angle = log_decay.double(), angle.double()
        size = log_decay.exp()
        return RealRecurrence(
            log_decay,
            angle,
            _stack_rows(into),
            _stack_columns(out),
            direct,
            (size * angle.cos()).to(direct.dtype),
            (size * angle.sin()).to(direct.dtype),
        )

    def init_state(self, batch_size: int) -> RecurrentState:
        self.require_causal()
        poles = self.derived(checked=True).cos
        zeros = poles.new_zeros(batch_size, len(poles))
        return RecurrentState(zeros, zeros.clone())

    def _in_graph(self, x: Tensor, state: RecurrentState) -> tuple[Tensor, RecurrentState]:
        recurrence = self.derived()
        signal = x.to(recurrence.direct.dtype)
        u, v = F.linear(signal, recurrence.input).chunk(2, 2)
        real, imaginary = diagonal_graph_scan((u, v), recurrence.log_decay, recurrence.angle, state)
        y = recurrence.direct * signal + F.linear(torch.cat([real, imaginary], 2), recurrence.output)
        return y.to(x.dtype), RecurrentState(real[:, -1], imaginary[:, -1])

    def mix_token(self, x: Tensor, state: RecurrentState) -> tuple[Tensor, RecurrentState]:
        _, _, into, out, direct, cos, sin = self.derived()
        with torch.autocast(x.device.type, enabled=False):
            token, (a, b) = x.to(direct.dtype), state
            u, v = F.linear(token, into).chunk(2, 1)
            real, imaginary = u + cos * a - sin * b, v + cos * b + sin * a
            y = direct * token + F.linear(torch.cat([real, imaginary], 1), out)
        return y.to(x.dtype), RecurrentState(real, imaginary)

    def _run(self, x: Tensor, memory: Tensor | None) -> tuple[Tensor, Tensor]:
        log_decay, angle, into, outputs, direct = self.recurrence()
        dtype = log_decay.dtype
        with torch.autocast(x.device.type, enabled=False):
            signal = x.to(dtype)
            added = torch.complex(*F.linear(signal, _stack_rows(into)).chunk(2, 2))
            states, memory = diagonal_scan(added, log_decay, angle, memory)
            y = direct * signal + _real_product(states, outputs[0])
            if not self.causal:
                states, _ = diagonal_scan(added.flip(1), log_decay, angle)
                y = y + _real_product(states.flip(1), outputs[1])
        return y.to(x.dtype), memory


def _real_product(states: Tensor, output: Tensor) -> Tensor:
    """Compute ``Re C h`` for h ``(batch, length, states)``."""
    return F.linear(torch.cat([states.real, states.imag], 2), _stack_columns(output))


def _stack_rows(into: Tensor) -> Tensor:
    return torch.cat([into.real, into.imag])


def _stack_columns(output: Tensor) -> Tensor:
    return torch.cat([output.real, -output.imag], 1)
