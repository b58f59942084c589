"""The kernel of S4: a state space that is diagonal plus low rank."""

from __future__ import annotations

import math

import numpy as np
import torch
from torch import Tensor, nn

from lagwise.kernels.base import LagKernel, joined_sides
from lagwise.kernels.s4d import hippo_legs
from lagwise.tables import check_integer

_MIN_STEP, _MAX_STEP = 1e-3, 0.1  # initial time per token


class S4Kernel(LagKernel):
    """A state space with ``A = diag(a) - p p*``, initialised as HiPPO-LegS, over its first ``span`` lags (Gu et al.
    2022, "Efficiently Modeling Long Sequences with Structured State Spaces").

    Formula: the generating function ``K(z) = sum_{l < span} k(l) z**l`` at the span-th roots of unity z is, for the
    bilinear rule with step dt, ``2 [s(c, b) - (1 + z) s(c, p) s(p, b) / (1 + (1 + z) s(p, p))]`` with ``s(u, v) = sum_i
    u_i* v_i / ((2 / dt)(1 - z) - (1 + z) a_i)`` over all states (Woodbury's identity on the Cauchy kernel; the factors
    1 + z are multiplied out, so that z = -1 is not a pole). k is its inverse transform, and D is added at lag 0. The
    learned output map c includes the truncation, ``c = C (1 - Abar**span)``, as in the paper: lags from the span on are
    zero.

    Options:
        modes: pairs of conjugate states (the paper's N / 2).
        span: number of lags of the kernel, even.

    A, p and b are shared by all channels; every channel has its own step and c; a two-sided kernel has a second c.
    ValueError for options out of range.

    Its eigenvectors are too badly conditioned to convert it to modes, so it streams by `online_prefill`.
    """

    undecayed = ("low_rank", "input")
    shared = ("rate", "angle", "low_rank", "input")
    needs_float64 = True
    kept_in_float32 = ("log_step", "rate", "angle", "low_rank", "direct")

    def __init__(self, channels: int, *, causal: bool = True, modes: int = 32, span: int = 1024):
        super().__init__(channels, causal)
        if check_integer("span", span) % 2:
            raise ValueError(f"span must be even, got {span}")
        self.span = span
        self.rate, self.angle = (nn.Parameter(torch.empty(check_integer("modes", modes))) for _ in range(2))
        self.low_rank, self.input = (nn.Parameter(torch.empty(modes, 2)) for _ in range(2))
        self.output = nn.Parameter(torch.empty(1 if causal else 2, channels, modes, 2))
        self.log_step, self.direct = (nn.Parameter(torch.empty(channels)) for _ in range(2))
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Set A, p and b to HiPPO-LegS; draw log dt uniformly from log 0.001 to log 0.1, and c and D from normal
        distributions."""
        angles, p, b = hippo_legs(len(self.rate))
        with torch.no_grad():
            self.rate.fill_(math.log(0.5))
            for parameter, start in ((self.angle, angles), (self.low_rank, p), (self.input, b)):
                values = np.stack([start.real, start.imag], -1) if np.iscomplexobj(start) else start.copy()
                parameter.copy_(torch.from_numpy(values))
            self.output.normal_(std=0.5**0.5)
            self.log_step.uniform_(math.log(_MIN_STEP), math.log(_MAX_STEP))
            self.direct.normal_()

    @property
    def support(self) -> int:
        return self.span

    def taps(self, length: int) -> Tensor:
        n = min(length, self.span)
        with torch.autocast(self.rate.device.type, enabled=False):
            sides = torch.fft.irfft(self._generating(), self.span)[..., :n]
            after, *before = sides.to(self.precision(self.rate))
            direct = torch.zeros_like(after)
            direct[:, 0] = self.direct.to(after.dtype)
            after = after + direct
            return joined_sides(after, *before)

    def _generating(self) -> Tensor:
        """K at the roots of unity from angle 0 to pi, ``(directions, channels, span / 2 + 1)``."""
        dtype = torch.float64  # the sums below are small differences for short steps
        rate, angle = self.rate.to(dtype).exp(), self.angle.to(dtype)  # the states are -rate + i angle
        p, b, c = (torch.view_as_complex(t.to(dtype).contiguous()) for t in (self.low_rank, self.input, self.output))
        # With z = exp(-2 i half), (2 / dt)(1 - z) is exp(-i half) i up and 1 + z is exp(-i half) across. A state and
        # its conjugate together have the real polynomial x - i y in the denominator.
        half = torch.arange(self.span // 2 + 1, device=rate.device, dtype=dtype) * (math.pi / self.span)
        up, across = (4 / self.log_step.to(dtype).exp()[:, None]) * half.sin(), 2 * half.cos()
        x = across**2 * (rate**2 + angle**2)[:, None] - up[:, None] ** 2  # (channels, states, roots)
        y = (-2 * rate)[:, None] * (across * up)[:, None]
        scale = 1 / (x**2 + y**2)
        shared = (p.conj() * torch.stack([b, p]))[:, None].expand(-1, len(up), -1)
        products = torch.cat([shared, c.conj() * b, c.conj() * p])  # u* v: (sums, channels, states)
        real = torch.cat([products.real, products.real * rate - products.imag * angle]).transpose(0, 1)
        (x_up, x_across), (y_up, y_across) = ((real @ (t * scale)).transpose(0, 1).chunk(2) for t in (x, y))
        # exp(-i half) s: the first half of the sums times i up, the other times across
        sums = 2 * torch.complex(across * x_across - up * y_up, across * y_across + up * x_up)
        between, back, forth, through = sums.split([1, 1, len(c), len(c)])
        phase = torch.complex(half.cos(), half.sin())
        return 2 * phase * (forth - through * (across * between / (1 + across * back)))
