"""What layers of tnn-pytorch and safari compute, as sums over all pairs of tokens, from state dicts with their names,
and their weights and those of mega-pytorch by the names of ours. For one document ``(length, channels)`` in float64."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import torch
import torch.nn.functional as F
from kernel_references import lags
from torch import Tensor

Weights = Mapping[str, Tensor]


def linear(weights: Weights, name: str, x: Tensor) -> Tensor:
    y = x @ weights[f"{name}.weight"].t()
    return y + weights[f"{name}.bias"] if f"{name}.bias" in weights else y


def layer_norm(weights: Weights, name: str, x: Tensor, epsilon: float = 1e-5) -> Tensor:
    centred = x - x.mean(-1, keepdim=True)
    scale = (centred.square().mean(-1, keepdim=True) + epsilon).sqrt()
    return centred / scale * weights[f"{name}.weight"] + weights[f"{name}.bias"]


# mega-pytorch


def mega_buckets(lag: Tensor) -> Tensor:
    """The row of the causal table of biases for each lag of at least 0: one of each of the first 16, then ever wider
    ones, up to 128."""
    far = 16 + (torch.log(lag.clamp(min=1).double() / 16) / math.log(128 / 16) * 16).long()
    return torch.where(lag < 16, lag, far.clamp(max=31))


def mega_block(width: int, heads: int, query: int, value: int, longest: int) -> dict[str, Any]:
    """The spec of our block."""
    return {
        "name": "mega",
        "norm": "layer",
        "memory": {"name": "toeplitz", "kernel": {"name": "ema", "dimension": heads}},
        "query_size": query,
        "value_size": value,
        "chunk": longest,
        "position": "simple",
        "channel_mixer": {"name": "mlp", "expansion": 2, "activation": "gelu"},
    }


def mega_weights(theirs: Weights, longest: int) -> dict[str, Tensor]:
    """The weights of our block."""
    attention, ema = "0.single_headed_attn", "0.multi_headed_ema"
    alpha, dampening = (theirs[f"{ema}.{name}"].sigmoid() for name in ("alphas", "dampen_factors"))
    heads, width = theirs[f"{ema}.expansion"].shape
    decay = ((1 - alpha) * dampening)[None, None].expand(1, width, -1)
    p = 1 - decay / 2  # MEGA's decay is 1 - p sigmoid(alpha), for any p above 1 - decay
    sign = 1 - 2 * (torch.arange(heads) % 2)
    query = theirs[f"{attention}.to_qk.0.weight"].shape[0]
    gamma, beta = (theirs[f"{attention}.offsetscale.{name}"].clone() for name in ("gamma", "beta"))
    scale = (query / width) ** 0.5  # they divide by the root of the channels, we by that of the queries
    gamma[0], beta[0] = gamma[0] * scale, beta[0] * scale
    table = theirs[f"{attention}.rel_pos_bias.relative_attention_bias.weight"][:, 0] * query**0.5
    seen = table[mega_buckets(torch.arange(longest))]
    gates = [("0.to_update_gate.0", ""), (f"{attention}.to_qk.0", ""), ("0.to_reset_gate.0", "")]
    return {
        "norm.weight": theirs["1.weight"],
        "norm.bias": theirs["1.bias"],
        "memory.kernel.delta": torch.logit(p),
        "memory.kernel.alpha": torch.logit((1 - decay) / p),
        "memory.kernel.beta": theirs[f"{ema}.expansion"].t() * alpha / p - sign,
        "memory.kernel.gamma": (theirs[f"{ema}.reduction"].t() * heads**0.5)[None],
        "value.weight": theirs[f"{attention}.to_v.0.weight"],
        "value.bias": theirs[f"{attention}.to_v.0.bias"],
        "gates.weight": torch.cat([*(theirs[f"{name}.weight"] for name, _ in gates), theirs["0.Wh"].t()]),
        "gates.bias": torch.cat([*(theirs[f"{name}.bias"] for name, _ in gates), theirs["0.bh"]]),
        "query_key.scale": gamma,
        "query_key.shift": beta,
        "attention.lag_table": torch.cat([torch.zeros(longest - 1, dtype=seen.dtype), seen])[None],
        "out.weight": theirs["0.Uh"].t(),
        "out.bias": torch.zeros_like(theirs["0.bh"]),
        "channels.norm.weight": theirs["3.weight"],
        "channels.norm.bias": theirs["3.bias"],
        **{
            f"channels.mixer.{a}.{part}": theirs[f"2.{b}.{part}"] for a, b in (("up", 0), ("down", 2)) for part in PARTS
        },
    }


PARTS = ("weight", "bias")

# tnn-pytorch


def tnn_shapes(width: int, hidden: int, layers: int, glu: int, expansion: int = 3) -> dict[str, tuple[int, ...]]:
    """Parameters of a `TnnLayer`."""
    inner = expansion * width
    linears = {
        "token_mixer.v_proj": (inner, width),
        "token_mixer.u_proj": (inner, width),
        "token_mixer.o": (width, inner),
        "token_mixer.toep.rpe.pos_proj": (hidden, 1),
        **{f"token_mixer.toep.rpe.layers.{i}.2": (hidden, hidden) for i in range(layers)},
        "token_mixer.toep.rpe.out.2": (inner, hidden),
        "feature_mixer.l1": (glu, width),
        "feature_mixer.l2": (glu, width),
        "feature_mixer.l3": (width, glu),
    }
    return {f"{name}.{part}": shape[: 2 - (part == "bias")] for name, shape in linears.items() for part in PARTS}


def tnn_layer(weights: Weights, x: Tensor, *, layers: int, causal: bool, gamma: float) -> Tensor:
    """A layer with the norm before it (``simplermsnorm``) and ``use_decay=True``."""

    def normed(x: Tensor) -> Tensor:
        return x / (x.square().mean(-1, keepdim=True).sqrt() + 1e-8)

    n, rpe = len(x), "token_mixer.toep.rpe"
    h = linear(weights, f"{rpe}.pos_proj", torch.arange(1 - n, n)[:, None].to(x))
    for i in range(layers):
        h = linear(weights, f"{rpe}.layers.{i}.2", normed(h).relu())
    taps = linear(weights, f"{rpe}.out.2", normed(h).relu()) * gamma ** torch.arange(1 - n, n).abs()[:, None].to(x)
    matrix = taps[lags(n) + n - 1] * ((lags(n) >= 0) | (not causal))[..., None]
    h = normed(x)
    u, v = (F.silu(linear(weights, f"token_mixer.{name}_proj", h)) for name in "uv")
    x = x + linear(weights, "token_mixer.o", u * torch.einsum("ijc,jc->ic", matrix, v))
    h = normed(x)
    gated = F.silu(linear(weights, "feature_mixer.l1", h)) * linear(weights, "feature_mixer.l2", h)
    return x + linear(weights, "feature_mixer.l3", gated)


def tnn_block(width: int, hidden: int, layers: int, glu: int, gamma: float) -> dict[str, Any]:
    """The spec of our block."""
    return {
        "name": "prenorm",
        "norm": {"name": "rms", "epsilon": 1e-16},
        "token_mixer": {"name": "gtu", "kernel": {"name": "rpe", "hidden": hidden, "layers": layers, "decay": gamma}},
        "channel_mixer": {"name": "glu", "expansion": glu / width},
    }


def tnn_weights(theirs: Weights, layers: int) -> dict[str, Tensor]:
    """The weights of our block."""
    network = "token_mixer.toeplitz.kernel.network"
    names = {
        "token_mixer.u_proj": "token_mixer.gate",
        "token_mixer.v_proj": "token_mixer.value",
        "token_mixer.o": "token_mixer.out",
        "token_mixer.toep.rpe.pos_proj": f"{network}.first",
        **{f"token_mixer.toep.rpe.layers.{i}.2": f"{network}.hidden.{i}" for i in range(layers)},
        "token_mixer.toep.rpe.out.2": f"{network}.last",
        "feature_mixer.l1": "channels.mixer.gate",
        "feature_mixer.l2": "channels.mixer.value",
        "feature_mixer.l3": "channels.mixer.out",
    }
    return {f"{ours}.{part}": theirs[f"{name}.{part}"] for name, ours in names.items() for part in PARTS}


# safari, and HyenaDNA


def hyena_shapes(width: int, hidden: int, layers: int, features: int) -> dict[str, tuple[int, ...]]:
    """Parameters of a `HyenaOperator` of order 2."""
    shapes: dict[str, tuple[int, ...]] = {
        "in_proj.weight": (3 * width, width),
        "in_proj.bias": (3 * width,),
        "short_filter.weight": (3 * width, 1, 3),
        "short_filter.bias": (3 * width,),
        "out_proj.weight": (width, width),
        "out_proj.bias": (width,),
        "filter_fn.bias": (width,),
        "filter_fn.implicit_filter.0.weight": (hidden, features),
        "filter_fn.implicit_filter.0.bias": (hidden,),
        "filter_fn.implicit_filter.1.freq": (1, hidden),
    }
    for i in range(1, layers + 1):
        shapes[f"filter_fn.implicit_filter.{2 * i}.weight"] = (hidden, hidden)
        shapes[f"filter_fn.implicit_filter.{2 * i}.bias"] = (hidden,)
    return shapes | {f"filter_fn.implicit_filter.{2 * layers + 2}.weight": (width, hidden)}


def hyena_tables(width: int, longest: int, features: int) -> dict[str, Tensor]:
    """What it stores besides parameters: positions, and the rates of its windows, from a decay to a hundredth within
    1.5 lengths to one within 0.3."""
    t, bands = torch.linspace(0, 1, longest), (features - 1) // 2
    turns = torch.linspace(0, longest - 1, longest)[:, None] * 2 * math.pi / longest
    wave = torch.exp(-1j * torch.linspace(1e-4, bands - 1, bands) * turns)
    z = torch.cat([t[:, None], wave.real, wave.imag], 1)
    rates = torch.linspace(math.log(0.01) / 1.5, math.log(0.01) / 0.3, width)
    named = {"pos_emb.z": z[None], "pos_emb.t": t[None, :, None], "modulation.deltas": rates[None, None]}
    return {f"filter_fn.{name}": table for name, table in named.items()}


def hyena_operator(weights: Weights, x: Tensor, *, layers: int, shift: float) -> Tensor:
    """An operator of order 2 on ``x (length, channels)``, with the tables of `hyena_tables`."""
    n, width = x.shape
    network, frequency = "filter_fn.implicit_filter", weights["filter_fn.implicit_filter.1.freq"]
    h = weights["filter_fn.pos_emb.z"][0, :n].to(x)
    for i in range(layers + 1):
        h = torch.sin(frequency * linear(weights, f"{network}.{2 * i}", h))
    window = (-weights["filter_fn.pos_emb.t"][0, :n] * weights["filter_fn.modulation.deltas"][0].abs()).exp() + shift
    taps = linear(weights, f"{network}.{2 * layers + 2}", h) * window.to(x)
    matrix = taps[lags(n).clamp(min=0)] * (lags(n) >= 0)[..., None]
    projected = F.pad(linear(weights, "in_proj", x), (0, 0, 2, 0))
    short = sum(weights["short_filter.weight"][:, 0, m] * projected[m : m + n] for m in range(3))
    gate_after, gate_before, v = (short + weights["short_filter.bias"]).split(width, 1)
    v = v * gate_before
    v = torch.einsum("ijc,jc->ic", matrix, v) + weights["filter_fn.bias"] * v
    return linear(weights, "out_proj", v * gate_after)


def hyena_mixer(longest: int, hidden: int, layers: int, features: int, shift: float) -> dict[str, Any]:
    """The spec of our mixer."""
    kernel = {"span": longest, "hidden": hidden, "layers": layers, "bands": (features - 1) // 2, "shift": shift}
    return {"name": "hyena", "first_gate": True, "short_bias": True, "kernel": {"name": "hyena", **kernel}}


def hyena_weights(theirs: Weights, layers: int) -> dict[str, Tensor]:
    """The weights of our mixer: the input of the convolution first, then its gates in order."""

    def turned(x: Tensor) -> Tensor:
        after, before, value = x.chunk(3)
        return torch.cat([value, before, after])

    kernel, network = "filters.0.kernel", "filter_fn.implicit_filter"
    inner = {f"{network}.0": "first", **{f"{network}.{2 * i}": f"hidden.{i - 1}" for i in range(1, layers + 1)}}
    return {
        "input.weight": turned(theirs["in_proj.weight"]),
        "input.bias": turned(theirs["in_proj.bias"]),
        "taps": turned(theirs["short_filter.weight"])[:, 0].flip(1),
        "bias": turned(theirs["short_filter.bias"]),
        "out.weight": theirs["out_proj.weight"],
        "out.bias": theirs["out_proj.bias"],
        f"{kernel}.direct": theirs["filter_fn.bias"],
        f"{kernel}.frequency": theirs[f"{network}.1.freq"][0],
        f"{kernel}.last": theirs[f"{network}.{2 * layers + 2}.weight"],
        **{f"{kernel}.{ours}.{part}": theirs[f"{name}.{part}"] for name, ours in inner.items() for part in PARTS},
    }
