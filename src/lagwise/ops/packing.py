"""Packed rows: several documents in one row of a batch, mixed as if each stood alone."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor


def per_document(
    mix: Callable[[Tensor, Tensor], Tensor], x: Tensor, seq_idx: Tensor, mask: Tensor | None = None
) -> Tensor:
    """Apply a mixer to every document of a packed batch separately.

    Formula: cut each row where ``seq_idx`` changes, pad documents of like length to the longest of them, mix each such
    batch, and put the outputs back in place. Documents of padding alone give zeros.

    Shapes: x ``(batch, length, channels)``; seq_idx ``(batch, length)`` of integers, constant over a document; mask
    ``(batch, length)``, true where a token is real; ``mix(padded, padded_mask)`` keeps shapes. Result like x.

    Preconditions: ValueError if seq_idx or mask is not ``(batch, length)``.
    """
    for name, value in (("seq_idx", seq_idx), ("mask", mask)):
        if value is not None and value.shape != x.shape[:2]:
            raise ValueError(f"{name} must be (batch, length) = {tuple(x.shape[:2])}, got {tuple(value.shape)}")
    batch, length, channels = x.shape
    starts = document_starts(seq_idx)
    document = starts.flatten().cumsum(0) - 1
    first = starts.flatten().nonzero().flatten()
    position = torch.arange(batch * length, device=x.device) - first[document]
    lengths = torch.diff(first, append=first.new_tensor([batch * length]))
    real = torch.ones_like(document, dtype=torch.bool) if mask is None else mask.flatten().bool()
    flat, result = x.reshape(-1, channels), torch.zeros_like(x).reshape(-1, channels)
    # Documents of like length go together: padding at most doubles a row of one long document and many short ones.
    buckets = torch.ceil(torch.log2(lengths.double())).long()
    if mask is not None:  # what is padding alone is not mixed at all
        buckets = torch.where(torch.zeros_like(lengths).index_add(0, document, real.long()) > 0, buckets, -1)
    for bucket in buckets[buckets >= 0].unique().tolist():
        chosen = buckets == bucket
        tokens = chosen[document]
        row = (chosen.cumsum(0) - 1)[document[tokens]]
        place = (row, position[tokens])
        shape = (int(chosen.sum()), int(lengths[chosen].max()))
        padded = x.new_zeros((*shape, channels)).index_put(place, flat[tokens])
        padded_mask = torch.zeros(shape, dtype=torch.bool, device=x.device).index_put(place, real[tokens])
        result = result.index_put((tokens,), mix(padded, padded_mask)[place].to(result.dtype))
    return result.view(x.shape)


def document_starts(seq_idx: Tensor) -> Tensor:
    """Where a packed row begins a document: true at its first token and wherever seq_idx changes.

    Shapes: seq_idx ``(batch, length)`` of integers; result the same, boolean.
    """
    starts = torch.ones_like(seq_idx, dtype=torch.bool)
    starts[:, 1:] = seq_idx[:, 1:] != seq_idx[:, :-1]
    return starts


def seq_idx_from_cu_seqlens(cu_seqlens: Tensor, length: int) -> Tensor:
    """Document numbers of one packed row from cumulative lengths.

    Shapes: cu_seqlens ``(documents + 1,)``, from 0 to at most length; result ``(1, length)``, tokens beyond the last
    boundary being a document of their own. ValueError unless cu_seqlens starts at 0, grows, and ends within length.
    """
    steps = cu_seqlens.diff()
    if cu_seqlens.dim() != 1 or cu_seqlens[0] != 0 or (steps <= 0).any() or cu_seqlens[-1] > length:
        raise ValueError(f"cu_seqlens must grow from 0 to at most {length}, got {cu_seqlens.tolist()}")
    position = torch.arange(length, device=cu_seqlens.device)
    return torch.searchsorted(cu_seqlens, position, right=True)[None] - 1
