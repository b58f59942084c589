"""Transformer-LS: attention to nearby tokens, and to a projection of all others to a few keys."""

from __future__ import annotations

import math

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from lagwise.mixers.attention import POSITIONS
from lagwise.mixers.base import Mixer, check_heads, masked
from lagwise.ops import Layout
from lagwise.ops.attention.full import alibi_slopes
from lagwise.ops.packing import from_first_token
from lagwise.tables import check_integer, known


class LongShortMixer(Mixer):
    """One softmax over the keys of a window and over ``rank`` keys that summarise long stretches.

    Formula: with segments of ``window`` tokens, a token sees the tokens of its segment and half a window on either side
    or, when causal, those up to itself of its segment and of the one before. It also sees ``P' K, P' V`` with ``P =
    softmax(x W_p)`` over the tokens, in each head: of the whole text or, when causal, of each segment before its own.
    Keys and values of a window have one layer norm, those of projections another (DualLN).

    Options:
        heads: must divide the channels.
        window: in tokens.
        rank: number of keys per projection.
        position: ``alibi`` adds ALiBi's bias to the scores of the window, ``none`` nothing.

    The published language model has learned relative positions instead, for both kinds of keys, and its window is the
    last ``window`` tokens of each query. Segments count from a row's first real token. ValueError if heads does not
    divide the channels, and for options out of range. It does not stream: its state would be the rank keys of every
    segment.

    Source: Zhu et al. 2021, "Long-Short Transformer", §3.2 to 3.4.
    """

    streams = False

    def __init__(
        self,
        channels: int,
        *,
        causal: bool = True,
        heads: int = 8,
        window: int = 128,
        rank: int = 8,
        position: str = "alibi",
    ):
        super().__init__(channels, causal)
        check_heads(channels, heads)
        self.position = known(position, POSITIONS, "position")
        self.heads, self.window, self.rank = heads, check_integer("window", window), check_integer("rank", rank)
        self.qkv = nn.Linear(channels, 3 * channels)
        self.project = nn.Linear(channels, heads * rank, bias=False)  # a bias would cancel in the softmax
        self.near_norm, self.far_norm = nn.LayerNorm(channels), nn.LayerNorm(channels)
        self.out = nn.Linear(channels, channels)

    def mix(self, x: Tensor, state: None, layout: Layout) -> tuple[Tensor, None]:
        return self.out(from_first_token(self._attend, x, layout.mask)), None

    def _attend(self, x: Tensor, mask: Tensor | None) -> Tensor:
        batch, length, _ = x.shape
        size = self.window
        padding = -length % size
        real = torch.ones(x.shape[:2], dtype=torch.bool, device=x.device) if mask is None else mask
        query, key, value = (F.pad(t, (0, 0, 0, padding)) for t in self.qkv(x).chunk(3, 2))
        share = F.pad(self.project(x), (0, 0, 0, padding))
        real = F.pad(real, (0, padding))
        far_key, far_value = self._projected(share, real, key, value)
        left, right = (size, 0) if self.causal else (size // 2, size // 2)
        near = [
            F.pad(masked(_normed(t, self.near_norm), real), (0, 0, left, right)).unfold(1, left + size + right, size)
            for t in (key, value)
        ]  # (batch, segments, channels, keys)
        near_key, near_value = (t.unflatten(2, (self.heads, -1)) for t in near)
        query = query.unflatten(1, (-1, size)).unflatten(3, (self.heads, -1)).transpose(2, 3)
        allowed = F.pad(real, (left, right)).unfold(1, left + size + right, size)[:, :, None, None]
        index = torch.arange(left + size + right, device=x.device)
        position = torch.arange(size, device=x.device)[:, None] + left
        allowed = (index == position) | (allowed & ((index <= position) if self.causal else (index >= 0)))
        segments = query.shape[1]
        far = torch.ones(segments, 1, 1, self.rank, dtype=torch.bool, device=x.device)
        if self.causal:
            segment = torch.arange(segments, device=x.device)
            far = (segment < segment[:, None]).repeat_interleave(self.rank, 1)[:, None, None]
        allowed = torch.cat([allowed, far.expand(batch, -1, 1, size, -1)], 4)
        scale = 1 / math.sqrt(query.shape[4])
        near_scores = scale * (query @ near_key.to(query.dtype))
        if self.position == "alibi":
            slopes = alibi_slopes(self.heads).to(near_scores)[:, None, None]
            near_scores = near_scores - slopes * (index - position).abs().to(slopes.dtype)
        far_scores = scale * torch.einsum("bghid,bhdr->bghir", query, far_key.to(query.dtype))
        scores = torch.cat([near_scores, far_scores], 4).masked_fill(~allowed, float("-inf"))
        weights = scores.softmax(4).to(near_value.dtype)
        near_weights, far_weights = weights.split([near_value.shape[4], far_value.shape[3]], 4)
        y = near_weights @ near_value.mT
        y = y + torch.einsum("bghir,bhdr->bghid", far_weights, far_value.to(weights.dtype))
        return y.transpose(2, 3).flatten(3).flatten(1, 2)[:, :length].to(x.dtype)

    def _projected(self, share: Tensor, real: Tensor, key: Tensor, value: Tensor) -> tuple[Tensor, Tensor]:
        """Compute the keys and values of all segments, or of the whole text: ``(batch, heads, d, count)``."""
        segments = (-1, self.window) if self.causal else (1, -1)
        share, key, value, real = (t.unflatten(1, segments) for t in (share, key, value, real))
        share = share.masked_fill(~real[..., None], torch.finfo(share.dtype).min).softmax(2)
        share = share.unflatten(3, (self.heads, -1)).permute(0, 1, 3, 4, 2)

        def projected(t: Tensor) -> Tensor:
            # (batch, segments, heads, rank, d)
            t = share.to(t.dtype) @ t.unflatten(3, (self.heads, -1)).transpose(2, 3)
            t = _normed(t.transpose(2, 3).flatten(3), self.far_norm).flatten(1, 2)
            return t.unflatten(2, (self.heads, -1)).permute(0, 2, 3, 1)

        return projected(key), projected(value)


def _normed(t: Tensor, norm: nn.LayerNorm) -> Tensor:
    """Apply the norm, written out: the gradient of the fused one, if it comes transposed, has strides that compiled
    graphs do not expect (torch 2.13)."""
    centred = t - t.mean(-1, keepdim=True)
    scale = (centred.square().mean(-1, keepdim=True) + norm.eps).rsqrt()
    return centred * scale * norm.weight + norm.bias
