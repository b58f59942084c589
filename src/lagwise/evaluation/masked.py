"""The perplexity and accuracy of a masked language model on a token file.

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

from lagwise.evaluation.perplexity import finite, windows


@dataclass(frozen=True)
class MaskedScore:
    """Score of a model on hidden tokens.

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
    device = next(model.parameters()).device
    nats, correct, masked = 0.0, 0, 0
    for ids, targets, numbers in windows(model, length, hidden, labels, documents, progress=progress):
        several = bool((numbers != numbers[:, :1]).any())
        chosen = targets != -100
        out = model(
            input_ids=ids.to(device), seq_idx=numbers.to(device) if several else None, labels=targets.to(device)
        )
        logits = out.logits if out.logits.dim() == 2 else out.logits[chosen.to(device)]
        wanted = targets[chosen].to(device)
        nats += F.cross_entropy(logits.float(), wanted, reduction="sum").item()
        correct += int((logits.argmax(-1) == wanted).sum())
        masked += len(wanted)
    return MaskedScore(length, masked, finite(nats, length), correct)
