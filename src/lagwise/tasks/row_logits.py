"""What a classifier says of encoded rows."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, cast

import numpy as np
import torch
from torch import Tensor

from lagwise.data import EncodedExamples
from lagwise.progress import progress_bar
from lagwise.tasks.base import finite

if TYPE_CHECKING:
    from datasets import Dataset as Rows

_TOKENS_A_BATCH = 16384


@torch.inference_mode()
def row_logits(
    model: Any, rows: Rows, collate: Callable[[Sequence[Mapping[str, Any]]], Mapping[str, Tensor]], progress: bool
) -> np.ndarray:
    """Logits ``(rows, labels)`` in the order of the rows, computed in batches of like lengths."""
    ordered, order = by_length(rows)
    examples, lengths = EncodedExamples(ordered), ordered["length"][:]
    result = np.empty((len(order), model.config.num_labels), dtype=np.float32)
    start = 0
    with progress_bar(desc="predicting", total=len(order), unit="row", show=progress) as bar:
        while start < len(order):
            count = 1  # the longest row of a batch is its last: as many as keep it within the limit
            while start + count < len(order) and (count + 1) * lengths[start + count] <= _TOKENS_A_BATCH:
                count += 1
            batch = collate([_unlabelled(examples[i]) for i in range(start, start + count)])
            logits = model(**{name: value.to(model.device) for name, value in batch.items()}).logits
            result[order[start : start + count]] = logits.float().cpu().numpy()
            start += count
            bar.update(count)
    return finite(result, "logits")


def by_length(rows: Rows) -> tuple[Rows, np.ndarray]:
    """Rows from the shortest to the longest, and where each was."""
    order = np.argsort(np.asarray(rows["length"][:]), kind="stable")
    return cast("Rows", rows.select(order)), order


def _unlabelled(example: Mapping[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in example.items() if name != "label"}
