"""Multi-query recall: the rules of its sequences, and the distances of queries."""

from __future__ import annotations

import numpy as np
import pytest

from lagwise.data.splits import SPLITS
from lagwise_papers.data.associative_recall import split_of
from lagwise_papers.data.multi_query_recall import MultiQueryRecall


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
        ({"pairs": []}, r"task\.pairs must be different numbers"),
        ({"power": 0.0}, r"task\.power must be greater than 0"),
    ],
)
def test_wrong_options_are_named(options: dict, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        MultiQueryRecall(**{"vocab_size": 64, **options})


@pytest.mark.parametrize("length", [6, 13])
def test_a_length_that_fits_no_pairs_is_refused(length: int) -> None:
    with pytest.raises(ValueError, match=r"even and at least 8, 4 tokens for each of task\.pairs"):
        MultiQueryRecall(64, pairs=[2]).validation_examples(length, 100)
