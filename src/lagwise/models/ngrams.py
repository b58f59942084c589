"""Embeddings of the last few tokens together."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from lagwise.models.inputs import token_positions
from lagwise.ops import Layout
from lagwise.tables import whole_number

_PRIME, _MULTIPLIER = 2**31 - 1, 1_103_515_245  # products of two such numbers fit into 64 bits
LARGEST_SIZE = 16


class NgramEmbedding(nn.Embedding):
    """Vectors for the n-grams that end at a token, by hashing.

    Formula: token t gets the sum over the sizes n of ``E_n[h(x_t, ..., x_{t-n+1})]``, with a table E_n of ``buckets``
    rows for each size. h is a polynomial in the ids modulo a prime, modulo ``buckets``, so n-grams share a row by
    chance. There are none across the boundary of a document; its first tokens and those after padding have n-grams with
    "no token" in the missing places.

    Shapes: ids ``(batch, length)``; result ``(batch, length, channels)``. What comes before ids is described by
    ``earlier``, ``(batch, largest size - 1)``: ids + 1, and 0 for no token; None at the start of texts. The second
    result is the same for tokens that follow.

    Args:
        hidden_size: Channels.
        sizes: Sizes of n-grams, from 2 to 16.
        buckets: Rows of each table.

    Raises:
        ValueError: For no sizes, a repeated one or one out of range, and for no buckets.

    Source: Pagnoni et al. 2024 (Byte Latent Transformer), §3.2.1; there sizes are 3 to 8, and the sum is divided by
    their number.
    """

    def __init__(self, hidden_size: int, *, sizes: list[int], buckets: int):
        if not sizes or len(set(sizes)) < len(sizes) or not all(2 <= n <= LARGEST_SIZE for n in sizes):
            raise ValueError(f"ngram_sizes must be different numbers from 2 to {LARGEST_SIZE}, got {sizes}")
        super().__init__(len(sizes) * whole_number("ngram_buckets", buckets), hidden_size)
        self.sizes, self.buckets, self.reach = sorted(sizes), buckets, max(sizes) - 1

    def forward(self, ids: Tensor, layout: Layout, earlier: Tensor | None) -> tuple[Tensor, Tensor]:  # type: ignore[override]
        batch, length = ids.shape
        tokens = ids + 1 if layout.mask is None else (ids + 1) * layout.mask
        tokens = torch.cat([self.nothing(batch) if earlier is None else earlier, tokens], 1)
        place = None
        if layout.seq_idx is not None:
            place = token_positions(batch, length, None, None, layout.seq_idx, ids.device)
        key, keys = tokens[:, self.reach :], []
        for lag in range(1, self.reach + 1):
            token = tokens[:, self.reach - lag : self.reach - lag + length]
            key = (key * _MULTIPLIER + (token if place is None else token * (place >= lag))) % _PRIME
            if lag + 1 in self.sizes:
                keys.append(key % self.buckets + len(keys) * self.buckets)
        return super().forward(torch.stack(keys, 2)).sum(2), tokens[:, length:].clone()

    def nothing(self, batch: int) -> Tensor:
        """``earlier`` at the start of texts."""
        return torch.zeros(batch, self.reach, dtype=torch.long, device=self.weight.device)
