"""Sampling of the next tokens of a batch, with options per row."""

from __future__ import annotations

import math
import random
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from lagwise.ops.constants import moved


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
        A token of each row, -1 if its logits have NaN or are all -inf. On a GPU these are the only values read.
    """
    chosen = logits.argmax(dim=1)
    if any(rule.temperature > 0 for rule, _ in rules):
        wide = torch.float32 if logits.device.type == "mps" else torch.float64
        options = [(r.temperature, r.top_p, n.random() if r.temperature > 0 else 0.0) for r, n in rules]
        temperature, top_p, numbers = moved(torch.tensor(options, dtype=wide).t()[..., None], logits.device)
        scores, order = logits.to(wide).sort(dim=1, descending=True)
        # Subtract the largest score first: division by a temperature near 0 could overflow.
        probability = ((scores - scores[:, :1]) / temperature.where(temperature > 0, 1)).softmax(dim=1)
        before = probability.cumsum(dim=1) - probability
        total = probability.masked_fill(before >= top_p, 0).cumsum(dim=1)
        index = torch.searchsorted(total, numbers * total[:, -1:], right=True)
        # A number near 1 may be rounded up to the total.
        last = ((before < top_p).sum(dim=1, keepdim=True) - 1).clamp(min=0)  # no token qualifies if logits are NaN
        drawn = order.gather(1, torch.minimum(index, last))
        chosen = torch.where(temperature > 0, drawn, chosen[:, None]).squeeze(1)
    return chosen.masked_fill(~(logits.amax(dim=1) > -math.inf), -1).tolist()
