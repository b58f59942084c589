"""Accuracy of associative recall: the share of sequences whose answer the model predicts."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

import torch
from torch.utils.data import DataLoader

from lagwise.data import AssociativeRecall
from lagwise.progress import progress_bar

_TOKENS_A_BATCH = 16384


@dataclass(frozen=True)
class Recall:
    """How often a model recalls the answer.

    Attributes:
        length: tokens of a sequence, its answer included.
        sequences: number evaluated.
        correct: number answered correctly.
    """

    length: int
    sequences: int
    correct: int

    @property
    def accuracy(self) -> float:
        return self.correct / self.sequences

    def to_dict(self) -> dict[str, Any]:
        return {**asdict(self), "accuracy": self.accuracy}


@torch.inference_mode()
def recall(model: Any, task: AssociativeRecall, length: int, count: int, *, progress: bool = False) -> Recall:
    """Ask a causal language model for the answers of ``count`` test sequences (TCNCA table 3).

    The model sees the ``length - 1`` tokens before the answer; its prediction is the likeliest token of the whole
    vocabulary. ValueError if the task has no sequences of this length; FloatingPointError if the model gives NaN.
    """
    model.eval()
    device = next(model.parameters()).device
    correct = 0
    batches = DataLoader(task.test_examples(length, count), batch_size=max(1, _TOKENS_A_BATCH // length))
    with progress_bar(desc=f"evaluating at {length}", total=count, unit="sequence", show=progress) as bar:
        for batch in batches:
            ids = batch["input_ids"].to(device)
            logits = model(input_ids=ids[:, :-1], use_cache=False, logits_to_keep=1).logits[:, -1]
            if not logits.isfinite().all():
                raise FloatingPointError(f"the model's logits at length {length} have NaN; its weights may be damaged")
            correct += int((logits.argmax(dim=-1) == ids[:, -1]).sum())
            bar.update(len(ids))
    return Recall(length, count, correct)
