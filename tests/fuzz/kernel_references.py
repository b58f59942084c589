"""Every kernel by its definition, at any lags and in double precision."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from lagwise.kernels import KERNELS

ACTIVATIONS: dict[str, Callable[[Tensor], Tensor]] = {
    "relu": lambda x: x.clamp(min=0),
    "silu": lambda x: x * torch.sigmoid(x),
    "gelu": lambda x: x * (1 + torch.erf(x / math.sqrt(2))) / 2,
    "tanh": torch.tanh,
    "none": lambda x: x,
}


def kernel_at(kernel: Any, lags: Tensor) -> Tensor:
    """Values ``(channels, n)`` at integer lags ``(n,)``. KeyError for a kernel that has no reference."""
    if (one := getattr(kernel, "kernel", None)) is not None:  # for several channels each
        return kernel_at(one, lags).repeat_interleave(kernel.channels // one.channels, 0)
    name = next(name for name, kind in KERNELS.items() if type(kernel) is kind)
    values = REFERENCES[name](kernel, lags.double())
    return values * (lags >= 0) if kernel.causal else values


def smooth_at(kernel: Any, lags: Tensor) -> Tensor:
    """Values of the part that SKI interpolates, at real lags."""
    if (one := getattr(kernel, "kernel", None)) is not None:
        return smooth_at(one, lags).repeat_interleave(kernel.channels // one.channels, 0)
    return SMOOTH[type(kernel).__name__](kernel, lags)


def lags(n: int) -> Tensor:
    """Of a token (rows) behind another (columns)."""
    return torch.arange(n)[:, None] - torch.arange(n)


def affine(layer: Any, x: Tensor) -> Tensor:
    y = x @ layer.weight.t()
    return y if layer.bias is None else y + layer.bias


def joined(sides: Sequence[Tensor], lags: Tensor, direct: Tensor | None = None) -> Tensor:
    """Of the values of each direction at the distances of the lags. Both have lag 0."""
    values = sides[0] if len(sides) == 1 else sides[0] * (lags >= 0) + sides[1] * (lags <= 0)
    return values if direct is None else values + direct[:, None] * (lags == 0)


def looked_up(sides: Sequence[Tensor], lags: Tensor) -> Tensor:
    """Of the taps of each direction, zero beyond. The second begins at lag -1 and reaches as far as the first."""
    reach = sides[0].shape[1]
    index = torch.where(lags < 0, -lags - 1, lags).long().clamp(max=reach - 1)
    values = [side[:, index] * (lags.abs() < reach) for side in sides]
    return values[0] if len(sides) == 1 else torch.where(lags < 0, values[1], values[0])


def network(net: Any, x: Tensor) -> Tensor:
    h = affine(net.first, x)
    for layer in (*net.hidden, net.last):
        h = h / h.square().mean(1, keepdim=True).sqrt()
        h = affine(layer, ACTIVATIONS[net.activation](h))
    return h


def rpe(kernel: Any, lags: Tensor) -> Tensor:
    if kernel.inputs == "sincos":
        half = kernel.network.first.in_features // 2
        angles = lags[:, None] * torch.tensor([10000.0 ** (-k / half) for k in range(half)], dtype=lags.dtype)
        features = torch.cat([angles.sin(), angles.cos()], dim=1)
    else:
        features = lags[:, None] / (kernel.scale if kernel.inputs == "normalized" else 1)
    decay = torch.tensor([[kernel.decay]], dtype=lags.dtype)
    if kernel.decay_logit is not None:
        decay = kernel.decay_logit.sigmoid()[:, None]
    return network(kernel.network, features).t() * decay ** lags.abs()


def free(kernel: Any, lags: Tensor) -> Tensor:
    index = lags.long() + (0 if kernel.causal else kernel.max_length - 1)
    inside = (index >= 0) & (index < kernel.weight.shape[1])
    return kernel.weight[:, index * inside] * inside * kernel.decay ** lags.abs()


def frequency(kernel: Any, lags: Tensor) -> Tensor:
    """The inverse transform, term by term."""
    grid = kernel.grid
    angle = torch.arange(grid + 1, dtype=lags.dtype) * (math.pi / grid)
    response = network(kernel.network, (angle.cos() if kernel.inputs == "cos" else angle)[:, None]).t()
    terms = torch.full_like(angle, 2.0)
    terms[0] = terms[grid] = 1
    phase = angle[:, None] * lags
    real, imaginary = response, None
    if not kernel.causal:
        real, imaginary = response.chunk(2)
    values = (real * terms) @ phase.cos()
    if imaginary is not None:
        values = values - (imaginary * terms) @ phase.sin()  # at 0 and pi the sine is 0
    distance = lags.abs()
    share = torch.where(distance == grid, 0.5, 1.0) * (distance <= grid)
    if kernel.causal:
        share = share * torch.where(distance == 0, 1.0, 2.0)
    return values * share / (2 * grid)


def warped_smooth(kernel: Any, lags: Tensor) -> Tensor:
    points = kernel.points
    knots = kernel.values.unflatten(1, (-1, points)) * (torch.arange(1, points + 1, dtype=lags.dtype) / points)
    knots = F.pad(knots, (1, 0))  # RPE(0) = 0
    place = points * kernel.decay ** lags.abs()
    left = place.floor().long().clamp(max=points - 1)
    sides = knots[..., left] + (knots[..., left + 1] - knots[..., left]) * (place - left)
    return sides[:, 0] if kernel.causal else torch.where(lags >= 0, sides[:, 0], sides[:, 1])


def warped(kernel: Any, lags: Tensor) -> Tensor:
    values = warped_smooth(kernel, lags)
    if kernel.filter is None:
        return values
    index = lags.long() + (0 if kernel.causal else kernel.filter_size // 2)
    inside = (index >= 0) & (index < kernel.filter_size)
    return values + kernel.filter[:, index * inside] * inside


def ema_sides(kernel: Any, lags: Tensor) -> Tensor:
    """The exponentials of each direction at the distance: ``(directions, channels, n)``."""
    p = kernel.delta.sigmoid()
    q = 1 - p * kernel.alpha.sigmoid()
    signs = torch.tensor([1.0, -1.0], dtype=p.dtype).repeat(p.shape[2])[: p.shape[2]]
    weight = p * (kernel.beta + signs) * kernel.gamma / math.sqrt(p.shape[2])
    distance = lags.abs()
    sides = (weight[..., None] * q[..., None] ** distance).sum(2)
    return sides if kernel.truncation is None else sides * (distance < kernel.truncation)


def ema(kernel: Any, lags: Tensor) -> Tensor:
    return joined(ema_sides(kernel, lags), lags)


def cema(kernel: Any, lags: Tensor) -> Tensor:
    """By repeated multiplication, as the recurrence of Megalodon's eq. 2 computes it."""
    p, n = kernel.alpha.sigmoid(), kernel.alpha.shape[2]
    turn = kernel.theta.sigmoid() * 2 * math.pi / n * torch.arange(1, n + 1)
    q = torch.polar(1 - p * kernel.delta.sigmoid(), turn)
    gamma = torch.view_as_complex(kernel.gamma) / math.sqrt(n)
    powers = [p + 0j]
    for _ in range(int(lags.abs().max())):
        powers.append(powers[-1] * q)
    sides = (gamma[..., None] * torch.stack(powers, -1)[..., lags.abs().long()]).sum(2).real
    return joined(sides, lags, kernel.omega)


def modal(kernel: Any, lags: Tensor) -> Tensor:
    distance = lags.abs()
    size = (-kernel.rate.exp()[..., None] * distance).exp()
    angle = kernel.angle[..., None] * distance
    real, imaginary = kernel.amplitude[..., 0, None], kernel.amplitude[..., 1, None]
    sides = (size * (real * angle.cos() - imaginary * angle.sin())).sum(2)
    return joined(sides, lags, kernel.direct)


def sampled(kernel: Any) -> tuple[Tensor, Tensor]:
    """Continuous poles and steps of a diagonal state space."""
    return torch.complex(-kernel.rate.exp(), kernel.angle), kernel.log_step.exp()[:, None]


def state_space(kernel: Any, poles: Tensor, scale: Tensor, lags: Tensor) -> Tensor:
    """Twice-real-part sums are in ``scale``; lag 0 of both directions is one."""
    weights = torch.view_as_complex(kernel.amplitude.contiguous()) * scale
    powers = poles[..., None] ** lags.abs()
    sides = torch.einsum("dci,cil->dcl", weights, powers).real
    return joined(sides, lags, kernel.direct)


def mean_exponential(z: Tensor) -> Tensor:
    """The integral of exp(z s) over s from 0 to 1 by Gauss-Legendre quadrature, which avoids cancellation."""
    nodes, weights = (torch.as_tensor(t) for t in np.polynomial.legendre.leggauss(80))
    return ((z[..., None] * (nodes + 1) / 2).exp() * weights / 2).sum(-1)


def s4d(kernel: Any, lags: Tensor) -> Tensor:
    a, step = sampled(kernel)
    if kernel.rule == "zoh":
        return state_space(kernel, (a * step).exp(), 2 * step * mean_exponential(a * step), lags)
    return state_space(kernel, (2 + a * step) / (2 - a * step), 4 * step / (2 - a * step), lags)


def dss(kernel: Any, lags: Tensor) -> Tensor:
    a, step = sampled(kernel)
    if kernel.normalization == "exp":
        return state_space(kernel, (a * step).exp(), step * mean_exponential(a * step), lags)
    total = ((a * step)[..., None] * torch.arange(kernel.span)).exp().sum(-1)
    return state_space(kernel, (a * step).exp(), 1 / (a * total), lags)


def s4(kernel: Any, lags: Tensor) -> Tensor:
    """By dense matrices of all states and their powers."""
    half = torch.complex(-kernel.rate.exp(), kernel.angle)
    p, b, c = (torch.view_as_complex(t.contiguous()) for t in (kernel.low_rank, kernel.input, kernel.output))
    a, p, b, c = (torch.cat([t, t.conj()], -1) for t in (half, p, b, c))
    matrix, eye = torch.diag(a) - torch.outer(p, p.conj()), torch.eye(len(a), dtype=a.dtype)
    channels = []
    for channel, step in enumerate(kernel.log_step.exp()):
        below = torch.linalg.inv(eye - step / 2 * matrix)
        power, state = below @ (eye + step / 2 * matrix), below @ (step * b)
        whole = torch.linalg.inv(eye - torch.linalg.matrix_power(power, kernel.span))
        states = []
        for _ in range(min(int(lags.abs().max()) + 1, kernel.span)):
            states.append(whole @ state)
            state = power @ state
        found = (c[:, channel].conj() @ torch.stack(states, -1)).real
        channels.append(F.pad(found, (0, 1))[:, lags.abs().long().clamp(max=found.shape[1])])
    return joined(torch.stack(channels, 1), lags, kernel.direct)


def sgconv(kernel: Any, lags: Tensor) -> Tensor:
    scales, size = kernel.weight.shape[2:]
    sides = []
    for weight in kernel.weight:
        parts = []
        for scale in range(scales):
            factor = 2 ** max(0, scale - 1)
            places = ((torch.arange(size * factor, dtype=lags.dtype) + 0.5) / factor - 0.5).clamp(0, size - 1)
            left = places.floor().long().clamp(max=max(0, size - 2))
            share = places - left
            right = (left + 1).clamp(max=size - 1)
            part = weight[:, scale, left] * (1 - share) + weight[:, scale, right] * share
            parts.append(part * kernel.decay[:, None] ** scale)
        sides.append(torch.cat(parts, 1))
    return looked_up(sides, lags)


def hyena_smooth(kernel: Any, lags: Tensor) -> Tensor:
    t, turns = lags / (kernel.span - 1), 2 * math.pi * lags / kernel.span
    bands = [1e-4 + k * (max(kernel.bands - 1, 1e-4) - 1e-4) / max(1, kernel.bands - 1) for k in range(kernel.bands)]
    waves = [*((turns * b).cos() for b in bands), *(-(turns * b).sin() for b in bands)]
    h = affine(kernel.first, torch.stack([t, *waves], 1))
    for layer in kernel.hidden:
        h = affine(layer, (kernel.frequency * h).sin())
    values = kernel.last @ (kernel.frequency * h).sin().t()
    slow, fast = math.log(100) / 1.5, math.log(100) / 0.3
    steps = torch.arange(kernel.channels, dtype=lags.dtype) / max(1, kernel.channels - 1)
    return values * ((-(slow + (fast - slow) * steps)[:, None] * t.abs()).exp() + kernel.shift)


def hyena(kernel: Any, lags: Tensor) -> Tensor:
    inside = 1 if kernel.shift == 0 else (lags.abs() < kernel.span).to(lags.dtype)
    return hyena_smooth(kernel, lags) * inside + kernel.direct[:, None] * (lags == 0)


def spectral(kernel: Any, lags: Tensor) -> Tensor:
    """Eigenvectors from torch may have other signs; the products with the fixed ones determine them."""
    from lagwise.kernels.spectral import hankel_filters

    n = torch.arange(1, kernel.span + 1, dtype=lags.dtype)
    sums = n[:, None] + n
    values, vectors = torch.linalg.eigh(2 / (sums**3 - sums))
    count = kernel.weight.shape[3]
    values, vectors = values.flip(0)[:count], vectors.flip(1)[:, :count]
    vectors = vectors * (vectors * torch.as_tensor(hankel_filters(kernel.span, count).T)).sum(0).sign()
    filters = (values.clamp(min=0) ** 0.25)[:, None] * vectors.t()
    sides = []
    for weight in kernel.weight:
        side = weight[:, 0] @ filters
        if kernel.alternating:
            side = side + (weight[:, 1] @ filters) * (1 - 2 * (torch.arange(kernel.span) % 2))
        sides.append(side)
    return looked_up(sides, lags)


REFERENCES: dict[str, Callable[[Any, Tensor], Tensor]] = {
    each.__name__: each
    for each in (rpe, free, frequency, warped, ema, modal, cema, s4d, dss, s4, sgconv, hyena, spectral)
}
SMOOTH = {"RPEKernel": rpe, "WarpedKernel": warped_smooth, "HyenaKernel": hyena_smooth}
