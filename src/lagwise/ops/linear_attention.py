"""Attention whose weights are products of features: linear in the length, with a state of constant size."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

from lagwise.ops.symbolic import symbolic

_CHUNK = 64


def linear_attention(
    query: Tensor, key: Tensor, value: Tensor, *, causal: bool = True, state: Tensor | None = None
) -> tuple[Tensor, Tensor]:
    """Sums of values weighted by products of queries and keys, without a norm; a value of ones gives that.

    Formula: ``y_i = q_i (S + sum_j k_jᵀ v_j)``, over ``j <= i`` when causal; the new state is ``S`` plus the sum over
    all tokens. Causal sums are taken in chunks: quadratic inside, by a running sum of ``kᵀ v`` across; at a length that
    an exported graph leaves open they are quadratic.

    Shapes: query and key ``(batch, heads, length >= 1, d)``; value ``(batch, heads, length, e)``; state ``(batch,
    heads, d, e)``, zero by default. Result like value, and like state, in float32 or better. A key of zeros, such as
    one of padding, adds nothing.

    Source: Katharopoulos et al. 2020, "Transformers are RNNs"; the chunks are Hua et al. 2022's (FLASH).
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
        size = min(_CHUNK, length)
        chunks = -(-length // size)
        query, key, value = (
            F.pad(t, (0, 0, 0, chunks * size - length)).unflatten(2, (chunks, size)) for t in (query, key, value)
        )
        added = key.mT @ value
        after = state[:, :, None] + added.cumsum(2)
        before = torch.cat([state[:, :, None], after[:, :, :-1]], 2)
        y = (query @ key.mT).tril() @ value + query @ before
        return y.flatten(2, 3)[:, :, :length], after[:, :, -1].clone()  # a view would hold all chunks
