"""Every mixer by its definition: one document at a time, densely, in double precision.

The code is slow and takes only parameters, options and SKI's split of a kernel from the package.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from family_references import FAMILY
from kernel_references import ACTIVATIONS, affine, kernel_at, smooth_at
from torch import Tensor

from lagwise.mixers import MIXERS
from lagwise.mixers.tcn import ACTIVATIONS as TCN_ACTIVATIONS
from lagwise.ops.ski import split_kernel

silu = ACTIVATIONS["silu"]


def reference(mixer: Any, x: Tensor) -> Tensor:
    """A mixer's output for one document ``(length, channels)``, or for an image ``(height, width, channels)`` if it
    needs a grid. KeyError for a mixer that has no reference."""
    name = next(name for name, kind in MIXERS.items() if type(mixer) is kind)
    return REFERENCES[name](mixer, x) if len(x) else x


def toeplitz(mixer: Any, x: Tensor) -> Tensor:
    if mixer.ski is None:
        return product(kernel_at(mixer.kernel, torch.arange(1 - len(x), len(x))), x)
    return (causal_ski if mixer.causal else two_sided_ski)(mixer.kernel, mixer.ski, x)


def causal_ski(kernel: Any, ski: Any, x: Tensor) -> Tensor:
    plan = ski.plan(kernel)
    nodes = (len(x) - 1) // plan.spacing + plan.degree + 1
    w = interpolation(len(x), nodes, -(plan.degree // 2) * plan.spacing, plan.spacing, plan.degree)
    lags = torch.arange(max(nodes, plan.short_nodes)) * plan.spacing
    short, coarse = split_kernel(kernel_at(kernel, torch.arange(plan.width)), kernel_at(kernel, lags), plan)
    return causal_product(short, x) + w @ causal_product(coarse, w.t() @ x)


def two_sided_ski(kernel: Any, ski: Any, x: Tensor) -> Tensor:
    """SKI-TNN alg. 1."""
    n = len(x)
    rank = min(ski.rank, n)
    spacing = (n - 1) / (rank - 1) if rank > 1 else 1.0
    w = interpolation(n, rank, 0.0, spacing, min(ski.degree, rank - 1))
    lags = torch.arange(1 - n, n)
    local = kernel_at(kernel, lags) - smooth_at(kernel, lags.double())
    coarse = smooth_at(kernel, torch.arange(1 - rank, rank, dtype=x.dtype) * spacing)
    return product(local, x) + w @ product(coarse, w.t() @ x)


def gtu(mixer: Any, x: Tensor) -> Tensor:
    mixed = toeplitz(mixer.toeplitz, silu(affine(mixer.value, x)))
    return affine(mixer.out, silu(affine(mixer.gate, x)) * mixed)


def ema(mixer: Any, x: Tensor) -> Tensor:
    mixed = product(kernel_at(mixer.kernel, torch.arange(1 - len(x), len(x))), x)
    return silu(mixed + mixer.omega * x)


def tcn(mixer: Any, x: Tensor) -> Tensor:
    activation = ACTIVATIONS[next(name for name, f in TCN_ACTIVATIONS.items() if f is mixer.activation)]
    n, size = len(x), mixer.taps.shape[2]
    before = size - 1 if mixer.causal else size // 2  # taps of lags above 0
    for start in range(0, len(mixer.taps), mixer.convolutions):
        h = x
        for number in range(start, start + mixer.convolutions):
            if mixer.norm == "rms":
                h = h / (h.square().mean(1, keepdim=True) + 1e-6).sqrt()
            taps, dilation = mixer.taps[number], mixer.dilations[number]
            lags = range(before - size + 1, before + 1)
            if mixer.circular:
                shifted = [h[(torch.arange(n) - lag * dilation) % n] for lag in lags]
            else:
                wide = F.pad(h, (0, 0, before * dilation, (size - 1 - before) * dilation))
                shifted = [wide[(before - lag) * dilation :][:n] for lag in lags]
            h = activation(sum(x_l * t for x_l, t in zip(shifted, taps.unbind(1), strict=True)))
        x = x + h if mixer.residual else h
    return x


def attention(mixer: Any, x: Tensor) -> Tensor:
    query, key, value = (t.unflatten(1, (mixer.heads, -1)).transpose(0, 1) for t in affine(mixer.qkv, x).chunk(3, 1))
    lag = lag_matrix(len(x))
    scores = query @ key.mT / math.sqrt(query.shape[2])
    if mixer.position == "alibi":
        scores = scores - torch.tensor(alibi(mixer.heads), dtype=x.dtype)[:, None, None] * lag.abs()
    if mixer.causal:
        scores = scores.masked_fill(lag < 0, float("-inf"))
    return affine(mixer.out, (scores.softmax(2) @ value).transpose(0, 1).flatten(1))


def alibi(heads: int) -> list[float]:
    below = 1 << (heads.bit_length() - 1)
    slopes = [2 ** (-8 * k / below) for k in range(1, below + 1)]
    return slopes + [2 ** (-8 * k / (2 * below)) for k in range(1, 2 * below, 2)][: heads - below]


def chunked_attention(mixer: Any, x: Tensor) -> Tensor:
    core, n = mixer.attention, len(x)
    chunk = core.chunk if mixer.training else core.evaluation_chunk
    query, key, value = (t.unflatten(1, (core.heads, -1)).transpose(0, 1) for t in affine(mixer.qkv, x).chunk(3, 1))
    home, lag = torch.arange(n) // chunk, lag_matrix(n)
    allowed = home[:, None] == home
    if core.sliding:
        allowed, chunk = allowed | (home[:, None] - home == 1), 2 * chunk
    if mixer.causal:
        allowed = allowed & (lag >= 0)
    bias = torch.zeros(1, dtype=x.dtype)
    near = lag.clamp(1 - chunk, chunk - 1)  # the others are not allowed
    if core.position == "rope":
        query, key = (turned(t, torch.arange(n) if core.sliding else torch.arange(n) % chunk) for t in (query, key))
    elif core.position == "simple":
        bias = core.lag_table[:, near + core.lag_table.shape[1] // 2]
    elif core.position == "rotary":
        a, b = core.rotary_pair
        lags = torch.arange(1 - chunk, chunk)
        bias = (turned(a[:, None].expand(-1, len(lags), -1), lags) * b[:, None]).sum(2)[:, near + chunk - 1]
    scores = query @ key.mT
    if core.function == "softmax":
        scores = scores / math.sqrt(query.shape[2]) + bias
        weights = scores.masked_fill(~allowed, float("-inf")).softmax(2)
    else:
        scores = scores / allowed.sum(1, keepdim=True) + bias
        if core.function == "laplace":
            weights = (1 + torch.erf((scores - math.sqrt(1 / 2)) / math.sqrt(2 / (4 * math.pi)))) / 2
        else:
            weights = scores.clamp(min=0) ** 2
        weights = weights * allowed
    return affine(mixer.out, (weights @ value).transpose(0, 1).flatten(1))


def turned(x: Tensor, places: Tensor) -> Tensor:
    """Channels 2 k and 2 k + 1 of ``(heads, n, d)`` rotated by position * 10000 ** (-2 k / d)."""
    d = x.shape[2]
    angle = places[:, None] * torch.tensor([10000.0 ** (-k / d) for k in range(0, d, 2)], dtype=x.dtype)
    even, odd = x[..., ::2], x[..., 1::2]
    return torch.stack([even * angle.cos() - odd * angle.sin(), odd * angle.cos() + even * angle.sin()], 3).flatten(2)


def grid(mixer: Any, x: Tensor) -> Tensor:
    along = [reference(mixer.rows, row) for row in x]
    down = [reference(mixer.columns, column) for column in x.unbind(1)]
    return torch.stack(along) + torch.stack(down, dim=1)


def gtu2d(mixer: Any, x: Tensor) -> Tensor:
    return affine(mixer.out, silu(affine(mixer.gate, x)) * grid(mixer, silu(affine(mixer.value, x))))


REFERENCES: dict[str, Callable[[Any, Tensor], Tensor]] = {
    "toeplitz": toeplitz,
    "gtu": gtu,
    "attention": attention,
    "ema": ema,
    "tcn": tcn,
    "chunked_attention": chunked_attention,
    "grid": grid,
    "gtu2d": gtu2d,
    **{name: partial(of_paper, toeplitz=toeplitz) for name, of_paper in FAMILY.items()},
}


# What they are made of.


def lag_matrix(n: int) -> Tensor:
    return torch.arange(n)[:, None] - torch.arange(n)


def interpolation(length: int, nodes: int, start: float, spacing: float, degree: int) -> Tensor:
    """Lagrange polynomials of the degree + 1 nodes around each token: ``(length, nodes)``."""
    w = torch.zeros(length, nodes, dtype=torch.float64)
    for token in range(length):
        place = (token - start) / spacing
        first = math.floor(place + (0.5 if degree % 2 == 0 else 0)) - degree // 2
        around = range(min(max(first, 0), nodes - 1 - degree), min(max(first, 0), nodes - 1 - degree) + degree + 1)
        for node in around:
            w[token, node] = math.prod((place - other) / (node - other) for other in around if other != node)
    return w


def causal_product(taps: Tensor, x: Tensor) -> Tensor:
    taps = F.pad(taps, (0, max(0, len(x) - taps.shape[1])))[:, : len(x)]
    return product(F.pad(taps, (len(x) - 1, 0)), x)


def product(taps: Tensor, x: Tensor) -> Tensor:
    """``y_i = sum_j t_{i-j} x_j`` in every channel: taps ``(channels, 2 n - 1)``, lag ``-(n - 1)`` first; x ``(n,
    channels)``."""
    return torch.stack([_Product.apply(*pair) for pair in zip(taps, x.t(), strict=True)], dim=1)


class _Product(torch.autograd.Function):
    """One channel and its gradients as direct sums by numpy, without transforms."""

    @staticmethod
    def forward(ctx: Any, taps: Tensor, x: Tensor) -> Tensor:
        ctx.save_for_backward(taps, x)
        return _middle(taps, x)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, Tensor]:
        taps, x = ctx.saved_tensors
        lags = torch.from_numpy(np.correlate(grad.numpy(), x.numpy(), "full"))  # sum_i g_i x_{i-l}
        return lags, _middle(taps.flip(0), grad)


def _middle(taps: Tensor, x: Tensor) -> Tensor:
    n = len(x)
    return torch.from_numpy(np.convolve(taps.numpy(), x.numpy()))[n - 1 : 2 * n - 1]
