"""Sampling of the next tokens of a batch, with options per row."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor


@dataclass(frozen=True)
class Sampling:
    """Options of sampling and stopping.

    Args:
        max_tokens: Maximum number of tokens to add; by default as many as the server and the model allow.
        temperature: Sampling temperature; 0 is greedy.
        top_p: Sample from the most likely tokens whose probabilities sum to at least this.
        seed: Seed for reproducible texts.
        stop: Texts before which the output ends.
        logprobs: Number of most likely tokens whose logarithmic probabilities, beside those of the chosen tokens, the
            answer has; by default it has none.
    """

    max_tokens: int | None = None
    temperature: float = 1.0
    top_p: float = 1.0
    seed: int | None = None
    stop: tuple[str, ...] = ()
    logprobs: int | None = None


def draw(logits: Tensor, rules: Sequence[tuple[Sampling, random.Random]]) -> list[int]:
    """Choose one token per row: the most likely one, or a sample by temperature and ``top_p``.

    Args:
        logits: ``(rows, vocab_size)``.
        rules: Options and random number generator of each row.

    Returns:
        A token of each row, any if its logits are NaN.
    """
    chosen = logits.argmax(dim=1)
    rows = [row for row, (rule, _) in enumerate(rules) if rule.temperature > 0]
    if rows:
        picked = [rules[row] for row in rows]
        column = {"dtype": torch.float64, "device": logits.device}
        temperature = torch.tensor([[rule.temperature] for rule, _ in picked], **column)
        top_p = torch.tensor([[rule.top_p] for rule, _ in picked], **column)
        numbers = torch.tensor([[source.random()] for _, source in picked], **column)
        scores, order = logits[rows].double().sort(dim=1, descending=True)
        # Subtract the largest score first: division by a temperature near 0 could overflow.
        probability = ((scores - scores[:, :1]) / temperature).softmax(dim=1)
        before = probability.cumsum(dim=1) - probability
        total = probability.masked_fill(before >= top_p, 0).cumsum(dim=1)
        place = torch.searchsorted(total, numbers * total[:, -1:], right=True)
        # A number near 1 may be rounded up to the total.
        last = ((before < top_p).sum(dim=1, keepdim=True) - 1).clamp(min=0)  # none is, where logits are NaN
        chosen[rows] = order.gather(1, torch.minimum(place, last)).squeeze(1)
    return chosen.tolist()
