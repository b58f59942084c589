"""Perplexity and accuracy of a masked language model on a token file.

The same tokens are hidden by the same replacements at every length: lengths differ only in the context of the hidden
tokens. The stream is cut into windows of ``length`` that do not overlap; the last is shorter.
"""

from __future__ import annotations

import math
from dataclasses import asdict, dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from lagwise.progress import progress_bar

_TOKENS_A_BATCH = 16384


@dataclass(frozen=True)
class MaskedScore:
    """How well a model predicts hidden tokens.

    Attributes:
        length: largest number of tokens in a window.
        masked: hidden tokens.
        nats: their total.
        correct: hidden tokens predicted correctly.
    """

    length: int
    masked: int
    nats: float
    correct: int

    @property
    def loss(self) -> float:
        return self.nats / self.masked

    @property
    def perplexity(self) -> float:
        """exp(loss) per hidden token."""
        return math.exp(self.loss)

    @property
    def accuracy(self) -> float:
        """Share of hidden tokens to which the model gave the highest probability."""
        return self.correct / self.masked

    def to_dict(self) -> dict[str, Any]:
        figures = {"loss": self.loss, "perplexity": self.perplexity, "accuracy": self.accuracy}
        return {**asdict(self), **figures}


@torch.inference_mode()
def masked_score(
    model: Any, hidden: Tensor, labels: Tensor, documents: Tensor, length: int, *, progress: bool = False
) -> MaskedScore:
    """Score a `LagwiseForMaskedLM` on a stream of tokens in windows of ``length``.

    Args:
        model: In evaluation mode.
        hidden: ``(n,)``, the tokens with some hidden.
        labels: ``(n,)``, the tokens that were hidden, otherwise -100.
        documents: ``(n,)``, the document of each token.
        length: Tokens per window.
        progress: Whether to show a progress bar.

    Raises:
        ValueError: If no token is hidden or the length is over the model's limit.
        FloatingPointError: If the model gives NaN.
    """
    if not (labels != -100).any():
        raise ValueError(f"none of the {len(hidden)} tokens is hidden; evaluate on more text")
    limit = model.length_limit
    if limit is not None and min(length, len(hidden)) > limit:
        raise ValueError(f"length {length} is over the model's limit of {limit} tokens")
    model.eval()
    device = next(model.parameters()).device
    whole = len(hidden) // length * length
    rows = max(1, _TOKENS_A_BATCH // length)
    batches = list(zip(*(x[:whole].view(-1, length).split(rows) for x in (hidden, labels, documents)), strict=True))
    batches = batches if whole else []
    if whole < len(hidden):
        batches.append((hidden[None, whole:], labels[None, whole:], documents[None, whole:]))
    nats, correct, masked = 0.0, 0, 0
    bar = progress_bar(desc=f"evaluating at {length}", total=len(hidden), unit="token", unit_scale=True, show=progress)
    with bar:
        for ids, targets, numbers in batches:
            several = bool((numbers != numbers[:, :1]).any())
            chosen = targets != -100
            out = model(
                input_ids=ids.to(device),
                seq_idx=numbers.to(device) if several else None,
                labels=targets.to(device),
            )
            logits = out.logits if out.logits.dim() == 2 else out.logits[chosen.to(device)]
            wanted = targets[chosen].to(device)
            nats += F.cross_entropy(logits.float(), wanted, reduction="sum").item()
            correct += int((logits.argmax(-1) == wanted).sum())
            masked += len(wanted)
            bar.update(ids.numel())
    if not math.isfinite(nats):
        raise FloatingPointError(f"the model's loss at length {length} is {nats}; its weights may be damaged")
    return MaskedScore(length, masked, nats, correct)
