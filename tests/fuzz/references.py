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
from attention_references import attention_reference, chunked_attention_reference
from family_references import FAMILY, heads_of
from kernel_references import ACTIVATIONS, affine, kernel_at, lags, smooth_at
from torch import Tensor

from lagwise.mixers import MIXERS
from lagwise.ops.activations import ACTIVATIONS as TCN_ACTIVATIONS
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
    at_nodes = torch.arange(max(nodes, plan.short_nodes)) * plan.spacing
    short, coarse = split_kernel(kernel_at(kernel, torch.arange(plan.width)), kernel_at(kernel, at_nodes), plan)
    return causal_product(short, x) + w @ causal_product(coarse, w.t() @ x)


def two_sided_ski(kernel: Any, ski: Any, x: Tensor) -> Tensor:
    """SKI-TNN alg. 1."""
    n = len(x)
    rank = min(ski.rank, n)
    spacing = (n - 1) / (rank - 1) if rank > 1 else 1.0
    w = interpolation(n, rank, 0.0, spacing, min(ski.degree, rank - 1))
    every = torch.arange(1 - n, n)
    local = kernel_at(kernel, every) - smooth_at(kernel, every.double())
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
            by = range(before - size + 1, before + 1)
            wide = F.pad(h, (0, 0, before * dilation, (size - 1 - before) * dilation))
            shifted = [wide[(before - lag) * dilation :][:n] for lag in by]
            h = activation(sum(x_l * t for x_l, t in zip(shifted, taps.unbind(1), strict=True)))
        x = x + h if mixer.residual else h
    return x


def attention(mixer: Any, x: Tensor) -> Tensor:
    slopes = torch.tensor(alibi(mixer.heads), dtype=x.dtype) if mixer.position == "alibi" else None
    heads = (heads_of(t, mixer.heads)[None] for t in affine(mixer.qkv, x).chunk(3, 1))
    y = attention_reference(*heads, causal=mixer.causal, slopes=slopes)
    return affine(mixer.out, y[0].transpose(0, 1).flatten(1))


def alibi(heads: int) -> list[float]:
    below = 1 << (heads.bit_length() - 1)
    slopes = [2 ** (-8 * k / below) for k in range(1, below + 1)]
    return slopes + [2 ** (-8 * k / (2 * below)) for k in range(1, 2 * below, 2)][: heads - below]


def chunked_attention(mixer: Any, x: Tensor) -> Tensor:
    core, n = mixer.attention, len(x)
    chunk = core.chunk if mixer.training else core.evaluation_chunk
    query, key, value = (heads_of(t, core.heads) for t in affine(mixer.qkv, x).chunk(3, 1))
    reach = 2 * chunk if core.sliding else chunk
    lag, bias = torch.arange(1 - reach, reach), None
    if core.position == "rope":
        query, key = (turned(t, torch.arange(n) if core.sliding else torch.arange(n) % chunk) for t in (query, key))
    elif core.position == "simple":
        bias = core.lag_table[:, lag + core.lag_table.shape[1] // 2]
    elif core.position == "rotary":
        a, b = core.rotary_pair
        bias = (turned(a[:, None].expand(-1, len(lag), -1), lag) * b[:, None]).sum(2)
    if bias is not None and not core.sliding:
        bias = bias[:, lags(chunk) + chunk - 1]
    options = {"causal": mixer.causal, "function": core.function, "bias": bias, "sliding": core.sliding}
    y = chunked_attention_reference(query[None], key[None], value[None], chunk=chunk, **options)
    return affine(mixer.out, y[0].transpose(0, 1).flatten(1))


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
    **{each.__name__: each for each in (toeplitz, gtu, attention, ema, tcn, chunked_attention, grid, gtu2d)},
    **{name: partial(of_paper, toeplitz=toeplitz) for name, of_paper in FAMILY.items()},
}


# What they are made of.


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
