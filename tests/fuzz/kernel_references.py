"""What every kernel is, by its definition, at any lags and in double precision."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

ACTIVATIONS: dict[str, Callable[[Tensor], Tensor]] = {
    "relu": lambda x: x.clamp(min=0),
    "silu": lambda x: x * torch.sigmoid(x),
    "gelu": lambda x: x * (1 + torch.erf(x / math.sqrt(2))) / 2,
    "tanh": torch.tanh,
    "none": lambda x: x,
}


def kernel_at(kernel: Any, lags: Tensor) -> Tensor:
    """Values ``(channels, n)`` at integer lags ``(n,)``. KeyError for a kernel that has no reference."""
    values = KERNELS[type(kernel).__name__](kernel, lags.double())
    return values * (lags >= 0) if kernel.causal else values


def smooth_at(kernel: Any, lags: Tensor) -> Tensor:
    """Values of the part that SKI interpolates, at real lags."""
    return SMOOTH[type(kernel).__name__](kernel, lags)


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


def ema_kernel(kernel: Any, lags: Tensor) -> Tensor:
    sides = ema_sides(kernel, lags)
    return sides[0] if kernel.causal else sides[0] * (lags >= 0) + sides[1] * (lags <= 0)


def ema_smooth(kernel: Any, lags: Tensor) -> Tensor:
    after, before = ema_sides(kernel, lags)
    return after * (lags > 0) + before * (lags < 0) + (after + before) / 2 * (lags == 0)


def modal(kernel: Any, lags: Tensor) -> Tensor:
    distance = lags.abs()
    size = (-kernel.rate.exp()[..., None] * distance).exp()
    angle = kernel.angle[..., None] * distance
    real, imaginary = kernel.amplitude[..., 0, None], kernel.amplitude[..., 1, None]
    sides = (size * (real * angle.cos() - imaginary * angle.sin())).sum(2)
    values = sides[0] if kernel.causal else sides[0] * (lags >= 0) + sides[1] * (lags <= 0)
    return values + kernel.direct[:, None] * (lags == 0)


KERNELS: dict[str, Callable[[Any, Tensor], Tensor]] = {
    "RPEKernel": rpe,
    "FreeKernel": free,
    "FrequencyKernel": frequency,
    "WarpedKernel": warped,
    "EMAKernel": ema_kernel,
    "ModalKernel": modal,
}
SMOOTH = {"RPEKernel": rpe, "WarpedKernel": warped_smooth, "EMAKernel": ema_smooth}


def affine(layer: Any, x: Tensor) -> Tensor:
    return x @ layer.weight.t() + layer.bias
