"""Labels as ids of classes or as numbers."""

from __future__ import annotations

from typing import Any

import pytest

from lagwise.data.labels import known_labels, read_labels, several_hint


class TestLabels:
    @pytest.mark.parametrize(
        ("values", "kind", "names", "reason"),
        [
            (["b", "a10", "a9"], "classification", ("a9", "a10", "b"), "text"),
            ([10, 9, -1], "classification", ("-1", "9", "10"), "3 different integers"),
            (["10", "9"], "classification", ("9", "10"), "2 different integers"),
            (["1", "2", "3+"], "classification", ("1", "2", "3+"), "text"),
            (["1", "2", "none"], "classification", ("1", "2", "none"), "text"),
            ([1.0, 0.0], "classification", ("0", "1"), "2 different integers"),
            ([True, False], "classification", ("false", "true"), "text"),
            (["True", "FALSE", "true"], "classification", ("false", "true"), "text"),
            ([True, "False", "TRUE"], "classification", ("false", "true"), "text"),
            (["007", "12"], "classification", ("007", "12"), "codes with zeros in front"),
            ([f"{i:05}" for i in range(60)], "classification", tuple(f"{i:05}" for i in range(60)), "codes"),
            ([1.5, 1], "regression", None, "fractions"),
            (["1.5", "-1e3"], "regression", None, "fractions"),
            (list(range(51)), "regression", None, "51 different integers, more than 50"),
        ],
    )
    def test_kinds_of_labels(self, values: list, kind: str, names: Any, reason: str) -> None:
        labels = read_labels({"train": values}, "auto", lambda split, i: f"row {i}")
        assert (labels.kind, labels.names) == (kind, names)
        assert reason in labels.reason
        if names is None:
            assert labels.values["train"] == [float(v) for v in values]
        else:
            assert sorted(set(labels.values["train"])) == list(range(len(names)))

    def test_the_kind_of_labels_can_be_set(self) -> None:
        where = lambda split, i: f"row {i}"  # noqa: E731
        assert read_labels({"train": [1, 2]}, "regression", where).values == {"train": [1.0, 2.0]}
        assert read_labels({"train": [0.5, 2]}, "classification", where).names == ("0.5", "2")

    @pytest.mark.parametrize(
        ("values", "kind", "message"),
        [
            (["a", None, ""], "auto", r"2 of 3 rows have no label, the first is row 2 \(None\)"),
            (["a", "b", "b|a", ""], "auto", r"'\); .*; task.kind=multi_label reads 'b\|a' as several labels"),
            ([0.5, float("nan")], "auto", r"1 of 2 rows have no label, the first is row 2 \(nan\)"),
            (["1.5", "NA", "2"], "auto", r"1 of 3 rows have no label, the first is row 2 \('NA'\)"),
            (["a", "NaN"], "auto", r"no label, the first is row 2 \('NaN'\)"),
            ([0.5, float("inf")], "auto", "the label of row 2 is inf, not a finite number"),
            (["0.5", "inf", "1"], "auto", "the label of row 2 is 'inf', not a finite number"),
            (["0.5", "1e999"], "regression", "the label of row 2 is '1e999', not a finite number"),
            ([*map(str, range(60)), "-Infinity"], "auto", "the label of row 61 is '-Infinity', not a finite number"),
            (["4.5", "4", "inf", "unknown"], "auto", "mixed types"),
            (["4.5", "4", "unknown"], "auto", r"mixed types: '4\.5' \(row 1\), '4' \(row 2\), 'unknown' \(row 3\)"),
            ([1, "a"], "auto", r"mixed types: 1 \(row 1\), 'a' \(row 2\)"),
            ([1, True], "auto", r"mixed types: 1 \(row 1\), True \(row 2\)"),
            ([[1], [2]], "auto", "the label of row 1 is list, not text or a number"),
            (["a", "a"], "auto", "all 2 labels are 'a'; classification needs two classes"),
            (["1", "a"], "regression", "label 'a' of row 2 is not a number"),
            (["1"], "regresion", "unknown task.kind: 'regresion'; did you mean 'regression'"),
        ],
    )
    def test_faulty_labels_are_named(self, values: list, kind: str, message: str) -> None:
        with pytest.raises(ValueError, match=message):
            read_labels({"train": values}, kind, lambda split, i: f"row {i + 1}")


def test_classes_that_look_like_several_labels_are_noted() -> None:
    found = read_labels({"train": ["sun", "rain; sun", "rain"]}, "auto", str)
    assert found.reason.endswith("; task.kind=multi_label reads 'rain; sun' as several labels")
    assert read_labels({"train": ["sun", "Paris, France"]}, "auto", str).reason == "the labels are text"
    assert "multi_label" not in several_hint(["1,5", "1", "5"])


def test_zeros_of_a_fraction_do_not_make_another_class() -> None:
    columns = {"train": ["0", "1", "0.0", "1.0", "-2.00"], "valid": ["0.0"], "test": ["1.00", "0"]}
    found = read_labels(columns, "classification", lambda split, row: f"{split} {row}")
    assert found.names == ("-2", "0", "1")
    assert found.values == {"train": [1, 2, 1, 2, 0], "valid": [1], "test": [2, 1]}
    assert known_labels([1, 2.0, "1", "2.0"], ("1.0", "2.0"), str) == [0, 1, 0, 1]  # written by an earlier version


def test_labels_of_other_programs_are_those_of_the_model() -> None:
    assert known_labels(["True", False, "TRUE"], ("false", "true"), str) == [1, 0, 1]
    assert known_labels(["true", "False"], ("False", "True"), str) == [1, 0]  # written by an earlier version
    assert known_labels(["007", "07"], ("07", "007"), str) == [1, 0]
    with pytest.raises(ValueError, match="is 7, which the model does not know"):
        known_labels([7], ("07", "007"), str)


def test_codes_may_be_numbers_if_the_kind_says_so() -> None:
    assert read_labels({"train": ["007", "12"]}, "regression", lambda split, i: f"{i}").values == {"train": [7.0, 12.0]}


def test_labels_that_look_the_same_are_one() -> None:
    """In another Unicode form, as macOS writes names of files, and with characters without a width."""
    spellings = ["caf\u00e9", "cafe\u0301", "caf\u00e9\u200b", "\ufeffcaf\u00e9"]
    cells = {"train": [*spellings, "tea"], "test": ["cafe\u0301", "tea"]}
    found = read_labels(cells, "auto", lambda split, i: f"{split} {i}")
    assert found.names == ("caf\u00e9", "tea")
    assert found.values == {"train": [0, 0, 0, 0, 1], "test": [0, 1]}
    assert "4 spellings of 'caf\u00e9'" in found.reason
    assert known_labels(["caf\u00e9"], ["cafe\u0301", "tea"], str) == [0]  # a model that was trained before
