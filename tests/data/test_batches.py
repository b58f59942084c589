"""Length buckets and the padding collator."""

from __future__ import annotations

from typing import Any

import datasets
import numpy as np
import pytest
import torch

from lagwise.data import BucketedExamples, PaddingCollator
from lagwise.data.batches import length_step


def rows(count: int, seed: int = 0) -> datasets.Dataset:
    """Rows that are identified by their label and first token."""
    lengths = np.random.default_rng(seed).integers(1, 100, count).tolist()
    ids = [[i] * size for i, size in enumerate(lengths)]
    return datasets.Dataset.from_dict({"input_ids": ids, "label": list(range(count)), "length": lengths})


def labels(examples: Any, indices: Any) -> list[int]:
    return [int(examples[i]["label"]) for i in indices]


class TestBuckets:
    def test_each_epoch_has_every_row_once_and_full_batches(self) -> None:
        examples = BucketedExamples(rows(45), 4, 24)
        assert (examples.steps_per_epoch, examples.steps, len(examples)) == (12, 24, 96)
        epochs = [labels(examples, range(start, start + 48)) for start in (0, 48)]
        for epoch in epochs:
            assert set(epoch) == set(range(45))
        assert epochs[0] != epochs[1]

    def test_batches_have_rows_of_similar_lengths_in_random_order(self) -> None:
        examples = BucketedExamples(rows(640), 8, 80)
        lengths = np.array([len(examples[i]["input_ids"]) for i in range(len(examples))]).reshape(-1, 8)
        spread = lengths.max(axis=1) - lengths.min(axis=1)
        assert spread.mean() < 5
        assert np.abs(np.diff(lengths[:, 0])).mean() > 15

    def test_examples_depend_only_on_seed_and_index(self) -> None:
        data = rows(45)
        one, same, other = (BucketedExamples(data, 4, steps=60, seed=seed) for seed in (1, 1, 2))
        everything = labels(one, range(240))
        places = [200, 3, 100, 47, 48, 0]
        assert labels(same, places) == [everything[i] for i in places]
        assert labels(other, range(240)) != everything


class TestPadding:
    def test_padded_batches(self) -> None:
        examples = [
            {"input_ids": [1, 2, 3], "token_type_ids": [0, 0, 1], "label": 1},
            {"input_ids": [4], "token_type_ids": [0], "label": 0},
        ]
        batch = PaddingCollator(9)(examples)
        assert {name: value.tolist() for name, value in batch.items()} == {
            "input_ids": [[1, 2, 3], [4, 9, 9]],
            "token_type_ids": [[0, 0, 1], [0, 0, 0]],
            "attention_mask": [[1, 1, 1], [1, 0, 0]],
            "labels": [1, 0],
        }

    def test_multiples(self) -> None:
        batch = PaddingCollator(multiple_of=4)([{"input_ids": [1] * 5}, {"input_ids": [1] * 5}])
        assert batch["input_ids"].tolist() == [[1] * 5 + [0] * 3] * 2
        assert batch["attention_mask"].tolist() == [[1] * 5 + [0] * 3] * 2
        assert "attention_mask" not in PaddingCollator(multiple_of=4)([{"input_ids": [1] * 8}])

    def test_batches_of_a_training_have_few_lengths(self) -> None:
        padded = [-(-length // step) * step for length in range(1, 4001) if (step := length_step(length, 4000))]
        assert all(length <= there <= min(4000, 9 / 8 * length) for length, there in enumerate(padded, 1))
        assert len(set(padded)) == 81
        assert [length_step(length, 187) for length in (187, 186, 128, 15)] == [1, 2, 16, 1]

    @pytest.mark.parametrize("kind", [list, np.array, torch.tensor])
    def test_series_and_numbers(self, kind: Any) -> None:
        examples = [
            {"input_values": kind([[1.0, 2.0], [3.0, 4.0]]), "label": 0.5},
            {"input_values": kind([[5.0, 6.0]]), "label": np.float64(2.0)},
        ]
        batch = PaddingCollator(9)(examples)
        assert batch["input_values"].tolist() == [[[1.0, 2.0], [3.0, 4.0]], [[5.0, 6.0], [0.0, 0.0]]]
        assert batch["attention_mask"].tolist() == [[1, 1], [1, 0]]
        assert (batch["labels"].dtype, batch["labels"].tolist()) == (torch.float32, [0.5, 2.0])
