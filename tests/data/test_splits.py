"""How splits are made of data that do not name them."""

from __future__ import annotations

from typing import Any

import datasets
import pytest

from lagwise.data.splits import deal, shared_rows, split_rows, split_shares, split_sizes


def table(texts: list[str], labels: list[Any]) -> datasets.Dataset:
    return datasets.Dataset.from_dict({"text": texts, "label": labels})


def places(splits: dict[str, datasets.Dataset]) -> dict[str, str]:
    return {text: split for split, rows in splits.items() for text in rows["text"]}


LABELS = ["a"] * 300 + ["b"] * 50 + ["c"] * 3
TEXTS = [f"row {i}" for i in range(353)]


def test_splits_are_stratified() -> None:
    splits = split_rows({"train": table(TEXTS, LABELS)}, "label")
    assert list(splits) == ["train", "valid", "test"]
    counts = {s: [rows["label"][:].count(c) for c in "abc"] for s, rows in splits.items()}
    assert counts == {"train": [240, 40, 1], "valid": [30, 5, 1], "test": [30, 5, 1]}
    assert sorted(places(splits)) == sorted(TEXTS)


def test_splits_depend_only_on_content() -> None:
    first = places(split_rows({"train": table(TEXTS, LABELS)}, "label"))
    again = places(split_rows({"train": table(TEXTS[::-1], LABELS[::-1])}, "label"))
    assert first == again


def test_added_rows_move_few_others() -> None:
    first = places(split_rows({"train": table(TEXTS, LABELS)}, "label"))
    more = table([*TEXTS, *(f"more {i}" for i in range(100))], [*LABELS, *["a"] * 100])
    grown = places(split_rows({"train": more}, "label"))
    moved = {(first[t], grown[t]) for t in TEXTS if first[t] != grown[t]}
    assert sum(first[t] != grown[t] for t in TEXTS) < 20
    assert moved <= {("train", "valid"), ("train", "test"), ("valid", "train"), ("test", "train")}


def test_equal_rows_are_in_one_split_whatever_their_label() -> None:
    texts = [f"row {i % 40}" for i in range(200)]
    splits = split_rows({"train": table(texts, ["a", "b", "b", "a", "a"] * 40)}, "label")
    seen = [set(rows["text"][:]) for rows in splits.values()]
    assert all(seen)
    assert sum(map(len, seen)) == 40


def test_named_splits_are_kept() -> None:
    rows, test = table(TEXTS, LABELS), table(["row 1"], ["a"])
    splits = split_rows({"train": rows, "test": test}, "label")
    assert splits["test"] is test
    assert {s: len(r) for s, r in splits.items()} == {"train": 317, "valid": 36, "test": 1}
    named = {"train": rows, "valid": test, "test": test}
    assert split_rows(named, "label") == named


@pytest.mark.parametrize("label", ["label", None])
def test_rows_of_a_group_stay_together(label: str | None) -> None:
    rows = {"subject": [f"s{i // 10}" for i in range(400)], "text": [str(i) for i in range(400)]}
    found = split_rows(
        {"train": datasets.Dataset.from_dict({**rows, "label": [i % 2 for i in range(400)]})}, label, group="subject"
    )
    subjects = {split: {*part["subject"][:]} for split, part in found.items()}
    assert [len(each) for each in subjects.values()] == [32, 4, 4]
    assert len(set.union(*subjects.values())) == 40
    rows["subject"][7] = ""
    with pytest.raises(ValueError, match="row 8 of train has no 'subject'"):
        split_rows({"train": datasets.Dataset.from_dict(rows)}, group="subject")
    with pytest.raises(ValueError, match="too few different values of 'text'"):
        split_rows({"train": datasets.Dataset.from_dict({"text": ["a", "b"]})}, group="text")


def test_numbers_are_not_classes() -> None:
    splits = split_rows({"train": table(TEXTS, list(range(353)))})
    assert {s: len(r) for s, r in splits.items()} == {"train": 283, "valid": 35, "test": 35}


def test_splits_depend_on_the_content_of_series() -> None:
    rows = datasets.Dataset.from_dict({"input_values": [[[float(i % 20)]] * 3 for i in range(40)]})
    splits = split_rows({"train": rows})
    seen = [{row[0][0] for row in part["input_values"]} for part in splits.values()]
    assert list(map(len, seen)) == [16, 2, 2]


def test_all_classes_that_are_too_small_are_named() -> None:
    rows = table(TEXTS[:12], ["a"] * 9 + ["b", "b", "c"])
    with pytest.raises(ValueError, match=r"valid, test and train, which need 3 of each class: 2 of 'b', 1 of 'c'; add"):
        split_rows({"train": rows}, "label")
    rows = table(TEXTS[:30], [f"id {i}" for i in range(30)])
    with pytest.raises(ValueError, match=r"1 of 'id 8', 1 of 'id 9' and of 20 more classes; add rows"):
        split_rows({"train": rows}, "label")
    with pytest.raises(ValueError, match=r"too few different rows for .*, which need 3: the table has 2"):
        split_rows({"train": table(["a", "a", "b"], [1, 1, 2])})


def test_rows_that_named_splits_share_are_counted() -> None:
    train, test = table(TEXTS[:90], ["a"] * 90), table([*TEXTS[80:100], TEXTS[80]], ["b"] * 21)
    made = split_rows({"train": train, "test": test}, "label")
    (note,) = shared_rows(made, ("train", "test"), "label")
    assert note.startswith("11 of 21 rows of test are also in train or valid")
    valid = table(TEXTS[:5], ["a"] * 5)
    notes = shared_rows({"train": train, "valid": valid, "test": valid}, ("train", "valid", "test"), "label")
    assert [note[:44] for note in notes] == [f"5 of 5 rows of {s} are also in train{o}"[:44] for s, o in (
        ("valid", ", which makes"), ("test", " or valid, which"))]  # fmt: skip
    assert shared_rows(split_rows({"train": train}, "label"), ("train",), "label") == []


def test_sequences_are_cut_at_their_end() -> None:
    assert split_shares(0.1) == {"train": (0, 0.8), "valid": (0.8, 0.9), "test": (0.9, 1)}
    assert split_sizes(101) == {"train": 80, "valid": 10, "test": 11}
    assert split_sizes(101, 7, 1) == {"train": 70, "valid": 10, "test": 21}


def test_files_are_dealt_by_their_names() -> None:
    names = {i: f"file {i}" for i in range(1000)}
    dealt = deal(names)
    assert {split: len(items) > 20 for split, items in dealt.items()} == dict.fromkeys(("train", "valid", "test"), True)
    again = deal({i: names[i] for i in reversed(range(1, 1000))})
    assert again == {split: [i for i in items if i] for split, items in dealt.items()}
    assert all(deal({i: str(i) for i in range(3)}).values())
