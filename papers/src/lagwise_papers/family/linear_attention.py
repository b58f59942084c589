"""Attention by features of queries and keys, in linear time."""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from lagwise.mixers.base import Mixer, check_heads
from lagwise.ops import Layout
from lagwise.ops.operation import symbolic
from lagwise.ops.packing import per_document
from lagwise.tables import check_integer, known
from lagwise_papers.family.linear_products import linear_attention

FEATURE_MAPS = ("elu", "cosformer", "favor")


class SumsState(NamedTuple):
    """Streaming state: sums of products of keys and values, ``(batch, heads, features, size + 1)``, and the number of
    tokens of each row, ``(batch,)``."""

    sums: Tensor
    seen: Tensor


class LinearAttentionMixer(Mixer):
    """``y_i = sum_j f(q_i)·f(k_j) v_j / sum_j f(q_i)·f(k_j)`` in each head, over ``j <= i`` when causal.

    Options:
        heads: must divide the channels.
        feature_map: ``elu``: ``f(u) = 1 + elu(u)``; ``cosformer``: ``relu(u)``, with the product weighted by ``cos(pi
            (i - j) / (2 span))``; ``favor``: ``exp(w_m·u - |u|^2 / 2) / sqrt(count)`` with u scaled by ``d**(-1/4)``
            and ``count`` random w_m, orthogonal in blocks of d: FAVOR+, whose mean is softmax attention. These features
            are drawn from a fixed seed, saved with the weights, and never drawn again.
        span: for ``cosformer`` only. The published span is the length of each input; here it is an option, so that the
            weights do not depend on later tokens, and texts may not be longer, because further weights would be
            negative.
        count: for ``favor`` only.

    Positions count from a row's first real token. ValueError for options out of range, heads that do not divide the
    channels, or a text longer than the span.

    Streams in constant memory and time: ``d * (d + 1)`` numbers per head, with ``2 d`` (``cosformer``) or ``count``
    (``favor``) in place of the first d.

    Source: Katharopoulos et al. 2020, "Transformers are RNNs", §3; Qin et al. 2022, "cosFormer"; Choromanski et al.
    2021, "Rethinking Attention with Performers" (FAVOR+, lemma 1).
    """

    takes_shards = True

    def __init__(
        self,
        channels: int,
        *,
        causal: bool = True,
        heads: int = 8,
        feature_map: str = "elu",
        span: int = 4096,
        count: int = 64,
    ):
        super().__init__(channels, causal)
        check_heads(channels, heads)
        self.heads, self.feature_map = heads, known(feature_map, FEATURE_MAPS, "feature_map")
        self.max_length = check_integer("span", span) if feature_map == "cosformer" else None
        self.qkv = nn.Linear(channels, 3 * channels)
        self.out = nn.Linear(channels, channels)
        check_integer("count", count)
        self.register_buffer("random", torch.empty(count, channels // heads) if feature_map == "favor" else None)
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Draw the random features of ``favor``: directions orthogonal in blocks, with the lengths of normal
        vectors."""
        if self.random is None:
            return
        count, size = self.random.shape
        generator = torch.Generator().manual_seed(0)
        blocks = torch.randn(-(-count // size), size, size, generator=generator, dtype=torch.float64, device="cpu")
        lengths = torch.randn(count, size, generator=generator, dtype=torch.float64, device="cpu").norm(dim=1)
        turns, upper = torch.linalg.qr(blocks)
        turns = turns * upper.diagonal(dim1=1, dim2=2).sign()[:, None]  # sign fix: the directions are then uniform
        with torch.no_grad():
            self.random.copy_(turns.flatten(0, 1)[:count] * lengths[:, None])

    def mix(self, x: Tensor, state: SumsState | None, layout: Layout) -> tuple[Tensor, Any]:
        if layout.shard is not None:
            return self._mix_shard(x, layout), None
        mask = layout.mask
        if state is None and mask is None and not symbolic(x.shape[1]):  # known within a graph too
            self._check_length(x.shape[1])
        sums, seen = (None, None) if state is None else state
        real = torch.ones(x.shape[:2], dtype=torch.bool, device=x.device) if mask is None else mask
        position = real.cumsum(1) + (0 if seen is None else seen[:, None])
        query, key, value = self._project(x, position, real)
        y, sums = linear_attention(query, key, value, causal=self.causal, state=sums)
        return self._normalised(y, x.dtype), SumsState(sums, position[:, -1].clone())

    def init_state(self, batch_size: int) -> SumsState:
        self.require_causal()
        size, weight = self.channels // self.heads, self.out.weight
        width = {"elu": size, "cosformer": 2 * size, "favor": 0 if self.random is None else len(self.random)}
        sums = weight.new_zeros(
            (batch_size, self.heads, width[self.feature_map], size + 1),
            dtype=torch.promote_types(weight.dtype, torch.float32),
        )
        return SumsState(sums, torch.zeros(batch_size, dtype=torch.long, device=weight.device))

    def _mix_shard(self, x: Tensor, layout: Layout) -> Tensor:
        shard = layout.shard
        full_layout = shard.whole
        real = x.new_ones(x.shape[:2], dtype=torch.bool) if layout.mask is None else layout.mask
        is_counted = real.new_ones(len(x), shard.length).long() if full_layout.mask is None else full_layout.mask.long()
        position = is_counted.cumsum(1)
        if (document := shard.documents) is not None:  # less the tokens of earlier documents
            before = torch.zeros_like(position).scatter_reduce(
                1, document - 1, position - is_counted, "amin", include_self=False
            )
            position = position - before.gather(1, document - 1)
        query, key, value = self._project(x, shard.own(position), real)
        sizes, heads = [t.shape[3] for t in (query, key, value)], self.heads

        def alone(joined: Tensor, _: Layout) -> Tensor:
            projections = joined.unflatten(2, (heads, -1)).transpose(1, 2).split(sizes, 3)
            return linear_attention(*projections, causal=self.causal)[0].transpose(1, 2).flatten(2)

        joined = torch.cat([query, key, value], 3).transpose(1, 2).flatten(2)
        y = per_document(alone, joined, Layout(layout.mask, layout.seq_idx)).unflatten(2, (heads, -1)).transpose(1, 2)
        for backward in (False,) if self.causal else (False, True):
            last, first = shard.open_end(backward=backward), shard.open_end(backward=not backward)
            ending = key if last is None else key * last[:, None, :, None]
            with torch.autocast(x.device.type, enabled=False):
                more = query @ shard.state_before(ending.mT @ value, backward=backward)
            y = y + (more if first is None else more * first[:, None, :, None])
        return self._normalised(y, x.dtype)

    def _project(self, x: Tensor, position: Tensor, real: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Compute features of queries and keys, and values with a one: ``(batch, heads, length, ...)``."""
        query, key, value = self.qkv(x).unflatten(2, (3, self.heads, -1)).permute(2, 0, 3, 1, 4)
        query, key = self._features(query, position, is_query=True), self._features(key, position)
        key = key * real[:, None, :, None]
        return query, key, F.pad(value, (0, 1), value=1.0).to(query.dtype)

    def _normalised(self, y: Tensor, dtype: torch.dtype) -> Tensor:
        total = y[..., -1:]  # 0 where every feature is; a quotient by almost 0 would have an infinite gradient
        y = y[..., :-1] / total.where(total > torch.finfo(y.dtype).tiny, 1)
        return self.out(y.transpose(1, 2).flatten(2).to(dtype))

    def _check_length(self, length: int) -> None:
        if self.max_length is not None and length > self.max_length:
            raise ValueError(f"cosformer's span is {self.max_length} tokens, got a text of {length}")

    def _features(self, u: Tensor, position: Tensor, *, is_query: bool = False) -> Tensor:
        """Compute features ``(batch, heads, length, features)`` in float32 or better; positions count from 1."""
        u = u.to(torch.promote_types(u.dtype, torch.float32))
        if self.feature_map == "elu":
            return torch.where(u > 0, 1 + u, u.clamp(max=0).exp())  # 1 + elu(u) without cancellation
        if self.max_length is not None:
            if not torch.compiler.is_compiling():
                self._check_length(int(position.max()))
            angle = (position.to(u.dtype) * (math.pi / 2 / self.max_length))[:, None, :, None]
            return torch.cat([u.relu() * angle.cos(), u.relu() * angle.sin()], 3)
        assert self.random is not None
        u = u * u.shape[3] ** -0.25
        with torch.autocast(u.device.type, enabled=False):
            exponent = u @ self.random.to(u.dtype).t() - u.square().sum(3, keepdim=True) / 2
        # Factors that cancel in the quotient keep the exponentials in range: for queries the largest, for keys a
        # constant, because the exponent is at most |w|^2 / 2.
        shift = exponent.detach().amax(3, keepdim=True) if is_query else u.shape[3] / 2
        return (exponent - shift).exp() / math.sqrt(len(self.random))
