"""Losses that the Trainer of transformers computes itself, from logits or with its own count of labels."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor
from transformers import DataCollatorWithFlattening, Trainer, TrainingArguments

from lagwise.models import (
    LagwiseConfig,
    LagwiseForCausalLM,
    LagwiseForImageClassification,
    LagwiseForMaskedLM,
    LagwiseForSequenceClassification,
    LagwiseForTokenClassification,
)

pytestmark = pytest.mark.cpu  # they are the Trainer's with use_cpu=True
SMOOTHING = 0.2
SIZES: dict[str, Any] = {"hidden_size": 8, "num_hidden_layers": 1, "vocab_size": 20}


def trainer(model: Any, folder: Path, **options: Any) -> Trainer:
    arguments = TrainingArguments(str(folder), use_cpu=True, report_to=[], **options)
    return Trainer(model, arguments, train_dataset=[{"input_ids": [1], "labels": [1]}])


def heads() -> list[tuple[Any, dict[str, Tensor], Tensor]]:
    """Models, batches, and for every row of logits the target that the labels mean, -100 for none."""
    torch.manual_seed(0)
    ids, classes = torch.randint(0, 20, (3, 12)), torch.tensor([2, 0, 1])
    some = torch.where(torch.rand(3, 12) < 0.3, ids, -100)
    encoder = LagwiseConfig(**SIZES, causal=False, num_labels=3)
    patches: Any = {"name": "patches", "channels": 1, "size": 2}
    mixer = {"name": "prenorm", "token_mixer": {"name": "gtu2d"}}
    images = LagwiseConfig(**SIZES, causal=False, num_labels=3, inputs=patches, block=mixer)
    masked, sparse = (LagwiseConfig(**SIZES, causal=False, sparse_prediction=each) for each in (False, True))
    pixels = torch.randn(3, 1, 4, 4)
    following = F.pad(ids, (0, 1), value=-100)[:, 1:]
    return [
        (LagwiseForCausalLM(LagwiseConfig(**SIZES)), {"input_ids": ids, "labels": ids}, following),
        (LagwiseForMaskedLM(masked), {"input_ids": ids, "labels": some}, some),
        (LagwiseForMaskedLM(sparse), {"input_ids": ids, "labels": some}, some),
        (LagwiseForTokenClassification(encoder), {"input_ids": ids, "labels": ids % 3}, ids % 3),
        (LagwiseForSequenceClassification(encoder), {"input_ids": ids, "labels": classes}, classes),
        (LagwiseForImageClassification(images), {"pixel_values": pixels, "labels": classes}, classes),
    ]


@pytest.mark.parametrize("number", range(6))
def test_smoothed_labels(number: int, tmp_path: Path) -> None:
    model, batch, targets = heads()[number]
    owner = trainer(model.eval(), tmp_path, label_smoothing_factor=SMOOTHING)
    inputs = {name: value for name, value in batch.items() if name != "labels"}
    expected = F.cross_entropy(model(**inputs).logits.flatten(0, -2), targets.flatten(), label_smoothing=SMOOTHING)
    torch.testing.assert_close(owner.compute_loss(model, dict(batch)), expected)
    if type(model).__name__ in ("LagwiseForCausalLM", "LagwiseForMaskedLM"):  # others average over rows
        counted = owner._get_num_items_in_batch([batch], torch.device("cpu"))
        if "_loss_shifts_labels" not in vars(owner):  # before 5.12, transformers counts first tokens too
            counted = (targets != -100).sum()
        assert counted == (targets != -100).sum()
        torch.testing.assert_close(owner.compute_loss(model, dict(batch), num_items_in_batch=counted), expected)


def test_smoothed_labels_of_packed_rows(tmp_path: Path) -> None:
    """They are those of the documents alone, if a collator removed the first label of each; a warning says that it must
    have been."""
    torch.manual_seed(0)
    model = LagwiseForCausalLM(LagwiseConfig(**SIZES))
    owner = trainer(model, tmp_path, label_smoothing_factor=SMOOTHING)
    documents = [torch.randint(0, 20, (size,)) for size in (2, 9, 5)]
    alone = [
        F.cross_entropy(model(d[None]).logits[0, :-1], d[1:], label_smoothing=SMOOTHING, reduction="sum")
        for d in documents
    ]
    batch = DataCollatorWithFlattening()([{"input_ids": d} for d in documents])
    with pytest.warns(UserWarning, match=r"label_smoothing_factor.*must leave out the first token of every document"):
        loss = owner.compute_loss(model, dict(batch))
    torch.testing.assert_close(loss, sum(alone) / sum(len(d) - 1 for d in documents))


def test_labels_counted_over_several_batches() -> None:
    """The Trainer's number is of all micro-batches of a step, so that each has a share of their mean loss."""
    torch.manual_seed(0)
    model = LagwiseForCausalLM(LagwiseConfig(**SIZES))
    documents = [{"input_ids": torch.randint(0, 20, (size,))} for size in (2, 9, 5, 3, 3, 7)]
    collate = DataCollatorWithFlattening()
    whole, parts = collate(documents), [collate(documents[:1]), collate(documents[1:])]
    counted = sum((part["labels"] != -100).sum() for part in parts)
    shares = sum(model(**part, num_items_in_batch=counted).loss for part in parts)
    torch.testing.assert_close(shares, model(**whole).loss)


def test_labels_that_are_not_predicted_but_were_counted() -> None:
    model, ids = LagwiseForCausalLM(LagwiseConfig(**SIZES)), torch.arange(12)[None]
    seq_idx = ids // 4
    for counted in (22, torch.tensor(22)):
        with pytest.raises(ValueError, match=r"num_items_in_batch is 22, and these rows have 11 labels.*Flattening"):
            model(ids, labels=ids, seq_idx=seq_idx, num_items_in_batch=counted)
