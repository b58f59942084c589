"""Reduction of taps to a diagonal state space of few states, by Hankel singular values, and a bound of its distance to
the taps at the worst frequency."""

from __future__ import annotations

import math
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from lagwise.ops.recurrence.diagonal import Modes, modal_taps
from lagwise.ops.toeplitz.spectral import fast_length

_FIRST_SUBSPACE = 64  # doubled where the singular values outside could matter
_SUBSPACE_ROUNDS = 2
_FFT_ELEMENTS = 1 << 21  # elements of one of the transforms that multiply a basis by H
_MARGIN = 0.25  # share of the tolerance that a subspace may leave outside before it is doubled
_EXTRA_ORDERS = 4  # orders to try beyond the expected one
# No pole is closer to 0: its weight is residue / pole, and at this distance its rounding equals the change from moving
# it away from 0.
_SMALLEST_POLE = 2.0**-12
_ROUNDING = 2.0**-24  # float32's relative rounding error
_FREQUENCIES = 8  # per tap
_TIGHTNESS = 0.04  # largest relative gap between the bound and the largest value met
_TOGETHER = 16
_SPLIT = 4  # parts of an interval of frequencies whose bound is too loose
_ELEMENTS = 1 << 20  # intervals times poles at a time


class Reduction(NamedTuple):
    """The result of `reduce_taps`. Figures are ``(channels,)`` in float64 and absolute: divide them by gain.

    Attributes:
        modes: float64 and complex128.
        order: real states; a conjugate pair counts as two.
        gain: largest ``|K(exp(iw))|``.
        bound: what theory guarantees the error to be below.
        error: a bound of ``|K - K^|`` over all lags to infinity and at every frequency, at most 4% above the largest
            value met (`largest_difference`). Both hold for these modes in float64, and for a float32 `ModalKernel` of
            them, with ``2**-24 (|direct| + sum_i |w_i| / (1 - |p_i|))`` for its arithmetic.
        l1_error: an upper bound of ``sum_l |k_l - k^_l|``, the largest change of an output for inputs of at most 1.
        amplification: ``sum_i |w_i| / (1 - |p_i|)`` divided by gain.
        taps: number of taps.
    """

    modes: Modes
    order: Tensor
    gain: Tensor
    bound: Tensor
    error: Tensor
    l1_error: Tensor
    amplification: Tensor
    taps: int


def reduce_taps(taps: Tensor, tolerance: float = 1e-3, *, max_order: int | None = None) -> Reduction:
    """The smallest balanced state space whose error is within a tolerance, by Hankel singular values.

    Formula: with ``sigma_1 >= sigma_2 >= ...`` the singular values of ``H_ij = k_{i+j+1}``, balanced truncation to s
    states has ``sigma_{s+1} <= max_w |K - K^| <= 2 sum_{i > s} sigma_i``, and ``|k_l - k^_l|`` is no larger at any lag;
    k_0 is exact except for float32. The order is the smallest, by bisection between the limits that these two give,
    whose error is at most ``tolerance * max_w |K(exp(iw))|``. Singular values outside the searched subspace are bounded
    by ``sum sigma_i <= sqrt(N) |H - Q Qᵀ H Q Qᵀ|_F``, whose square is ``sum_l l k_l**2`` minus that inside.

    Args:
        taps: ``(channels, n)``, lag 0 first, zero from lag n on. If a kernel is cut before it has decayed, the edge
            costs more states than everything before it.
        tolerance: Relative to a channel's gain, in (0, 1). Rounding of float32 limits it to about 1e-6 or 1e-5.
        max_order: Largest number of real states; by default ``n // 4``, between 8 and 256.

    Returns:
        A `Reduction`. All poles have ``2**-12 <= |p| < 1``; the effect of moving a pole there, or to float32, is part
        of the bound and of the error.

    Raises:
        ValueError: For other taps or ranges, or NaN; and for a channel that cannot be reduced, because it needs more
            than max_order states, or because separate float32 modes would cancel by more than the tolerance (those of a
            delay do).

    An order whose poles are not inside the unit circle (a tie of singular values) is skipped.

    Source: Kung 1978 (a realisation by the shift of singular vectors; for the whole H of a finite response it is the
    balanced truncation of Moore 1981); Pernebo and Silverman 1982 (stability); Glover 1984, and Al-Saggaf and Franklin
    1987 for discrete time (the bound). The subspace iteration is that of Halko et al. 2011, with products by FFT.

    >>> taps = 0.9 ** torch.arange(200, dtype=torch.float64)  # one decay needs one state
    >>> reduction = reduce_taps(taps[None], 1e-4)
    >>> reduction.order.tolist(), round(reduction.modes.poles[0, 0].real.item(), 4)
    ([1], 0.9)
    """
    if taps.dim() != 2 or 0 in taps.shape or not taps.is_floating_point():
        raise ValueError(f"taps must be (channels >= 1, n >= 1) of real numbers, got {tuple(taps.shape)} {taps.dtype}")
    if not 0.0 < tolerance < 1.0:
        raise ValueError(f"tolerance must be in (0, 1), got {tolerance}")
    if max_order is None:
        max_order = min(256, max(8, taps.shape[1] // 4))
    if max_order < 1:
        raise ValueError(f"max_order must be at least 1, got {max_order}")
    k = taps.detach().double()
    if not k.isfinite().all():
        raise ValueError("taps must be finite, got NaN or infinite ones")
    fits = [_reduced(channel, row, tolerance, max_order) for channel, row in enumerate(k)]
    width = max(1, max(len(fit.poles) for fit in fits))
    poles = torch.stack([F.pad(fit.poles, (0, width - len(fit.poles))) for fit in fits])
    weights = torch.stack([F.pad(fit.weights, (0, width - len(fit.weights))) for fit in fits])
    figures = torch.tensor([fit[2:] for fit in fits], dtype=torch.float64, device=k.device)
    direct, order, gain, bound, error, l1_error, amplification = figures.unbind(1)
    modes = Modes(poles.to(k.device), weights.to(k.device), direct)
    return Reduction(modes, order.long(), gain, bound, error, l1_error, amplification, k.shape[1])


class _Fit(NamedTuple):
    poles: Tensor
    weights: Tensor
    direct: float
    order: int
    gain: float
    bound: float
    error: float
    l1_error: float
    amplification: float


def _reduced(channel: int, k: Tensor, tolerance: float, max_order: int) -> _Fit:
    """The modes of the smallest order within the tolerance. ValueError if there is none."""
    gain, size = float(torch.fft.rfft(k, frequencies(len(k))).abs().max()), _FIRST_SUBSPACE
    allowed = tolerance * gain
    values, shift, first, outside = _hankel_spectrum(k[1:], size)
    while 2 * outside > _MARGIN * allowed and size < min(2 * max_order, len(k)):
        size *= 2
        values, shift, first, outside = _hankel_spectrum(k[1:], size)
    tails = values.abs().flip(0).cumsum(0).flip(0)
    bounds = 2 * (F.pad(tails, (0, 1)) + outside)
    system = [t.cpu() for t in (k, values, shift, first, bounds)]
    low, high = int((values.abs() > allowed).sum()), min(int((bounds > allowed).sum()), max_order, len(values))
    best, nearest, last = None, (float("inf"), 0), min(high + _EXTRA_ORDERS, max_order, len(values))
    for s in range(high, max(high, last) + 1) if low <= max_order else ():
        fit = _fit(system, s, gain, allowed)
        if fit.error <= allowed:
            best = fit
            break
        nearest = min(nearest, (fit.error, s))
    if best is None:
        off = (
            f"is off by {nearest[0] / max(gain, 1e-300):.2g} of its gain with {nearest[1]} states in float32, too much"
        )
        raise ValueError(
            f"channel {channel} {f'needs at least {low} states' if low > max_order else off} for tolerance "
            f"{tolerance:g}, max_order is {max_order}; raise one of them, or keep these taps (noise, delays and sharp "
            "edges at long lags do not reduce)"
        )
    high = best.order
    while low < high:
        s = (low + high) // 2
        fit = _fit(system, s, gain, allowed)
        if fit.error <= allowed:
            best, high = fit, s
        else:
            low = s + 1
    return best


def _hankel_spectrum(h: Tensor, size: int) -> tuple[Tensor, Tensor, Tensor, float]:
    """Compute eigenvalues of H, largest first, ``Vᵀ Z V`` with Z the shift up, V's first row, and a bound of the sum of
    the missing singular values."""
    n, eps = len(h), torch.finfo(h.dtype).eps
    if n == 0:
        return h, h.new_zeros(0, 0), h, 0.0
    if 2 * size >= n:
        basis, inside = None, torch.cat([h, torch.zeros_like(h[1:])]).unfold(0, n, 1)
    else:
        points = fast_length(2 * n - 1)
        spectrum = torch.fft.rfft(h, points)
        generator = torch.Generator().manual_seed(0)
        basis = torch.randn(size, n, dtype=h.dtype, generator=generator, device="cpu").to(h.device).mT
        for _ in range(_SUBSPACE_ROUNDS):
            basis = torch.linalg.qr(_hankel_product(spectrum, basis, points))[0]
        inside = basis.mT @ _hankel_product(spectrum, basis, points)
    values, vectors = torch.linalg.eigh((inside + inside.mT) / 2)
    largest = values.abs().argsort(descending=True)
    values, vectors = values[largest], vectors[:, largest]
    if basis is None:
        return values, vectors[:-1].mT @ vectors[1:], vectors[0], n * eps * float(values[0].abs())
    squares = (h.square() * torch.arange(1, n + 1, device=h.device)).sum()
    missing = (squares - values.square().sum()).clamp(min=0)
    shift = vectors.mT @ (basis[:-1].mT @ basis[1:]) @ vectors
    return values, shift, basis[0] @ vectors, float((n * (missing + 8 * eps * squares)).sqrt())


def _hankel_product(spectrum: Tensor, basis: Tensor, points: int) -> Tensor:
    """``H X`` for X ``(n, columns)``: a correlation, by FFT, a few columns at a time."""
    rows = basis.mT.split(max(1, _FFT_ELEMENTS // points))
    products = (torch.fft.irfft(spectrum * torch.fft.rfft(part, points).conj(), points) for part in rows)
    return torch.cat([product[:, : len(basis)] for product in products]).mT


def _fit(system: list[Tensor], s: int, gain: float, allowed: float) -> _Fit:
    """The modes of an order. Their error is a bound, or a value above what is allowed."""
    k, values, shift, first, bounds = system
    scale = values[:s].abs().sqrt()
    poles, vectors = torch.linalg.eig(shift[:s, :s] * (scale / scale[:, None]))
    put_in = torch.linalg.solve_ex(vectors, (values[:s].sign() * scale * first[:s]).to(vectors.dtype))[0]
    residues = (first[:s] * scale).to(vectors.dtype) @ vectors * put_in
    once = poles.imag >= 0  # the others are their conjugates
    poles, residues = poles[once], residues[once] * (1 + (poles[once].imag > 0))
    moved, used = _in_float32(poles)
    weights = (residues / moved).to(torch.complex64).to(poles.dtype)
    exact = k[0] - weights.real.sum()
    direct = exact.float().double()
    if bool((used.abs() >= 1).any()) or not bool(weights.isfinite().all() & direct.isfinite()):
        return _Fit(moved, weights, 0.0, s, gain, *(float("inf"),) * 4)
    bound = error = l1_error = amplification = 0.0
    for each in (moved, used):
        away = 1 - each.abs()
        change = (weights * each - residues).abs() + residues.abs() * (each - poles).abs() / (1 - poles.abs())
        bound = max(bound, float(bounds[s] + (change / away).sum() + (exact - direct).abs()))
        largest, total = largest_difference(k, Modes(each[None], weights[None], direct[None]), enough=allowed)
        error, l1_error = max(error, largest), max(l1_error, total)
        amplification = max(amplification, float((weights.abs() / away).sum()))
    rounding = _ROUNDING * (amplification + abs(float(direct)))
    bound, l1_error, amplification = bound + rounding, l1_error + rounding, amplification / max(gain, 1e-300)
    # Both are upper bounds, unless the first exceeds what is allowed.
    return _Fit(moved, weights, float(direct), s, gain, bound, min(error + rounding, bound), l1_error, amplification)


def _in_float32(poles: Tensor) -> tuple[Tensor, Tensor]:
    """Compute poles as a `ModalKernel` stores them, by float32 rates and angles, and as float32 arithmetic rounds them,
    so that the certified values are those that run."""
    rate = (-poles.abs().clamp(min=_SMALLEST_POLE).log()).log().float()
    stored = torch.complex(-rate.double().exp(), poles.angle().float().double()).exp()
    return stored, stored.to(torch.complex64).to(stored.dtype)


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

    taps are ``(n,)`` in float64, zero from lag n on; modes of one channel, with all ``|p| < 1``. Returns both bounds,
    without the rounding of float64; if a value above ``enough`` is met, the first is the largest value met and not a
    bound.

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
