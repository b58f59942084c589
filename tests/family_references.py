"""What the mixers of other long-sequence models compute, by their papers' formulas: token by token, or as one dense
matrix, for one document ``(length, channels)``.

Parameters and options are the package's; the arithmetic is not. Each takes the mixer, the document, and what computes
a `ToeplitzMixer` densely.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

Toeplitz = Callable[[Any, Tensor], Tensor]


def affine(layer: Any, x: Tensor) -> Tensor:
    y = x @ layer.weight.t()
    return y if layer.bias is None else y + layer.bias


def lags(n: int) -> Tensor:
    return torch.arange(n)[:, None] - torch.arange(n)


def depthwise(taps: Tensor, x: Tensor, causal: bool) -> Tensor:
    """``sum_m w_m x_{i - m}``, m from 0, or from -(K - 1) / 2 if centred."""
    first = 0 if causal else -(taps.shape[1] // 2)
    matrix = sum(tap[:, None, None] * (lags(len(x)) == first + m) for m, tap in enumerate(taps.unbind(1)))
    return torch.einsum("cij,jc->ic", matrix, x)


def short_conv(mixer: Any, x: Tensor, toeplitz: Toeplitz) -> Tensor:
    before, after, value = affine(mixer.input, x).chunk(3, 1)
    return affine(mixer.out, after * depthwise(mixer.taps, before * value, mixer.causal))


def hyena(mixer: Any, x: Tensor, toeplitz: Toeplitz) -> Tensor:
    z, *gates = depthwise(mixer.taps, affine(mixer.input, x), mixer.causal).chunk(len(mixer.filters) + 1, 1)
    for gate, long in zip(gates, mixer.filters, strict=True):
        z = gate * toeplitz(long, z)
    return affine(mixer.out, z)


def linear_attention(mixer: Any, x: Tensor, toeplitz: Toeplitz) -> Tensor:
    query, key, value = (t.unflatten(1, (mixer.heads, -1)).transpose(0, 1) for t in affine(mixer.qkv, x).chunk(3, 1))
    lag, size = lags(len(x)), query.shape[2]
    if mixer.feature_map == "elu":
        query, key = (torch.where(u > 0, u + 1, u.exp()) for u in (query, key))
        weights = query @ key.mT
    elif mixer.feature_map == "cosformer":
        weights = query.relu() @ key.relu().mT * torch.cos(math.pi / 2 * lag.double() / mixer.max_length)
    else:
        random = mixer.random.to(x.dtype)
        query, key = (u / size**0.25 for u in (query, key))
        query, key = ((u @ random.t() - u.square().sum(2, keepdim=True) / 2).exp() for u in (query, key))
        weights = query @ key.mT / len(random)
    if mixer.causal:
        weights = weights * (lag >= 0)
    total = weights.sum(2, keepdim=True)
    return affine(mixer.out, (weights @ value / total.where(total != 0, 1)).transpose(0, 1).flatten(1))


def recurrent(poles: Tensor, into: Tensor, outputs: Tensor, direct: Tensor, x: Tensor) -> Tensor:
    """Token by token, from the start and, with a second output, from the end."""
    y = direct * x
    for output, order in zip(outputs, (1, -1), strict=False):
        state, found = torch.zeros_like(poles), []
        for token in x.to(poles.dtype).unbind(0)[::order]:
            state = poles * state + into @ token
            found.append((output @ state).real)
        y = y + torch.stack(found[::order])
    return y


def lru(mixer: Any, x: Tensor, toeplitz: Toeplitz) -> Tensor:
    poles = torch.exp(torch.complex(-mixer.rate.exp(), mixer.log_angle.exp()))
    into = mixer.log_gain.exp()[:, None] * torch.view_as_complex(mixer.input)
    return recurrent(poles, into, torch.view_as_complex(mixer.output), mixer.direct, x)


def s5(mixer: Any, x: Tensor, toeplitz: Toeplitz) -> Tensor:
    a, step = torch.complex(-mixer.rate.exp(), mixer.angle), mixer.log_step.exp()
    poles = (a * step).exp()
    into = ((poles - 1) / a)[:, None] * torch.view_as_complex(mixer.input)
    return recurrent(poles, into, 2 * torch.view_as_complex(mixer.output), mixer.direct, x)


FAMILY: dict[str, Callable[[Any, Tensor, Toeplitz], Tensor]] = {
    "hyena": hyena,
    "short_conv": short_conv,
    "linear_attention": linear_attention,
    "lru": lru,
    "s5": s5,
}
