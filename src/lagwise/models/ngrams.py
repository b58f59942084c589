"""Embeddings of the last few tokens together."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from lagwise.models.inputs import token_positions
from lagwise.ops import Layout
from lagwise.tables import whole_number

_PRIME, _MULTIPLIER = 2**31 - 1, 1_103_515_245  # products of two such numbers fit into 64 bits
LARGEST_SIZE = 16


class NgramEmbedding(nn.Module):
    """Vectors for the n-grams that end at a token, by hashing.

    Formula: token t gets the sum over the sizes n of ``E_n[h(x_t, ..., x_{t-n+1})]``, with a table E_n of ``buckets``
    rows for each size. h is a polynomial in the ids modulo a prime, modulo ``buckets``, so n-grams share a row by
    chance. Before the first token of a text or document, and at padding, an n-gram has "no token" in place of an id.

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
        super().__init__()
        if not sizes or len(set(sizes)) < len(sizes) or not all(2 <= n <= LARGEST_SIZE for n in sizes):
            raise ValueError(f"ngram_sizes must be different numbers from 2 to {LARGEST_SIZE}, got {sizes}")
        self.table = nn.Embedding(len(sizes) * whole_number("ngram_buckets", buckets), hidden_size)
        self.sizes, self.buckets, self.reach = sorted(sizes), buckets, max(sizes) - 1

    def forward(self, ids: Tensor, layout: Layout, earlier: Tensor | None) -> tuple[Tensor, Tensor]:
        batch, length = ids.shape
        tokens = ids + 1 if layout.mask is None else (ids + 1) * layout.mask
        tokens = torch.cat([self.no_tokens(batch, ids.device) if earlier is None else earlier, tokens], 1)
        position = None
        if layout.seq_idx is not None:
            position = token_positions(batch, length, None, None, layout.seq_idx, ids.device)
        number, rows = tokens[:, self.reach :], []
        for lag in range(1, self.reach + 1):
            token = tokens[:, self.reach - lag : self.reach - lag + length]
            if position is not None:
                token = token * (position >= lag)
            number = (number * _MULTIPLIER + token) % _PRIME
            if lag + 1 in self.sizes:
                rows.append(number % self.buckets + len(rows) * self.buckets)
        # As a copy, because a view would keep all tokens in memory as long as the cache.
        return self.table(torch.stack(rows, 2)).sum(2), tokens[:, length:].clone()

    def no_tokens(self, batch: int, device: torch.device) -> Tensor:
        """``earlier`` at the start of texts."""
        return torch.zeros(batch, self.reach, dtype=torch.long, device=device)
