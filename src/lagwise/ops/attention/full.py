"""Softmax attention with linear biases: the baseline for mixers that depend on lag."""

from __future__ import annotations

import math
from typing import cast

import torch
import torch.nn.functional as F
from torch import Tensor

from lagwise.ops.attention.chunked import attend_window
from lagwise.ops.constants import table_device
from lagwise.ops.operation import open_length, symbolic, traced

_QUERIES_AT_ONCE = 512
_FEATURES = 4  # parts of a position: 32 bits in bfloat16


def alibi_slopes(heads: int) -> Tensor:
    """Compute slopes m of ALiBi's penalty ``-m |i - j|``, one per head (Press et al. 2022; compare TNN eq. 6).

    Formula: ``2**(-8 k / heads)`` for k = 1..heads when heads is a power of two. Otherwise the slopes of the next lower
    power of two, followed by every second slope of the next higher one. In float64, for scores of any precision.
    ValueError if heads < 1.
    """
    if heads < 1:
        raise ValueError(f"heads must be at least 1, got {heads}")
    below = 2 ** math.floor(math.log2(heads))
    device = table_device()
    k = torch.arange(1, below + 1, dtype=torch.float64, device=device)
    odd = 2 * torch.arange(heads - below, dtype=torch.float64, device=device) + 1
    return torch.cat([-8 * k / below, -4 * odd / below]).exp2()


def attention(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    *,
    causal: bool = True,
    slopes: Tensor | None = None,
    mask: Tensor | None = None,
) -> Tensor:
    """Softmax attention in which the queries are the last tokens of the keys.

    Formula: ``softmax(q k^T / sqrt(d) - m |i - j|) v`` over real keys ``j`` (and ``j <= i`` when causal).

    Args:
        query: ``(batch, heads, length, d)``.
        key: ``(batch, heads, total, d)``, with total >= length.
        value: Like key.
        causal: Whether a query sees only tokens up to its own.
        slopes: m of each head ``(heads,)``; by default no penalty.
        mask: ``(batch, total)``, true where a key is real; by default all are.

    Returns:
        A tensor like query. Rows of padding hold finite numbers without meaning: a query always sees some token.

    Raises:
        ValueError: If there are more queries than keys.

    Beyond 512 queries the bias is computed in chunks. In training it needs O(length * total) memory, but on a CPU, for
    slopes, O(total). On a GPU, causal attention with slopes to a whole text is one fused kernel without a bias.

    Source: TNN eq. 1 and 6 (ALiBi); computed by torch's scaled_dot_product_attention.
    """
    length, total = query.shape[2], key.shape[2]
    if length > total:
        raise ValueError(f"there must be at least as many keys as queries, got {total} keys and {length} queries")
    # Kernels for GPUs need aligned rows, graphs no strides, and both no values of the mask.
    eager = query.device.type == "cpu" and not traced()
    if eager and length > 1 and mask is not None and mask.all():
        mask = None
    if causal and length == 1 and slopes is None and mask is None:
        return F.scaled_dot_product_attention(query, key, value)
    half = query.dtype in (torch.bfloat16, torch.float16)  # others have too few digits for it: see there
    fused = query.device.type == "cuda" and half and causal and mask is None and length == total
    if fused and slopes is not None and not symbolic(total):
        return _attention_by_features(query, key, value, slopes)
    step = length if open_length(length) else _QUERIES_AT_ONCE  # a loop would be compiled anew for every length
    if not eager or slopes is None or length == 1:
        index = torch.arange(total, device=query.device)

        def biases(start: int, end: int, seen: int) -> Tensor:
            m = cast("Tensor", slopes).to(query.device, torch.promote_types(query.dtype, torch.float32))
            return -m[:, None, None] * (index[start:end, None] - index[:seen]).abs().to(m.dtype)

        real = None if mask is None else mask[:, None, None].bool()
        added = None if slopes is None else biases
        return attend_window(query, key, value, causal, "softmax", added, real, step=step)
    size, width, parts = query.shape[3], value.shape[3], []
    if mask is not None:
        query, key, value = _without_padding(query, key, value, mask)
    for start in range(0, length, step):
        part, first = query[:, :, start : start + step], total - length + start
        seen = first + part.shape[2] if causal else total  # keys beyond the last query are never needed
        bias = _toeplitz_bias(part, first, seen, causal, slopes)
        keys, values = key[:, :, :seen], value[:, :, :seen]
        y = F.scaled_dot_product_attention(part.flip(2), keys, values, attn_mask=bias, scale=size**-0.5)
        parts.append(y.flip(2)[..., :width])
    return parts[0] if len(parts) == 1 else torch.cat(parts, dim=2)


def _attention_by_features(query: Tensor, key: Tensor, value: Tensor, slopes: Tensor) -> Tensor:
    """Causal `attention` with slopes and without a bias, so that fused kernels of GPUs apply, in O(length) memory.

    ``-m (i - j)`` is ``m j`` up to a number that is the same for all keys, which softmax leaves out. It is the product
    of further features: ones in queries, and in keys m times the position, in parts that half precision holds exactly.
    Kernels add them up in float32: scores are off by up to ``2**-24 m length``, more than float32's own rounding.
    """
    batch, heads, length, size = query.shape
    scale = size**-0.5
    m = slopes.to(query.device, torch.float32)[:, None] / scale
    position = (
        torch.arange(length, device=query.device, dtype=torch.float32) - length + 1
    )  # 0 for the last: small there
    rest, parts = m * position, []
    dropped = 16 if query.dtype == torch.bfloat16 else 13  # bits of float32 that half precision has not
    for _ in range(_FEATURES):
        # cut off, not rounded by a cast there and back, which compilers leave out
        part = (rest.view(torch.int32) & -(1 << dropped)).view(torch.float32)
        rest = rest - part
        parts.append(part.to(query.dtype))
    bias = torch.stack(parts, 2)[None].expand(batch, -1, -1, -1)
    width = -(-(size + _FEATURES) // 8) * 8  # what the kernels want
    query = torch.cat([query, query.new_ones(batch, heads, length, _FEATURES)], 3)
    key = torch.cat([key, bias], 3)
    query, key = (F.pad(t, (0, width - t.shape[3])) for t in (query, key))
    value, value_size = F.pad(value, (0, width - value.shape[3])), value.shape[3]
    return F.scaled_dot_product_attention(query, key, value, is_causal=True, scale=scale)[..., :value_size]


def _without_padding(query: Tensor, key: Tensor, value: Tensor, mask: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Queries, keys and values with one more feature, by which padding has a score that leaves it no weight: a bias
    of keys without a matrix of queries and keys. Zero in values, which torch's kernel wants as wide as keys."""
    lowest = torch.finfo(key.dtype).min / 2
    hidden = torch.zeros_like(mask, dtype=key.dtype).masked_fill(~mask.bool(), lowest)
    hidden = hidden[:, None, :, None].expand(*key.shape[:3], 1)
    return F.pad(query, (0, 1), value=1.0), torch.cat([key, hidden], dim=3), F.pad(value, (0, 1))


def _toeplitz_bias(query: Tensor, first: int, seen: int, causal: bool, slopes: Tensor) -> Tensor:
    """The bias ``(1, heads, queries, keys)`` for queries in reverse order, -inf where not allowed: a view of one row of
    numbers, which the next query reads from one number further on."""
    length, dtype = query.shape[2], torch.promote_types(query.dtype, torch.float32)
    lag = torch.arange(first + length - 1, first - seen, -1, device=query.device, dtype=dtype)
    row = -slopes.to(dtype).to(query.device)[:, None] * lag.abs()
    if causal:
        row = row.masked_fill(lag < 0, float("-inf"))
    row = row.to(query.dtype)
    return row.as_strided((1, len(slopes), length, seen), (0, row.shape[1], 1, 1))
