"""Associative recall: the rules of sequences, disjoint splits, and varying lengths."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from lagwise.data import ScheduledExamples, TokenData
from lagwise.data.splits import SPLITS
from lagwise_papers.data import associative_recall as module
from lagwise_papers.data.associative_recall import AssociativeRecall, DrawnExamples, answers, draw_sequences, split_of
from lagwise_papers.data.multi_query_recall import MultiQueryRecall


def rows(examples: DrawnExamples, count: int) -> np.ndarray:
    return np.stack([examples[i]["input_ids"].numpy() for i in range(count)])


@pytest.mark.covers("TCNCA table 3 and app. G")
@pytest.mark.parametrize(("length", "vocab_size"), [(4, 4), (6, 10), (64, 10), (50, 400)])
def test_every_key_keeps_its_value_and_the_query_has_occurred(length: int, vocab_size: int) -> None:
    """The rules of TCNCA app. G, checked per row with a dictionary."""
    ids = draw_sequences(np.random.default_rng(0), 200, length, vocab_size)
    assert ids.shape == (200, length)
    every, last = (answers(ids, vocab_size, every=e) for e in (True, False))
    for row, labels, only in zip(ids.tolist(), every.tolist(), last.tolist(), strict=True):
        value_of: dict[int, int] = {}
        for place in range(0, length, 2):
            key, value = row[place : place + 2]
            assert 0 <= key < vocab_size // 2 <= value < vocab_size
            assert labels[place : place + 2] == [-100, value if key in value_of else -100]
            assert value_of.setdefault(key, value) == value
        assert row[-2] in row[:-2:2]
        assert only == [-100] * (length - 1) + [row[-1]]


def test_keys_values_and_queries_are_drawn_evenly() -> None:
    ids = draw_sequences(np.random.default_rng(0), 20000, 64, 10)
    for column in (ids[:, 10], ids[:, -2], ids[:, -1] - 5):
        assert np.abs(np.bincount(column, minlength=5) / len(column) - 0.2).max() < 0.015


def test_splits_share_no_sequence() -> None:
    """For short sequences, where each split covers nearly all of its own, and for long ones."""
    for length, vocab_size, count in ((6, 6, 1000), (8, 10, 3000), (64, 10, 1000)):
        found = [
            {row.tobytes() for row in rows(AssociativeRecall(vocab_size).examples(split, length, count), count)}
            for split in ("train", "valid", "test")
        ]
        assert not found[0] & found[1]
        assert not found[0] & found[2]
        assert not found[1] & found[2]


def test_examples_depend_only_on_split_length_vocabulary_seed_and_index(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "_TOKENS_PER_BLOCK", 640)  # blocks of ten
    one, same, other = (
        AssociativeRecall(10).examples("train", 64, count, seed) for count, seed in ((1000, 1), (50, 1), (50, 2))
    )
    order = (33, 5, 34, 0, 19)
    first = {i: one[i]["input_ids"] for i in order}
    assert all(torch.equal(first[i], same[i]["input_ids"]) for i in sorted(order))
    assert not any(torch.equal(first[i], other[i]["input_ids"]) for i in order)
    assert len({tuple(row) for row in rows(one, 50).tolist()}) == 50


def test_the_task_has_training_validation_and_test_splits() -> None:
    task = AssociativeRecall(10, loss="last")
    assert len(task.training_examples(8, 7, 0)) == 7
    assert len(task.validation_examples(8, 100)) == 12
    assert len(task.validation_examples(128, 100)) == 1
    assert len(task.test_examples(8, 5)) == 5
    every = AssociativeRecall(10)
    assert all((every.validation_examples(64, 640)[i]["labels"] != -100).sum() == 1 for i in range(10))
    assert (every.training_examples(64, 1, 0)[0]["labels"] != -100).sum() > 20
    assert (task.training_examples(64, 1, 0)[0]["labels"] != -100).sum() == 1


def test_words_stand_for_keys_and_values(tmp_path) -> None:
    from transformers import AutoTokenizer

    tokenizer = AssociativeRecall(10).tokenizer
    tokenizer.save_pretrained(tmp_path)
    for each in (tokenizer, AutoTokenizer.from_pretrained(tmp_path)):
        ids = each("a 2 c 4\n e  0 ")["input_ids"]
        assert ids == [0, 7, 2, 9, 4, 5]
        assert each.decode(ids) == "a 2 c 4 e 0"
        assert (len(each), each.eos_token_id, each.pad_token_id) == (12, 10, 11)
    large = AssociativeRecall(60).tokenizer
    assert large.decode([0, 25, 26, 29, 30, 59]) == "a z k26 k29 0 29"


@pytest.mark.parametrize("vocab_size", [2, 7, 0])
def test_invalid_vocabularies(vocab_size: int) -> None:
    with pytest.raises(ValueError, match=rf"the vocabulary size .* even and at least 4 .* got {vocab_size}"):
        AssociativeRecall(vocab_size)


def test_invalid_lengths_and_losses() -> None:
    task = AssociativeRecall(4)
    for length in (2, 7):
        with pytest.raises(ValueError, match=f"even and at least 4 .* got {length}"):
            task.training_examples(length, 1, 0)
    with pytest.raises(ValueError, match="did you mean 'every'"):
        AssociativeRecall(10, loss="evry")


def test_a_split_without_sequences_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    """There are four sequences of length 4 over 4 tokens, and none is in the valid split."""
    monkeypatch.setattr(module, "_TOKENS_PER_BLOCK", 1 << 10)
    with pytest.raises(ValueError, match="none is left for the valid split"):
        AssociativeRecall(4).validation_examples(4, 100)


@pytest.mark.covers("TCNCA app. F")
class TestScheduledExamples:
    """Lengths that change from step to step (TCNCA app. F)."""

    def schedule(self, text_data: TokenData, steps: int = 200, seed: int = 0) -> ScheduledExamples:
        return ScheduledExamples(text_data, [16, 32, 100], 3, steps, seed)

    def test_rows_of_a_step_have_one_length_and_every_length_occurs(self, text_data: TokenData) -> None:
        examples = self.schedule(text_data)
        assert len(examples) == 600
        lengths = np.array([len(examples[i]["input_ids"]) for i in range(600)]).reshape(200, 3)
        assert (lengths == lengths[:, :1]).all()
        assert (np.unique(lengths[:, 0], return_counts=True)[1] > 40).all()

    def test_examples_depend_only_on_seed_and_index(self, text_data: TokenData) -> None:
        one, shorter, other = (self.schedule(text_data, n, seed) for n, seed in ((200, 0), (60, 0), (60, 1)))
        forwards = [one[i]["input_ids"] for i in range(180)]
        backwards = [shorter[i]["input_ids"] for i in reversed(range(180))][::-1]
        assert all(torch.equal(a, b) for a, b in zip(forwards, backwards, strict=True))
        assert any(len(other[i]["input_ids"]) != len(forwards[i]) for i in range(180))


@pytest.mark.slow
def test_every_key_is_asked_for_once() -> None:
    source = MultiQueryRecall(64, pairs=[2, 5, 8])
    examples, found = source.training_examples(32, 300, seed=3), set()
    for index in range(300):
        ids, labels = (examples[index][name].numpy() for name in ("input_ids", "labels"))
        answers = np.flatnonzero(labels != -100)
        n = len(answers)
        found.add(n)
        keys, values = ids[: 2 * n : 2], ids[1 : 2 * n : 2]
        assert len(set(keys)) == len(set(values)) == n
        assert ((keys >= 1) & (keys < 32) & (values >= 32)).all()
        assert ((answers - 1 >= 2 * n) & ((answers - 1) % 2 == 0)).all()
        value_of = dict(zip(keys, values, strict=True))
        assert [value_of[ids[place - 1]] for place in answers] == labels[answers].tolist()
        assert set(ids[answers - 1]) == set(keys)
        assert split_of(ids[None])[0] == SPLITS.index("train")
    assert found == {2, 5, 8}
    again = source.training_examples(32, 300, seed=3)
    assert (again[120]["input_ids"] == examples[120]["input_ids"]).all()
    assert {int((source.validation_examples(8, 80)[i]["labels"] != -100).sum()) for i in range(10)} == {2}


@pytest.mark.parametrize("power", [0.01, 1.0])
def test_distances_follow_the_power_law(power: float) -> None:
    """One query, at each of 8 places with the weight ``(g + 1)**(power - 1)``."""
    examples = MultiQueryRecall(40, pairs=[1], power=power).test_examples(18, 4000, 1)
    places = [(int((examples[i]["labels"] != -100).nonzero()[0, 0]) - 3) // 2 for i in range(4000)]
    weights = np.arange(1, 9) ** (power - 1)
    expected = weights / weights.sum()
    assert np.abs(np.bincount(places, minlength=8) / 4000 - expected).max() < 0.03


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"vocab_size": 63}, "must be even and at least 4, got 63"),
        ({"pairs": [4, 32]}, "from 1 to 31"),
        ({"pairs": []}, "pairs must be different numbers"),
        ({"power": 0.0}, "power must be greater than 0"),
    ],
)
def test_wrong_options_are_named(options: dict, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        MultiQueryRecall(**{"vocab_size": 64, **options})


@pytest.mark.parametrize("length", [6, 13])
def test_a_length_that_fits_no_pairs_is_refused(length: int) -> None:
    with pytest.raises(ValueError, match="even and at least 8, 4 tokens for each of the pairs"):
        MultiQueryRecall(64, pairs=[2]).validation_examples(length, 100)
