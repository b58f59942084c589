"""One vector for a whole sequence, from the hidden states of its tokens."""

from __future__ import annotations

import torch
from torch import Tensor

from lagwise.models.configuration import PAIRS, SINGLE, LagwiseConfig
from lagwise.ops.packing import document_starts, row_extents
from lagwise.tables import known


def pool(hidden: Tensor, pooling: str, *, mask: Tensor | None = None, seq_idx: Tensor | None = None) -> Tensor:
    """The mean over real tokens, or the first or last real token or both, of each row or of each document of packed
    rows.

    Args:
        hidden: ``(batch, length, channels)``.
        pooling: ``mean``, ``first``, ``last``, or ``ends`` for the first and the last, concatenated.
        mask: ``(batch, length)``, true where a token is real.
        seq_idx: ``(batch, length)``, document numbers of packed rows, negative at padding.

    Returns:
        ``(batch, channels)``, or for packed rows ``(documents, channels)``, row by row in order; twice as many channels
        for ``ends``. Sums are in float32 or better.

    Raises:
        ValueError: For another pooling, a mask of another shape, and a row without any token.
    """
    known(pooling, SINGLE, "pooling of single texts")
    if pooling == "ends":
        return torch.cat([pool(hidden, end, mask=mask, seq_idx=seq_idx) for end in ("first", "last")], dim=-1)
    shape = tuple(hidden.shape[:2])
    if mask is not None and mask.shape != shape:
        raise ValueError(f"attention_mask must be (batch, length) = {shape}, got {tuple(mask.shape)}")
    real = torch.ones(shape, dtype=torch.bool, device=hidden.device) if mask is None else mask.bool()
    if seq_idx is not None:
        return _pool_documents(hidden, pooling, seq_idx, real & (seq_idx >= 0))
    if mask is not None and not torch.compiler.is_compiling() and not real.any(dim=1).all():
        raise ValueError("attention_mask leaves a row without any token; there is nothing to classify")
    if pooling == "mean":
        total = hidden.masked_fill(~real[..., None], 0).sum(dim=1, dtype=_wide(hidden))
        return (total / real.sum(dim=1, keepdim=True)).to(hidden.dtype)
    first, lengths = row_extents(real)
    index = first if pooling == "first" else first + lengths - 1
    return hidden[torch.arange(shape[0], device=hidden.device), index]


def pool_pairs(hidden: Tensor, pooling: str, *, mask: Tensor | None = None, seq_idx: Tensor) -> Tensor:
    """Features of two texts in one row, from the means u and v of their hidden states.

    Formula: ``[u, v, |u - v|, u * v]`` for the pooling ``pair`` (sentence-BERT and other encoders of sentences), and
    ``[u, v, u * v, u - v]`` for ``signed_pair`` (the "NLI" interaction of Long Range Arena's retrieval).

    Shapes as in `pool`; seq_idx is 0 at the first text and 1 at the second. Result ``(batch, 4 * channels)``.

    ValueError for a row that lacks one of the texts.
    """
    real = torch.ones_like(seq_idx, dtype=torch.bool) if mask is None else mask.bool()
    texts = []
    for number in (0, 1):
        own = real & (seq_idx == number)
        if not torch.compiler.is_compiling() and not own.any(dim=1).all():
            raise ValueError(f"pooling {pooling!r} needs two texts in every row; one has no token of type {number}")
        texts.append(pool(hidden, "mean", mask=own))
    u, v = texts
    joined = [(u - v).abs(), u * v] if pooling == "pair" else [u * v, u - v]
    return torch.cat([u, v, *joined], dim=-1)


def pooled_size(config: LagwiseConfig) -> int:
    """The number of pooled features of a sequence, or of a pair."""
    return config.hidden_size * (4 if config.pooling in PAIRS else 2 if config.pooling == "ends" else 1)


def _pool_documents(hidden: Tensor, pooling: str, seq_idx: Tensor, text: Tensor) -> Tensor:
    """`pool` for packed rows. text: where a token belongs to a document."""
    starts = document_starts(seq_idx.where(text, -1)) & text
    document = starts.flatten().cumsum(0) - 1
    index = text.flatten().nonzero()[:, 0]
    owner, states = document[index], hidden.flatten(0, 1).index_select(0, index)
    count = int(starts.sum())
    tokens = torch.zeros(count, dtype=torch.long, device=hidden.device).index_add(0, owner, torch.ones_like(owner))
    if pooling == "mean":
        total = states.new_zeros((count, states.shape[1]), dtype=_wide(hidden)).index_add(
            0, owner, states.to(_wide(hidden))
        )
        return (total / tokens[:, None]).to(hidden.dtype)
    return states.index_select(0, tokens.cumsum(0) - (tokens if pooling == "first" else 1))


def _wide(hidden: Tensor) -> torch.dtype:
    return torch.promote_types(hidden.dtype, torch.float32)
