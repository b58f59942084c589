"""Logits of a classifier for encoded rows."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor

from lagwise.data import EncodedExamples
from lagwise.data.batches import by_length, like_lengths
from lagwise.progress import progress_bar
from lagwise.tasks.base import finite

if TYPE_CHECKING:
    import pyarrow as pa
    from datasets import Dataset as Rows

TOKENS_A_BATCH = 16384


@torch.inference_mode()
def row_logits(
    model: Any,
    rows: Rows | pa.Table,
    collate: Callable[[Sequence[Mapping[str, Any]]], Mapping[str, Tensor]],
    progress: bool,
    stride: int = 1,
) -> np.ndarray:
    """Logits ``(rows, labels)`` in the order of the rows, computed in batches of similar lengths. stride: positions of
    a row per step of the model."""
    ordered, order = by_length(rows)
    examples, lengths = EncodedExamples(ordered), (-(-np.asarray(ordered["length"][:]) // stride)).tolist()
    result = np.empty((len(order), model.config.num_labels), dtype=np.float32)
    with progress_bar(desc="predicting", total=len(order), unit="row", show=progress) as bar:
        for places in like_lengths(lengths, TOKENS_A_BATCH):
            batch = collate([{k: v for k, v in examples[i].items() if k != "label"} for i in places])
            logits = model(**{name: value.to(model.device) for name, value in batch.items()}).logits
            result[order[places.start : places.stop]] = logits.float().cpu().numpy()
            bar.update(len(places))
    return finite(result, "logits")
