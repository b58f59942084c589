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
import torch.nn.functional as F
from kernel_references import ACTIVATIONS, affine, lags
from torch import Tensor

from lagwise.ops.attention.full import alibi_slopes

Toeplitz = Callable[[Any, Tensor], Tensor]


def depthwise(taps: Tensor, x: Tensor, causal: bool) -> Tensor:
    """``sum_m w_m x_{i - m}``, m from 0, or from -(K - 1) / 2 if centred."""
    first = 0 if causal else -(taps.shape[1] // 2)
    matrix = sum(tap[:, None, None] * (lags(len(x)) == first + m) for m, tap in enumerate(taps.unbind(1)))
    return torch.einsum("cij,jc->ic", matrix, x)


def short_conv(mixer: Any, x: Tensor, toeplitz: Toeplitz) -> Tensor:
    before, after, value = affine(mixer.input, x).chunk(3, 1)
    return affine(mixer.out, after * depthwise(mixer.taps, before * value, mixer.causal))


def hyena(mixer: Any, x: Tensor, toeplitz: Toeplitz) -> Tensor:
    short = depthwise(mixer.taps, affine(mixer.input, x), mixer.causal)
    z, *gates = (short if mixer.bias is None else short + mixer.bias).split(x.shape[1], 1)
    if mixer.first_gate:
        z, gates = z * gates[0], gates[1:]
    for gate, long in zip(gates, mixer.filters, strict=True):
        z = gate * toeplitz(long, z)
    return affine(mixer.out, z)


def linear_attention(mixer: Any, x: Tensor, toeplitz: Toeplitz) -> Tensor:
    query, key, value = (heads_of(t, mixer.heads) for t in affine(mixer.qkv, x).chunk(3, 1))
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


def toeplitz_heads(mixer: Any, x: Tensor, toeplitz: Toeplitz) -> Tensor:
    return affine(mixer.out, toeplitz(mixer.toeplitz, affine(mixer.value, x)))


def caracal(mixer: Any, x: Tensor, toeplitz: Toeplitz) -> Tensor:
    normed = layer_norm(mixer.norm, depthwise(mixer.taps, x, causal=True))
    groups = torch.block_diag(*mixer.heads.weight[:, :, 0].chunk(mixer.heads.groups))
    tap = F.silu(affine(mixer.gate, normed)) @ groups.t() + mixer.heads.bias
    lag = lags(len(x))
    matrix = tap[lag.clamp(min=0)] * (lag >= 0)[..., None]  # of lag, and so of the token that far from the first
    return affine(mixer.out, torch.einsum("ijc,jc->ic", matrix, affine(mixer.value, normed)))


def gss(mixer: Any, x: Tensor, toeplitz: Toeplitz) -> Tensor:
    mixed = toeplitz(mixer.toeplitz, F.gelu(affine(mixer.value, x)))
    return affine(mixer.out, F.gelu(affine(mixer.gate, x)) * affine(mixer.widen, mixed))


def layer_norm(norm: Any, x: Tensor) -> Tensor:
    centred = x - x.mean(1, keepdim=True)
    return centred / (centred.square().mean(1, keepdim=True) + norm.eps).sqrt() * norm.weight + norm.bias


def gmlp(mixer: Any, x: Tensor, toeplitz: Toeplitz) -> Tensor:
    n, lag = len(x), lags(len(x))
    first, second = F.gelu(affine(mixer.input, x)).chunk(2, 1)
    if mixer.matrix == "dense":
        matrix = mixer.mixing[:n, :n]
    else:
        matrix = mixer.mixing[0, lag.clamp(min=0) if mixer.causal else lag + mixer.max_length - 1]
    if mixer.causal:
        matrix = matrix * (lag >= 0)
    return affine(mixer.out, first * (matrix @ layer_norm(mixer.norm, second) + mixer.bias[:n, None]))


def heads_of(x: Tensor, heads: int) -> Tensor:
    return x.unflatten(1, (heads, -1)).transpose(0, 1)


def synthesizer(mixer: Any, x: Tensor, toeplitz: Toeplitz) -> Tensor:
    n = len(x)
    if mixer.form == "random":
        scores = mixer.scores[:, :n, :n]
    else:
        scores = heads_of(affine(mixer.hidden, x).relu(), mixer.heads) @ mixer.scores[:, :, :n]
    if mixer.causal:
        scores = scores.masked_fill(lags(n) < 0, float("-inf"))
    value = heads_of(affine(mixer.value, x), mixer.heads)
    return affine(mixer.out, (scores.softmax(2) @ value).transpose(0, 1).flatten(1))


def flash(mixer: Any, x: Tensor, toeplitz: Toeplitz) -> Tensor:
    n, size = len(x), mixer.chunk
    gate, value, base = F.silu(affine(mixer.input, x)).split([mixer.width, mixer.width, mixer.scale.shape[1]], 1)
    query, key, far_query, far_key = (base * a + b for a, b in zip(mixer.scale, mixer.shift, strict=True))
    d = base.shape[1]
    angle = torch.arange(n)[:, None] * torch.tensor([10000.0 ** (-k / d) for k in range(0, d, 2)], dtype=x.dtype)
    turn = torch.polar(torch.ones_like(angle), angle)
    query, key = (torch.complex(t[:, ::2], t[:, 1::2]) * turn for t in (query, key))
    home = torch.arange(n) // size
    near = ((query @ key.conj().t()).real / size).relu() ** 2 * (home[:, None] == home)
    far = far_query @ far_key.t()
    if mixer.causal:
        near = near * (lags(n) >= 0)
        far = far * (home < home[:, None]) / (home * size).clamp(min=1)[:, None]
    else:
        far = far / n
    return affine(mixer.out, gate * ((near + far) @ value))


def long_short(mixer: Any, x: Tensor, toeplitz: Toeplitz) -> Tensor:
    n, size, heads = len(x), mixer.window, mixer.heads
    query, key, value = affine(mixer.qkv, x).chunk(3, 1)
    pieces = list(torch.arange(n).split(size if mixer.causal else n))
    far = []
    for t in (key, value):
        rows = []
        for piece in pieces:
            share = heads_of(affine(mixer.project, x[piece]), heads).softmax(1)
            rows.append(layer_norm(mixer.far_norm, (share.mT @ heads_of(t[piece], heads)).transpose(0, 1).flatten(1)))
        far.append(torch.cat(rows))
    keys, values = (
        heads_of(torch.cat([layer_norm(mixer.near_norm, t), f]), heads) for t, f in zip((key, value), far, strict=True)
    )
    place, home = torch.arange(n), torch.arange(n) // size
    begin, end = home * size, (home + 1) * size
    if mixer.causal:
        near = (lags(n) >= 0) & (place >= (begin - size)[:, None])
        distant = torch.arange(len(pieces)) < home[:, None]
    else:
        near = (place >= (begin - size // 2)[:, None]) & (place < (end + size // 2)[:, None])
        distant = torch.ones(n, 1, dtype=torch.bool)
    seen = torch.cat([near, distant.repeat_interleave(mixer.rank, 1)], 1)
    scores = heads_of(query, heads) @ keys.mT / math.sqrt(keys.shape[2])
    if mixer.position == "alibi":
        slopes = alibi_slopes(heads).to(x.dtype)
        scores[:, :, :n] -= slopes[:, None, None] * lags(n).abs()
    weights = scores.masked_fill(~seen, float("-inf")).softmax(2)
    return affine(mixer.out, (weights @ values).transpose(0, 1).flatten(1))


def relative_attention(mixer: Any, x: Tensor, toeplitz: Toeplitz) -> Tensor:
    n, c = x.shape
    query, key, value = (heads_of(t, mixer.heads) for t in affine(mixer.qkv, x).chunk(3, 1))
    lag = lags(n)
    rate = torch.tensor([10000.0 ** (-k / c) for k in range(0, c, 2)], dtype=x.dtype)
    angle = torch.arange(n)[:, None] * rate
    waves = heads_of(affine(mixer.relative, torch.cat([angle.sin(), angle.cos()], 1)[:, :c]), mixer.heads)
    by_lag = (query + mixer.place[:, None]) @ waves.mT  # (heads, n, lags)
    scores = (query + mixer.content[:, None]) @ key.mT
    scores = scores + by_lag.gather(2, lag.clamp(min=0).expand(mixer.heads, -1, -1))
    scores = (scores / math.sqrt(query.shape[2])).masked_fill((lag < 0) | (lag > mixer.memory), float("-inf"))
    return affine(mixer.out, (scores.softmax(2) @ value).transpose(0, 1).flatten(1))


def fourier(n: int) -> Tensor:
    """``exp(-2 pi i j k / n)``."""
    turn = -2 * math.pi / n * (torch.arange(n)[:, None] * torch.arange(n) % n).double()
    return torch.complex(turn.cos(), turn.sin())


def fnet(mixer: Any, x: Tensor, toeplitz: Toeplitz) -> Tensor:
    return (fourier(len(x)) @ x.to(torch.complex128) @ fourier(x.shape[1])).real


def transformed(down: Tensor, across: Tensor, x: Tensor) -> Tensor:
    """Columns, then rows: one product of all three would take memory for both matrices' outer product."""
    return torch.einsum("kw,iwc->ikc", across, torch.einsum("ih,hwc->iwc", down, x.to(down.dtype)))


def gfnet(mixer: Any, x: Tensor, toeplitz: Toeplitz) -> Tensor:
    """Of an image ``(height, width, channels)``. A frequency of the half that is kept stands for its conjugate too."""
    (height, width), shape = mixer.size, x.shape
    x = F.pad(x, (0, 0, 0, width - shape[1], 0, height - shape[0]))
    down, across = fourier(height), fourier(width)[: width // 2 + 1]
    spectrum = transformed(down, across, x) * torch.view_as_complex(mixer.filter)
    times = torch.full((len(across), 1), 2.0, dtype=x.dtype)
    times[0] = 1
    if width % 2 == 0:
        times[-1] = 1
    half = torch.einsum("ih,ikc->hkc", down.conj(), spectrum) * times
    y = torch.einsum("kw,hkc->hwc", across.conj(), half).real / (height * width)
    return y[: shape[0], : shape[1]]


def afno2d(mixer: Any, x: Tensor, toeplitz: Toeplitz) -> Tensor:
    """Of an image ``(height, width, channels)``: the half of the frequencies across that says the other."""
    height, width, _ = x.shape
    down, across = fourier(height) / height**0.5, fourier(width) / width**0.5
    z = transformed(down, across[: width // 2 + 1], x)
    act = ACTIVATIONS[mixer.network.activation]
    for weight, bias in (
        (mixer.network.first, mixer.network.first_bias),
        (mixer.network.second, mixer.network.second_bias),
    ):
        z = z @ torch.block_diag(*torch.view_as_complex(weight)) + torch.view_as_complex(bias)
        z = torch.complex(act(z.real), act(z.imag)) if weight is mixer.network.first else z
    small = mixer.network.threshold
    z = torch.complex(*(part.sign() * (part.abs() - small).clamp(min=0) for part in (z.real, z.imag)))
    times = torch.tensor([1.0 if k == 0 or 2 * k == width else 2.0 for k in range(z.shape[1])], dtype=x.dtype)
    z = torch.einsum("ih,ikc->hkc", down.conj(), z) * times[:, None]
    return x + torch.einsum("kw,hkc->hwc", across[: width // 2 + 1].conj(), z).real


def afno(mixer: Any, x: Tensor, toeplitz: Toeplitz) -> Tensor:
    return afno2d(mixer, x[None], toeplitz)[0]


FAMILY: dict[str, Callable[[Any, Tensor, Toeplitz], Tensor]] = {
    each.__name__: each
    for each in (
        *(hyena, short_conv, linear_attention, lru, s5, gss, flash, gmlp, synthesizer, long_short),
        *(relative_attention, fnet, gfnet, afno, afno2d, caracal, toeplitz_heads),
    )
}
