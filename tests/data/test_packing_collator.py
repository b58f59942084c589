"""The packing collator."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from lagwise.data import PackingCollator


def documents(*sizes: int) -> list[dict[str, Any]]:
    """Documents whose tokens encode the document and the position."""
    return [{"input_ids": [100 * n + i for i in range(size)]} for n, size in enumerate(sizes)]


def test_packed_batches() -> None:
    batch = PackingCollator(6)(documents(2, 4, 1, 3))
    assert {name: value.tolist() for name, value in batch.items()} == {
        "input_ids": [[100, 101, 102, 103, 0, 1], [300, 301, 302, 200, 0, 0]],
        "labels": [[-100, 101, 102, 103, -100, 1], [-100, 301, 302, -100, -100, -100]],
        "seq_idx": [[0, 0, 0, 0, 1, 1], [0, 0, 0, 1, -1, -1]],
        "attention_mask": [[1, 1, 1, 1, 1, 1], [1, 1, 1, 1, 0, 0]],
    }


@given(sizes=st.lists(st.integers(0, 9), min_size=1, max_size=40).filter(any), length=st.integers(9, 30))
def test_every_document_occurs_once_and_complete(sizes: list[int], length: int) -> None:
    batch = PackingCollator(length)(documents(*sizes))
    assert batch["input_ids"].shape[1] <= length
    seen = []
    for ids, numbers in zip(batch["input_ids"], batch["seq_idx"], strict=True):
        for number in range(int(numbers.max()) + 1):
            seen.append(ids[numbers == number].tolist())
    assert sorted(seen) == sorted(each["input_ids"] for each in documents(*sizes) if each["input_ids"])
    assert torch.equal(batch["attention_mask"], (batch["seq_idx"] >= 0).long())
    again = PackingCollator(length)(documents(*sizes))
    assert all(torch.equal(value, again[name]) for name, value in batch.items())


@pytest.mark.parametrize("kind", [list, np.array, torch.tensor])
def test_custom_labels_and_masks(kind: Any) -> None:
    example = {"input_ids": kind([9, 5, 6, 7]), "labels": kind([-100, -100, -100, 7])}
    padded = {**example, "attention_mask": kind([0, 1, 1, 1])}
    batch = PackingCollator(8)([padded, padded])
    assert batch["input_ids"].tolist() == [[5, 6, 7, 5, 6, 7]]
    assert batch["labels"].tolist() == [[-100, -100, 7, -100, -100, 7]]


@pytest.mark.parametrize(
    ("examples", "message"),
    [
        (documents(3, 9), "document 1 of the batch has 9 tokens, more than a row of 8; cut it"),
        (documents(0, 0), "none of the 2 documents of the batch has a token"),
        ([{"input_ids": [1, 2], "labels": [1]}], r"document 0 .* labels like it, got \(2,\) and \(1,\)"),
        ([{"input_ids": [[1, 2]]}], r"document 0 .* must have input_ids \(tokens,\)"),
    ],
)
def test_bad_documents_are_named(examples: list, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        PackingCollator(8)(examples)
