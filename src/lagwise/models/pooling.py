"""One vector for a whole sequence, of the hidden states of its tokens."""

from __future__ import annotations

import torch
from torch import Tensor

from lagwise.ops import document_starts


def pool(hidden: Tensor, pooling: str, *, mask: Tensor | None = None, seq_idx: Tensor | None = None) -> Tensor:
    """The mean over real tokens, or the first or last real token, of each row or of each document of packed rows.

    Shapes: hidden ``(batch, length, channels)``; mask ``(batch, length)``, true where a token is real; seq_idx
    ``(batch, length)``, document numbers of packed rows, negative at padding. Result ``(batch, channels)``, or for
    packed rows ``(documents, channels)``, row by row in the order in which they stand. Sums are in float32 or better.

    ValueError for a mask of another shape, and for a row without any token.
    """
    shape = tuple(hidden.shape[:2])
    if mask is not None and mask.shape != shape:
        raise ValueError(f"attention_mask must be (batch, length) = {shape}, got {tuple(mask.shape)}")
    if mask is None and seq_idx is None and not torch.compiler.is_compiling():
        if pooling == "mean":
            return hidden.mean(dim=1, dtype=torch.promote_types(hidden.dtype, torch.float32)).to(hidden.dtype)
        return hidden[:, 0] if pooling == "first" else hidden[:, -1]
    real = torch.ones(shape, dtype=torch.bool, device=hidden.device) if mask is None else mask.bool()
    if seq_idx is not None:
        document, count = _documents(seq_idx, real)
        real = document >= 0
    else:
        document = torch.arange(shape[0], device=hidden.device)[:, None].expand(shape).where(real, -1)
        count = shape[0]
    place = real.flatten().nonzero()[:, 0]
    owner = document.flatten()[place]
    tokens = torch.zeros(count, dtype=torch.long, device=hidden.device).index_add(0, owner, torch.ones_like(owner))
    if not tokens.all():
        raise ValueError("attention_mask leaves a row without any token; there is nothing to classify")
    states = hidden.flatten(0, 1).index_select(0, place)
    if pooling == "mean":
        states = states.to(torch.promote_types(hidden.dtype, torch.float32))
        total = states.new_zeros(count, states.shape[1]).index_add(0, owner, states)
        return (total / tokens[:, None]).to(hidden.dtype)
    ends = tokens.cumsum(0)
    return states.index_select(0, ends - (tokens if pooling == "first" else 1))


def _documents(seq_idx: Tensor, real: Tensor) -> tuple[Tensor, int]:
    """The number of each token's document in the batch, -1 at padding, and how many documents there are."""
    text = real & (seq_idx >= 0)
    starts = document_starts(seq_idx.where(text, -1)) & text
    number = starts.flatten().cumsum(0).view(seq_idx.shape) - 1
    return number.where(text, -1), int(starts.sum())
