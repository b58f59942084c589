"""The next token of every row of a batch, each row by its own rule."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor


@dataclass(frozen=True)
class Sampling:
    """How a text is continued, and where it ends.

    max_tokens: most tokens to add; None: as many as the server and the model allow. temperature: 0 is greedy. top_p:
    the total probability of the likeliest tokens that are drawn from. seed: for the same text again. stop: the text
    ends before the first of these.
    """

    max_tokens: int | None = None
    temperature: float = 1.0
    top_p: float = 1.0
    seed: int | None = None
    stop: tuple[str, ...] = ()


def draw(logits: Tensor, rules: Sequence[tuple[Sampling, random.Random]]) -> list[int]:
    """One token for every row of ``logits`` ``(rows, vocab_size)``: the largest, or drawn from the likeliest tokens
    whose probabilities at the row's temperature add up to its ``top_p`` or more, with the row's own random numbers."""
    chosen = logits.argmax(dim=1)
    rows = [row for row, (rule, _) in enumerate(rules) if rule.temperature > 0]
    if rows:
        picked = [rules[row] for row in rows]
        column = {"dtype": torch.float64, "device": logits.device}
        temperature = torch.tensor([[rule.temperature] for rule, _ in picked], **column)
        top_p = torch.tensor([[rule.top_p] for rule, _ in picked], **column)
        numbers = torch.tensor([[source.random()] for _, source in picked], **column)
        scores, order = logits[rows].double().sort(dim=1, descending=True)
        # The largest score is subtracted first: a temperature next to 0 would make it infinite.
        probability = ((scores - scores[:, :1]) / temperature).softmax(dim=1)
        before = probability.cumsum(dim=1) - probability
        total = probability.masked_fill(before >= top_p, 0).cumsum(dim=1)
        place = torch.searchsorted(total, numbers * total[:, -1:], right=True)
        # A number next to 1 may be rounded up to the total.
        last = (before < top_p).sum(dim=1, keepdim=True) - 1
        chosen[rows] = order.gather(1, torch.minimum(place, last)).squeeze(1)
    return chosen.tolist()
