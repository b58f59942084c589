"""Attention by its formula, over all pairs of tokens."""

from __future__ import annotations

import math

import torch
from torch import Tensor


def chunked_attention_reference(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    *,
    chunk: int,
    causal: bool = True,
    function: str = "softmax",
    bias: Tensor | None = None,
    mask: Tensor | None = None,
    sliding: bool = False,
) -> Tensor:
    """`chunked_attention` over all pairs of the sequence with a mask for "in the same chunk".

    Arguments, formula and source as in `chunked_attention`. Memory is O(length^2).
    """
    length = query.shape[2]
    real = torch.ones(query.shape[0], length, dtype=torch.bool) if mask is None else mask.bool()
    start = torch.tensor([row.nonzero()[0].item() if row.any() else 0 for row in real])
    position = (torch.arange(length) - start[:, None]).clamp(min=0)
    i, j = position[:, :, None], position[:, None, :]
    allowed = (i // chunk - j // chunk >= 0) & (i // chunk - j // chunk <= sliding) & real[:, None, :]
    if causal:
        allowed = allowed & torch.ones(length, length, dtype=torch.bool).tril()
    scores = query @ key.transpose(2, 3)
    if bias is None:
        added: Tensor | int = 0
    elif sliding:
        widest = bias.shape[1] // 2
        added = bias[:, (i - j).clamp(-widest, widest) + widest].transpose(0, 1)
    else:
        added = bias[:, i % chunk, j % chunk].transpose(0, 1)
    if function == "softmax":
        seen = (allowed | torch.eye(length, dtype=torch.bool))[:, None]
        scores = scores / math.sqrt(query.shape[3]) + added
        return scores.masked_fill(~seen, float("-inf")).softmax(-1) @ value
    scores = scores / allowed.sum(-1).clamp(min=1)[:, None, :, None] + added
    if function == "laplace":
        weights = torch.special.ndtr((scores - 0.5**0.5) * (4 * math.pi) ** 0.5)  # a normal distribution's
    else:
        weights = torch.where(scores > 0, scores**2, 0)
    return torch.where(allowed[:, None], weights, 0) @ value


def attention_reference(
    query: Tensor, key: Tensor, value: Tensor, *, causal: bool = True, slopes: Tensor | None = None
) -> Tensor:
    """`attention` with an explicit softmax and without a mask.

    Formula, shapes and source as in `attention`.
    """
    length, total = query.shape[2], key.shape[2]
    position = torch.arange(total, device=query.device)
    lag = position[total - length :, None] - position[None, :]
    scores = query @ key.transpose(2, 3) / math.sqrt(query.shape[3])
    if slopes is not None:
        scores = scores - slopes.to(scores.dtype)[:, None, None] * lag.abs()
    if causal:
        scores = scores.masked_fill(lag < 0, float("-inf"))
    return scores.softmax(-1) @ value
