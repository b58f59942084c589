"""The base class of linear recurrences with one diagonal state for all channels."""

from __future__ import annotations

from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from lagwise.mixers.base import Mixer, StateTuple
from lagwise.ops import Layout, diagonal_scan
from lagwise.ops.precision import KeepsFloat32


class Recurrence(NamedTuple):
    """``h_t = p h_{t-1} + B x_t`` and ``y_t = Re C h_t + D x_t`` with ``p = exp(log_decay + j angle)``.

    Shapes: log_decay and angle ``(states,)``; input B ``(states, channels)`` and each of outputs C ``(channels,
    states)`` complex; direct D ``(channels,)``. There is one C, or two if two-sided: the second is for the recurrence
    from the end.
    """

    log_decay: Tensor
    angle: Tensor
    input: Tensor
    outputs: tuple[Tensor, ...]
    direct: Tensor


class RecurrentMixer(KeepsFloat32, Mixer):
    """A linear recurrence with many inputs and outputs. Abstract: subclasses implement `recurrence` and hold the poles;
    B, C and D are held here, B and C as real and imaginary parts. states: the number of states.

    It streams exactly, in constant memory and time: one complex number per state. A two-sided one runs once from either
    end, so that lag 0 counts in both.
    """

    def __init__(self, channels: int, causal: bool, states: int):
        super().__init__(channels, causal)
        self.input = nn.Parameter(torch.empty(states, channels, 2))
        self.output = nn.Parameter(torch.empty(1 if causal else 2, channels, states, 2))
        self.direct = nn.Parameter(torch.empty(channels))

    def reset_maps(self, states: int) -> None:
        """B, C and D normal, with variance 1 / (2 channels) per part, 1 / (2 states) per part, and 1; a pair of
        conjugate states counts twice."""
        with torch.no_grad():
            self.input.normal_(std=(2 * self.channels) ** -0.5)
            self.output.normal_(std=(2 * states) ** -0.5)
            self.direct.normal_()

    def maps(self, dtype: torch.dtype) -> tuple[Tensor, Tensor, Tensor]:
        """B ``(states, channels)`` and C ``(directions, channels, states)``, complex, and D, in this precision."""
        into, out = (torch.view_as_complex(p.to(dtype).contiguous()) for p in (self.input, self.output))
        return into, out, self.direct.to(dtype)

    def recurrence(self) -> Recurrence:
        """In float32 or better, with the angle in float64, because its error grows with the text."""
        raise NotImplementedError

    def mix(self, x: Tensor, layout: Layout) -> Tensor:
        return self._run(x, None)[0]

    def init_state(self, batch_size: int) -> StateTuple:
        self.require_causal()
        weight = self.recurrence().input
        return StateTuple((weight.new_zeros(batch_size, len(weight)),))

    def mix_next(self, x: Tensor, state: StateTuple, mask: Tensor | None) -> tuple[Tensor, StateTuple]:
        y, memory = self._run(x, state.parts[0])
        return y, StateTuple((memory,))

    def _run(self, x: Tensor, memory: Tensor | None) -> tuple[Tensor, Tensor]:
        log_decay, angle, into, outputs, direct = self.recurrence()
        dtype = log_decay.dtype
        with torch.autocast(x.device.type, enabled=False):
            signal = x.to(dtype)
            added = torch.complex(*F.linear(signal, torch.cat([into.real, into.imag])).chunk(2, 2))
            states, memory = diagonal_scan(added, log_decay, angle, memory)
            y = direct * signal + _real_product(states, outputs[0])
            if not self.causal:
                states, _ = diagonal_scan(added.flip(1), log_decay, angle)
                y = y + _real_product(states.flip(1), outputs[1])
        return y.to(x.dtype), memory


def _real_product(states: Tensor, output: Tensor) -> Tensor:
    """``Re C h`` for h ``(batch, length, states)``."""
    return F.linear(torch.cat([states.real, states.imag], 2), torch.cat([output.real, -output.imag], 1))
