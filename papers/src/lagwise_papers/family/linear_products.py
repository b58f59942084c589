"""Attention with weights that are products of features: linear in the length, with a state of constant size."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

from lagwise.ops.operation import symbolic

_CHUNK_TOKENS = 64


def linear_attention(
    query: Tensor, key: Tensor, value: Tensor, *, causal: bool = True, state: Tensor | None = None
) -> tuple[Tensor, Tensor]:
    """Compute sums of values weighted by products of queries and keys, not normalised; a value of ones gives the
    normaliser.

    Formula: ``y_i = q_i (S + sum_j k_jᵀ v_j)``, over ``j <= i`` when causal. The new state is ``S`` plus the sum over
    all tokens. Causal sums are taken in chunks: quadratic inside, by a running sum of ``kᵀ v`` across; at a length
    that an exported graph leaves open they are quadratic.

    Args:
        query: ``(batch, heads, length >= 1, d)``.
        key: Like query. A key of zeros, such as padding, adds nothing.
        value: ``(batch, heads, length, e)``.
        causal: Whether a query sees only tokens up to its own.
        state: S ``(batch, heads, d, e)``; zero by default.

    Returns:
        y like value, and the new state, in float32 or better.

    Source: Katharopoulos et al. 2020, "Transformers are RNNs"; chunks as in Hua et al. 2022 (FLASH).

    >>> ones, values = torch.ones(1, 1, 4, 1), torch.tensor([1.0, 2.0, 3.0, 4.0]).view(1, 1, 4, 1)
    >>> y, state = linear_attention(ones, ones, values)  # a running sum
    >>> y.flatten().tolist(), state.item()
    ([1.0, 3.0, 6.0, 10.0], 10.0)
    """
    dtype = torch.promote_types(query.dtype, torch.float32)
    query, key, value = (t.to(dtype) for t in (query, key, value))
    if state is None:
        state = value.new_zeros(*value.shape[:2], key.shape[3], value.shape[3])
    with torch.autocast(query.device.type, enabled=False):
        length = query.shape[2]
        if not causal or length == 1:
            state = state + key.mT @ value
            return query @ state, state
        if symbolic(length):  # a graph has no loops: all pairs
            return (query @ key.mT).tril() @ value + query @ state, state + key.mT @ value
        size = min(_CHUNK_TOKENS, length)
        chunks = -(-length // size)
        query, key, value = (
            F.pad(t, (0, 0, 0, chunks * size - length)).unflatten(2, (chunks, size)) for t in (query, key, value)
        )
        added = key.mT @ value
        after = state[:, :, None] + added.cumsum(2)
        before = torch.cat([state[:, :, None], after[:, :, :-1]], 2)
        y = (query @ key.mT).tril() @ value + query @ before
        return y.flatten(2, 3)[:, :, :length], after[:, :, -1].clone()  # a view would keep all chunks in memory
