"""S5: one diagonal state space with many inputs and outputs."""

from __future__ import annotations

import math

import torch
from torch import nn

from lagwise.kernels.s4d import hippo_legs
from lagwise.ops.recurrence import mean_exponential
from lagwise.tables import check_integer
from lagwise_papers.family.recurrence import Recurrence, RecurrentMixer

_MIN_STEP, _MAX_STEP = 1e-3, 0.1  # initial time per token


class S5Mixer(RecurrentMixer):
    """A state space ``h' = A h + B x``, ``y = 2 Re C h + D x`` with A diagonal, B and C dense, shared by all channels
    and sampled by zero-order hold: ``p = exp(A dt)`` and ``B dt (p - 1) / (A dt)``, with a dt for each state.

    Options:
        modes: pairs of conjugate states (the paper's P / 2; default: half the channels, at least 1).

    A starts as the diagonal part of HiPPO-LegS, dt evenly in the logarithm from 0.001 to 0.1. There is one block of
    states: the paper's number J of blocks only changes the initial values. A two-sided one has a second C, as
    published. ValueError for modes below 1.

    This is the state space alone; in the published layer an activation and a gate follow it. Streams exactly, as
    described in `RecurrentMixer`.

    Source: Smith, Warrington and Linderman 2023, "Simplified State Space Layers for Sequence Modeling", §3 and app. B.
    """

    kept_in_float32 = ("log_step", "rate", "angle")

    def __init__(self, channels: int, *, causal: bool = True, modes: int | None = None):
        n = max(1, channels // 2) if modes is None else check_integer("modes", modes)
        super().__init__(channels, causal, n)
        self.rate, self.angle, self.log_step = (nn.Parameter(torch.empty(n)) for _ in range(3))
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """A and dt as above, and `RecurrentMixer.reset_maps`."""
        with torch.no_grad():
            self.rate.fill_(math.log(0.5))
            self.angle.copy_(torch.from_numpy(hippo_legs(len(self.rate))[0].copy()))
            self.log_step.uniform_(math.log(_MIN_STEP), math.log(_MAX_STEP))
        self.reset_maps(2 * len(self.rate))

    def recurrence(self) -> Recurrence:
        dtype = torch.promote_types(self.rate.dtype, torch.float32)
        decay, angle, step = (
            self.rate.to(dtype).exp(),
            self.angle.to(dtype),
            self.log_step.to(dtype).exp() * self.token_time,
        )
        into, out, direct = self.maps(dtype)
        a = torch.complex(-decay, angle)
        into = (step * mean_exponential(a * step))[:, None] * into
        turn = self.angle.double() * self.log_step.double().exp() * self.token_time
        return Recurrence(-decay * step, turn, into, (2 * out).unbind(0), direct)
