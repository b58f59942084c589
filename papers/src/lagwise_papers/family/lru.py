"""The linear recurrent unit."""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn

from lagwise.ops.recurrence import zoh_inputs
from lagwise.tables import check_integer
from lagwise_papers.family.recurrence import Recurrence, RecurrentMixer


class LRUMixer(RecurrentMixer):
    """Linear recurrent unit: ``h_t = p h_{t-1} + exp(log_gain) B x_t``, ``y_t = Re C h_t + D x_t`` with the poles ``p =
    exp(-exp(rate) + j exp(log_angle))``, B and C complex and dense.

    Options:
        states: number of poles (default: as many as channels).
        least_radius: inner radius of the ring from which poles are drawn, uniformly by area, as published.
        most_radius: outer radius of this ring.
        most_angle: largest angle of a pole, in radians per token.

    log_gain starts at ``log sqrt(1 - |p|^2)``. A two-sided one has a second C. ValueError for options out of range.

    This is the recurrence alone; in the published layer a gated linear unit follows it, as a channel mixer. Streams
    exactly, as described in `RecurrentMixer`.

    Source: Orvieto et al. 2023, "Resurrecting Recurrent Neural Networks for Long Sequences", §3 and app. A.
    """

    kept_in_float32 = ("rate", "log_angle", "log_gain")

    def __init__(
        self,
        channels: int,
        *,
        causal: bool = True,
        states: int | None = None,
        least_radius: float = 0.0,
        most_radius: float = 1.0,
        most_angle: float = 2 * math.pi,
    ):
        n = channels if states is None else check_integer("states", states)
        super().__init__(channels, causal, n)
        if not 0 <= least_radius < most_radius <= 1:
            raise ValueError(f"least_radius < most_radius must be in [0, 1], got {least_radius} and {most_radius}")
        if not 0 < most_angle <= 2 * math.pi:
            raise ValueError(f"most_angle must be in (0, 2 pi], got {most_angle}")
        self.ring = (least_radius**2, most_radius**2, most_angle)
        self.rate, self.log_angle, self.log_gain = (nn.Parameter(torch.empty(n)) for _ in range(3))
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Draw poles as above, and call `RecurrentMixer.reset_maps`."""
        with torch.no_grad():
            low, high, most_angle = self.ring
            square = torch.rand_like(self.rate, dtype=torch.float64) * (high - low) + low
            square = square.clamp(1e-12, 1 - 1e-7)
            self.rate.copy_((-0.5 * square.log()).log())
            self.log_angle.copy_((most_angle * torch.rand_like(self.rate).clamp(min=1e-6)).log())
            self.log_gain.copy_(0.5 * torch.log1p(-square))
        self.reset_maps(len(self.rate))

    def recurrence(self) -> Recurrence:
        dtype = torch.promote_types(self.rate.dtype, torch.float32)
        rate, gain = self.rate.to(dtype), self.log_gain.to(dtype)
        into, out, direct = self.maps(dtype)
        outputs: tuple[Tensor, ...] = out.unbind(0)
        log_decay, angle, into = -rate.exp(), self.log_angle.double().exp(), gain.exp()[:, None] * into
        if self.token_time != 1:
            factor = zoh_inputs(torch.complex(log_decay.double(), angle), self.token_time)
            into = into * factor.to(into.dtype)[:, None]
        return Recurrence(log_decay * self.token_time, angle * self.token_time, into, outputs, direct)
