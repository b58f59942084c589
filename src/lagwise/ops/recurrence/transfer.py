"""The distance between a diagonal state space and taps at the worst frequency: a bound, not a sample."""

from __future__ import annotations

import math

import torch
import torch.nn.functional as F
from torch import Tensor

from lagwise.ops.recurrence.diagonal import Modes, modal_taps
from lagwise.ops.toeplitz.spectral import fast_length

_FREQUENCIES = 8  # per tap
_TIGHTNESS = 0.04  # largest relative gap between the bound and the largest value met
_TOGETHER = 16
_SPLIT = 4  # parts of an interval of frequencies whose bound is too loose
_ELEMENTS = 1 << 20  # intervals times poles at a time


def frequencies(taps: int) -> int:
    """Number of points of a transform of this many taps so that between them the gain is at most 1 / cos(pi / 16), 2%
    more, times the largest at a point."""
    return fast_length(_FREQUENCIES * taps)


def largest_difference(taps: Tensor, modes: Modes, *, enough: float = math.inf) -> tuple[float, float]:
    """A bound of ``max_w |K(exp(iw)) - K^(exp(iw))|`` over all frequencies, and one of ``sum_l |k_l - k^_l|``.

    Formula: the error f = K - K^ is a rational function, so |f| falls from its maximum no faster than ``cos(θ / 2)``,
    where ``dθ/dw = n - 1 + sum_i (1 - |p_i|²) / |1 - p_i exp(-iw)|²``, over both poles of a pair. Between two
    frequencies, therefore, ``max |f| <= max(ends) / cos(Δθ / 4)``. Values come from a transform at 8 frequencies per
    tap. Where these do not suffice, near poles close to the circle, intervals are divided until the bound is at most 4%
    above the largest value met.

    Args:
        taps: ``(n,)`` in float64, zero from lag n on.
        modes: Modes of one channel, with all ``|p| < 1``.
        enough: If a value above this is met, the first result is the largest value met and not a bound.

    Returns:
        Both bounds, without the rounding of float64.

    Source: the inequality of Bernstein and Szegő for rational functions (Borwein, Erdélyi and Zhang 1994).
    """
    points = frequencies(len(taps))
    poles, weights = modes.poles[0], modes.weights[0]
    # At the points of a transform, lags that differ by its length coincide: each mode gives a geometric series.
    last = poles**points
    difference = -modal_taps(Modes(modes.poles, (weights / (1 - last))[None], modes.direct), points)[0]
    difference[: len(taps)] += taps
    beyond = 2 * (weights.abs() * last.abs() / ((1 - last.abs()) * (1 - poles.abs()))).sum()
    total = float(difference.abs().sum() + beyond)
    values = torch.fft.rfft(difference).abs()
    met = float(values.max())
    if met > enough:
        return met, total
    positions = torch.arange(len(values), dtype=taps.dtype, device=taps.device) * (2 * math.pi / points)
    low, high, ends = positions[:-1], positions[1:], torch.maximum(values[:-1], values[1:])
    # Start with several intervals together: most are far from any pole.
    wider = _density(low[::_TOGETHER], torch.cat([low[_TOGETHER::_TOGETHER], high[-1:]]), poles)
    density = wider.repeat_interleave(_TOGETHER)[: len(low)]
    bound = met
    while True:
        phase = (high - low) * (len(taps) - 1 + density)
        maxima = ends / (phase / 4).clamp(max=math.pi / 2).cos()
        wide = maxima > (1 + _TIGHTNESS) * met
        bound = max(bound, float(torch.where(wide, 0.0, maxima).max()))
        if not wide.any():
            return bound, total
        low, high, ends = low[wide, None], high[wide, None], ends[wide]
        positions = low + (high - low) * torch.linspace(0, 1, _SPLIT + 1, dtype=taps.dtype, device=taps.device)
        inner = _difference_at(positions[:, 1:-1].flatten(), taps, modes).view(-1, _SPLIT - 1)
        met = max(met, float(inner.max()))
        # An end of the interval may be the larger value for both of its outer parts.
        ends = torch.cat([ends[:, None], inner, ends[:, None]], 1)
        low, high = positions[:, :-1].flatten(), positions[:, 1:].flatten()
        ends = torch.maximum(ends[:, :-1], ends[:, 1:]).flatten()
        density = _density(low, high, poles)


def _density(low: Tensor, high: Tensor, poles: Tensor) -> Tensor:
    """The maximum of ``sum_i (1 - |p_i|²) / |1 - p_i exp(-iw)|²``, over both poles of a pair, between low and high
    within [0, pi]: every term at the frequency there that is closest to its pole."""
    radius, angle = poles.abs()[:, None], poles.angle()[:, None]
    paired = poles.imag > 0
    sums = []
    for a, b in zip(*(t.split(max(1, _ELEMENTS // max(1, len(poles)))) for t in (low, high)), strict=True):
        total = _poisson(radius, torch.maximum(a - angle, angle - b).clamp(min=0)).sum(0)
        mirrored = angle[paired]
        sums.append(total + _poisson(radius[paired], torch.minimum(a + mirrored, 2 * math.pi - b - mirrored)).sum(0))
    return torch.cat(sums)


def _poisson(radius: Tensor, away: Tensor) -> Tensor:
    return (1 - radius**2) / ((1 - radius) ** 2 + 4 * radius * (away / 2).sin().square())


def _difference_at(omega: Tensor, taps: Tensor, modes: Modes) -> Tensor:
    """``|K - K^|`` at any frequencies."""
    fine = 1 << ((len(taps) - 1).bit_length() + 1) // 2
    rows = F.pad(taps, (0, -len(taps) % fine)).view(-1, fine)
    result = []
    for some in omega.split(_ELEMENTS // fine):
        z = torch.polar(torch.ones_like(some), -some)[:, None]
        near, far = (
            torch.polar(some.new_ones(1), -some[:, None] * torch.arange(count, device=some.device) * step)
            for count, step in ((fine, 1), (len(rows), fine))
        )
        response = ((near @ rows.t().to(near.dtype)) * far).sum(1)
        for poles, weights in ((modes.poles, modes.weights), (modes.poles.conj(), modes.weights.conj())):
            response = response - (weights / (1 - poles * z)).sum(1) / 2
        result.append((response - modes.direct).abs())
    return torch.cat(result)
