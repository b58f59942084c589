"""The kernels of S4D and DSS, diagonal state spaces in continuous time, and of S4, diagonal plus low rank."""

from __future__ import annotations

import functools
import math
from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor, nn

from lagwise.kernels.base import LagKernel, joined_sides
from lagwise.kernels.diagonal import DiagonalKernel, Side
from lagwise.ops.recurrence import mean_exponential, zoh_tokens
from lagwise.tables import check_integer, known

STARTS, RULES, NORMALIZATIONS = ("lin", "inv", "legs"), ("zoh", "bilinear"), ("exp", "softmax")
_MIN_STEP, _MAX_STEP = 1e-3, 0.1  # initial time per token


class S4DKernel(DiagonalKernel):
    """A diagonal state space ``x' = A x + B u, y = 2 Re C x + D u`` with B = 1, sampled with a separate step for each
    channel (Gu et al. 2022, "On the Parameterization and Initialization of Diagonal State Space Models").

    Formula: ``k(l) = 2 Re sum_i w_i p_i**l``, and D is added at lag 0, with ``A_i = -exp(rate_i) + j angle_i`` and
        zoh: ``p = exp(A dt)``, ``w = C (p - 1) / A``;
        bilinear: ``p = (1 + A dt / 2) / (1 - A dt / 2)``, ``w = C dt / (1 - A dt / 2)``.
    A two-sided kernel has a second C for lags below 0, as the published layer does.

    Options:
        modes: pairs of conjugate poles (the paper's N / 2).
        start: initial A: ``lin`` (-1/2 + j pi n), ``inv`` (-1/2 + j (N / pi) (N / (2n + 1) - 1)) or ``legs`` (the
            diagonal part of HiPPO-LegS).
        rule: ``zoh`` or ``bilinear``.

    dt starts evenly in the logarithm from 0.001 to 0.1. ValueError for options out of range.

    It streams exactly, as a state space.

    >>> S4DKernel(4, modes=8).taps(1000).shape
    torch.Size([4, 1000])
    """

    any_rate = True
    undecayed = ("rate", "angle")
    kept_in_float32 = ("log_step", "rate", "angle", "amplitude", "direct")

    def __init__(self, channels: int, *, causal: bool = True, modes: int = 32, start: str = "legs", rule: str = "zoh"):
        super().__init__(channels, causal)
        check_integer("modes", modes)
        self.start, self.rule = known(start, STARTS, "start"), known(rule, RULES, "rule")
        self.log_step = nn.Parameter(torch.empty(channels))
        self.rate, self.angle = (nn.Parameter(torch.empty(channels, modes)) for _ in range(2))
        self.amplitude = nn.Parameter(torch.empty(1 if causal else 2, channels, modes, 2))
        self.direct = nn.Parameter(torch.empty(channels))
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """A and dt as above, C complex normal of variance 1, D normal."""
        with torch.no_grad():
            self.log_step.uniform_(math.log(_MIN_STEP), math.log(_MAX_STEP))
            self.rate.fill_(math.log(0.5))
            self.angle.copy_(_angles(self.start, self.angle.shape[1]).to(self.angle))
            self.amplitude.normal_(std=0.5**0.5)
            self.direct.normal_()

    def sides(self) -> list[Side]:
        dtype = self.precision(self.rate)
        with torch.autocast(self.rate.device.type, enabled=False):
            a, step = self._continuous()
            exponent, scale = self._sampled(a, step)
            weight = torch.view_as_complex(self.amplitude.to(dtype).contiguous())
            weight = torch.view_as_real(weight * scale.to(weight.dtype))
        return [(-exponent.real, exponent.imag, w, self.direct.to(dtype) * (i == 0)) for i, w in enumerate(weight)]

    def _continuous(self) -> tuple[Tensor, Tensor]:
        """A ``(channels, modes)`` and the time of a token ``(channels, 1)``."""
        a = torch.complex(-self.rate.double().exp(), self.angle.double())
        return a, self.log_step.double().exp()[:, None] * self.token_time

    def modes_at(self, times: Sequence[Tensor]) -> list[tuple[Tensor, Tensor]]:
        """See `DiagonalKernel.modes_at`; by the rule of this kernel."""
        a, step = self._continuous()
        exponent = (a * step).to(self._weight_type())
        return [(zoh_tokens if self.rule == "zoh" else _bilinear_tokens)(exponent, time) for time in times]

    def _sampled(self, a: Tensor, step: Tensor) -> tuple[Tensor, Tensor]:
        """Logarithms of the poles, and the factor of C: a pair of conjugate poles is one mode with twice the weight."""
        if self.rule == "bilinear":
            return 2 * torch.atanh(a * step / 2), 2 * step / (1 - a * step / 2)
        return a * step, 2 * step * mean_exponential(a * step)


class DSSKernel(S4DKernel):
    """A diagonal state space defined by its eigenvalues (Gupta, Gu and Berant 2022, proposition 1).

    Formula: ``k(l) = Re sum_i (w_i / A_i) s_i(l)``, and D is added at lag 0, with
        exp: ``s_i(l) = (exp(A_i dt) - 1) exp(A_i dt l)``;
        softmax: ``s_i(l) = exp(A_i dt l) / sum_{m < span} exp(A_i dt m)``.

    Options:
        modes: pairs of conjugate poles.
        start: initial eigenvalues, as in `S4DKernel`.
        normalization: ``exp`` or ``softmax``.
        span: number of lags in the softmax's sum. The published span is the length of each input, so that the kernel
            depends on it; here it is fixed, and the kernel is the same for every length.

    Real parts are negative in both forms (in the paper, only for ``exp``), so that lags beyond the span decay.
    ValueError for options out of range.
    """

    def __init__(
        self,
        channels: int,
        *,
        causal: bool = True,
        modes: int = 32,
        start: str = "legs",
        normalization: str = "exp",
        span: int = 1024,
    ):
        super().__init__(channels, causal=causal, modes=modes, start=start)
        self.any_rate = normalization == "exp"  # a softmax counts its lags in tokens
        self.normalization: str = known(normalization, NORMALIZATIONS, "normalization")
        self.span = check_integer("span", span)

    def _sampled(self, a: Tensor, step: Tensor) -> tuple[Tensor, Tensor]:
        exponent = a * step
        if self.normalization == "exp":
            return exponent, step * mean_exponential(exponent)
        total = self.span * mean_exponential(self.span * exponent) / mean_exponential(exponent)
        return exponent, 1 / (total * a)


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


def _angles(start: str, modes: int) -> Tensor:
    n, states = torch.arange(modes, dtype=torch.float64), 2 * modes
    if start == "lin":
        return math.pi * n
    if start == "inv":
        return states / math.pi * (states / (2 * n + 1) - 1)
    return torch.from_numpy(hippo_legs(modes)[0].copy())


def _bilinear_tokens(exponent: Tensor, token_time: Tensor) -> tuple[Tensor, Tensor]:
    """`zoh_tokens` by the bilinear rule: ``(1 + e s / 2) / (1 - e s / 2)`` and ``s (1 - e / 2) / (1 - e s / 2)``."""
    time = token_time[..., None, None].to(exponent.real.dtype)
    below = 1 - exponent * time / 2
    return (1 + exponent * time / 2) / below, time * (1 - exponent / 2) / below


@functools.cache
def hippo_legs(modes: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """The HiPPO-LegS matrix of 2 * modes states as a normal matrix plus one of rank 1, in the basis that diagonalises
    the normal one.

    Formula: with N = 2 modes, ``A_ij = -sqrt((2i + 1)(2j + 1))`` below the diagonal, ``-(i + 1)`` on it, 0 above, and
    ``p_i = sqrt(i + 1/2)``, the matrix ``A + p p'`` is -1/2 plus a skew-symmetric one, so that ``V* (A + p p') V =
    diag(-1/2 + j w)``. The input is ``b_i = sqrt(2i + 1)``.

    Returns:
        The w > 0 in descending order, and ``V* p`` and ``V* b`` for the same half of the basis; the other half is their
        conjugate.

    Source: Gu et al. 2022 (S4), appendix C; Gu et al. 2022 (S4D), §4.
    """
    states = np.arange(2 * modes)
    p, b = np.sqrt(states + 0.5), np.sqrt(2 * states + 1.0)
    matrix = -np.tril(np.outer(b, b), -1) - np.diag(states + 1.0)
    skew = matrix + np.outer(p, p) + 0.5 * np.eye(2 * modes)
    frequencies, basis = np.linalg.eigh(-1j * skew)  # Hermitian: real values, in ascending order
    half = slice(2 * modes - 1, modes - 1, -1)
    own = basis[:, half].conj().T
    return frequencies[half], own @ p, own @ b
