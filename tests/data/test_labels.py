"""Labels as ids of classes, numbers, or several a row, in every way to write them; faults are named."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from datasets import ClassLabel, Dataset, Features, Sequence, Value

from lagwise.data import open_rows, open_series
from lagwise.data.labelled_rows import read_labelled, rows_to_score
from lagwise.data.labels import (
    has_lists,
    indicator_columns,
    named_columns,
    read_labels,
    read_labels_for,
    read_several,
    read_several_for,
    strata,
)
from lagwise.data.rows import RowSource
from lagwise.data.splits import split_rows


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
        assert read_labels({"train": ["1", "007"]}, "regression", where).values == {"train": [1.0, 7.0]}
        assert read_labels({"train": [0.5, 2]}, "classification", where).names == ("0.5", "2")

    @pytest.mark.parametrize(
        ("values", "kind", "message"),
        [
            (["a", None, ""], "auto", r"2 of 3 rows have no label, the first is row 2 \(None\)"),
            ([0.5, float("nan")], "auto", r"1 of 2 rows have no label, the first is row 2 \(nan\)"),
            (["1.5", "NA", "2"], "auto", r"1 of 3 rows have no label, the first is row 2 \('NA'\)"),
            (["a", "NaN"], "auto", r"no label, the first is row 2 \('NaN'\)"),
            ([0.5, float("inf")], "auto", "the label of row 2 is inf, not a finite number"),
            (["0.5", "inf", "1"], "auto", "the label of row 2 is 'inf', not a finite number"),
            (["0.5", "1e999"], "regression", "the label of row 2 is '1e999', not a finite number"),
            ([*map(str, range(60)), "-Infinity"], "auto", "the label of row 61 is '-Infinity', not a finite number"),
            (["4.5", "4", "inf", "unknown"], "auto", "mixed types"),
            (["4.5", "4", "unknown"], "auto", r"mixed types: '4\.5' \(row 1\), 'unknown' \(row 3\); make all"),
            ([[1], [2]], "auto", "the label of row 1 is list, not text or a number"),
            (["a", "a"], "auto", "all 2 labels are 'a'; classification needs two classes"),
            (["1", "a"], "regression", "label 'a' of row 2 is not a number"),
            (["1"], "regresion", "unknown `kind`: 'regresion'; did you mean 'regression'"),
        ],
    )
    def test_faulty_labels_are_named(self, values: list, kind: str, message: str) -> None:
        with pytest.raises(ValueError, match=message):
            read_labels({"train": values}, kind, lambda split, i: f"row {i + 1}")


def test_zeros_of_a_fraction_do_not_make_another_class() -> None:
    columns = {"train": ["0", "1", "0.0", "1.0", "-2.00"], "valid": ["0.0"], "test": ["1.00", "0"]}
    labels = read_labels(columns, "classification", lambda split, row: f"{split} {row}")
    assert labels.names == ("-2", "0", "1")
    assert labels.values == {"train": [1, 2, 1, 2, 0], "valid": [1], "test": [2, 1]}
    assert read_labels_for([1, 2.0, "1", "2.0"], ("1.0", "2.0"), str) == [0, 1, 0, 1]  # written by an earlier version


def test_labels_of_other_programs_are_those_of_the_model() -> None:
    assert read_labels_for(["True", False, "TRUE"], ("false", "true"), str) == [1, 0, 1]
    assert read_labels_for(["true", "False"], ("False", "True"), str) == [1, 0]  # written by an earlier version
    assert read_labels_for(["007", "07"], ("07", "007"), str) == [1, 0]
    with pytest.raises(ValueError, match="is 7, which the model does not know"):
        read_labels_for([7], ("07", "007"), str)


def test_labels_that_look_the_same_are_one() -> None:
    """In another Unicode form, as macOS writes names of files, and with characters without a width."""
    spellings = ["caf\u00e9", "cafe\u0301", "caf\u00e9\u200b", "\ufeffcaf\u00e9"]
    cells = {"train": [*spellings, "tea"], "test": ["cafe\u0301", "tea"]}
    labels = read_labels(cells, "auto", lambda split, i: f"{split} {i}")
    assert labels.names == ("caf\u00e9", "tea")
    assert labels.values == {"train": [0, 0, 0, 0, 1], "test": [0, 1]}
    assert read_labels_for(["caf\u00e9"], ["cafe\u0301", "tea"], str) == [0]  # a model that was trained before


ROWS = [("a film", ["long", "dull"]), ("a play", []), ("a song", ["new"]), ("a book", ["dull", "new"])] * 12
NAMES = ("dull", "long", "new")
MARKS = [[1, 1, 0], [0, 0, 0], [0, 0, 1], [1, 0, 1]] * 12


def where(split: str, i: int) -> str:
    return f"{split} row {i + 1}"


def written(folder: Path, form: str) -> tuple[str, dict[str, Any]]:
    """Files of the same rows in one of several forms, and the options that read them."""
    texts = [f"{text} {i}" for i, (text, _) in enumerate(ROWS)]
    if form == "lists":
        lines = [json.dumps({"text": t, "label": own}) for t, (_, own) in zip(texts, ROWS, strict=True)]
        (folder / "rows.jsonl").write_text("\n".join(lines))
        return str(folder / "rows.jsonl"), {}
    if form == "parquet":
        Dataset.from_dict({"text": texts, "label": [own for _, own in ROWS]}).to_parquet(folder / "rows.parquet")
        return str(folder / "rows.parquet"), {}
    if form == "lists in text":
        cells = [f'"{own}"' for _, own in ROWS]
    elif form == "columns":
        lines = [f"{t},{','.join(str(int(n in own)) for n in NAMES)}" for t, (_, own) in zip(texts, ROWS, strict=True)]
        (folder / "rows.csv").write_text("\n".join([f"text,{','.join(NAMES)}", *lines]))
        return str(folder / "rows.csv"), {"kind": "multi_label"}
    else:
        cells = [f'"{form.join(own)}"' for _, own in ROWS]
    (folder / "rows.csv").write_text("text,label\n" + "\n".join(f"{t},{c}" for t, c in zip(texts, cells, strict=True)))
    return str(folder / "rows.csv"), {"kind": "multi_label"}


@pytest.mark.parametrize("form", ["lists", "parquet", "lists in text", "|", "; ", ",", "columns"])
def test_every_form_is_read_alike(form: str, tmp_path: Path) -> None:
    name, options = written(tmp_path, form)
    labelled = read_labelled(open_rows(name), ("text",), "label", **options)
    assert labelled.kind == "multi_label"
    assert labelled.label_names == NAMES
    marks = {}
    for split, rows in labelled.splits.items():
        for text, own in zip(rows["text"], rows["__label__"], strict=True):
            marks[text] = own
        assert all(sum(column) for column in zip(*rows["__label__"], strict=True)), f"{split} lacks a label"
    assert [marks[f"{text} {i}"] for i, (text, _) in enumerate(ROWS)] == MARKS
    assert sum(labelled.counts["train"].values()) == sum(map(sum, labelled.splits["train"]["__label__"]))
    assert any("have none of the labels" in note for note in labelled.notes)
    label = labelled.label
    assert rows_to_score(open_rows(name), ("text",), label, NAMES, several=True)[1] == MARKS


def test_columns_of_labels_keep_their_order(tmp_path: Path) -> None:
    name, _ = written(tmp_path, "columns")
    labelled = read_labelled(open_rows(name), ("text",), ["new", "dull"])
    assert labelled.label_names == ("new", "dull")
    assert labelled.kind == "multi_label"
    with pytest.raises(ValueError, match=r"no column 'label'.*'dull' and 'long', are labels with `kind=multi_label`"):
        read_labelled(open_rows(name), ("text",), "label")
    with pytest.raises(ValueError, match=r"2 columns, which are several labels per row, but `kind=regression`"):
        read_labelled(open_rows(name), ("text",), ["new", "dull"], kind="regression")


def test_columns_of_labels_are_found_by_all_rows(tmp_path: Path) -> None:
    lines = ["text,common,rare,number"]
    for i in range(1500):
        lines.append(f"t{i},{i % 2 if i else ''},{int(i > 1450)},{i % 2 + (i > 1400)}")
    (tmp_path / "rows.csv").write_text("\n".join(lines))
    rows = open_rows(str(tmp_path / "rows.csv")).read()["train"]
    assert indicator_columns(rows, ("text",)) == ["common", "rare"]
    with pytest.raises(ValueError, match=r"'common' of row 1 is ''; a column of labels has 0 and 1"):
        read_labelled(open_rows(str(tmp_path / "rows.csv")), ("text",), "label", kind="multi_label")


def test_rows_without_labels_are_not_scored() -> None:
    for cells in ([["a"], None], ["", ""], [None, None]):
        with pytest.raises(ValueError, match=r"has no labels; remove such rows, or write an empty list, or 0"):
            read_several_for(cells, ("a", "b"), lambda i: f"row {i + 1}")
    assert read_several_for(["['a']", "", "[]"], ("a", "b"), str) == [[1, 0], [0, 0], [0, 0]]


def test_lists_in_text_are_lists(tmp_path: Path) -> None:
    name, _ = written(tmp_path, "lists in text")
    labelled = read_labelled(open_rows(name), ("text",), "label")
    assert (labelled.kind, labelled.label_names, labelled.reason) == ("multi_label", NAMES, "the labels are lists")
    assert not has_lists(["[a]", "[b]"])  # names of classes
    assert not has_lists(["", None])


def test_lines_that_are_series_have_several_columns_of_labels(tmp_path: Path) -> None:
    lines = [f"{i % 2},{i}.5,{2 * i}.5,{i % 3 % 2}" for i in range(40)]
    (tmp_path / "series.csv").write_text("\n".join(["low,a,b,high", *lines]))
    source = open_series(str(tmp_path / "series.csv"), ["low", "high"])
    labelled = read_labelled(source, ("input_values",), ["low", "high"], values=True)
    assert (labelled.kind, labelled.label_names) == ("multi_label", ("low", "high"))
    assert source.reading_options() == {"lines": True, "features": ["a", "b"]}
    with pytest.raises(ValueError, match=r"without those of labels or targets, 'low', 'high', got \['high'\]"):
        open_series(str(tmp_path / "series.csv"), ["low", "high"], features=["high"])


def test_declared_names_of_lists_are_used() -> None:
    features = Features({"text": Value("string"), "label": Sequence(ClassLabel(names=["b", "a"]))})
    rows = Dataset.from_dict({"text": [f"t{i}" for i in range(40)], "label": [[0], [0, 1]] * 20}, features=features)
    labelled = read_labelled(RowSource("rows", dataset={"train": rows}), ("text",), "label")
    assert labelled.label_names == ("b", "a")
    assert labelled.counts["train"]["b"] == len(labelled.splits["train"])


def test_vectors_of_0_and_1_are_labels_by_number() -> None:
    cells = np.array([[1, 0, 1], [0, 0, 1], [1, 1, 0]]).tolist()
    labels = read_several({"train": cells}, where)
    assert labels.names == ("0", "1", "2")
    assert labels.values["train"] == cells
    assert read_several_for([[0, 1, 1], [0, 0, 0]], labels.names, str) == [[0, 1, 1], [0, 0, 0]]
    two = read_several({"train": [[0, 1], [1, 0]]}, where)  # of names, every row would have both
    assert (two.names, two.values["train"]) == (("0", "1"), [[0, 1], [1, 0]])
    single = read_several({"train": [[0], [1]]}, where)
    assert (single.names, single.values["train"]) == (("0", "1"), [[1, 0], [0, 1]])
    numbers = read_several({"train": [[0], [1, 7], [7]]}, where)
    assert numbers.names == ("0", "1", "7")
    assert numbers.values["train"] == [[1, 0, 0], [0, 1, 1], [0, 0, 1]]


def test_one_class_between_separators_of_other_classes_is_not_cut() -> None:
    assert read_several_for(["a, b|c", "c", "", None], ("a, b", "c"), str) == [[1, 1], [0, 1], [0, 0], [0, 0]]
    assert read_several_for(["a, b"], ("a, b", "c"), str) == [[1, 0]]


@pytest.mark.parametrize(
    ("cells", "message"),
    [
        ([["a"], None, ["b"]], r"1 of 3 rows have no labels, the first is train row 2.*empty list"),
        ([["a"], [["b"]], ["b"]], r"labels of train row 2 are \[\['b'\]\]; a list has names or numbers"),
        ([["a"], ["a"], []], r"the only label is 'a'"),
        ([[], [], []], r"no row has a label"),
    ],
)
def test_faults_are_named(cells: list[Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        read_several({"train": cells}, where)


def test_labels_that_train_lacks_are_named() -> None:
    with pytest.raises(ValueError, match=r"label 'c' of test row 2 does not occur in train"):
        read_several({"train": [["a"], ["b"]], "test": [["a"], ["c"]]}, where)
    with pytest.raises(ValueError, match=r"no row of train has the label 'b'"):
        read_several({"train": [["a"], []]}, where, ["a", "b"])
    with pytest.raises(ValueError, match=r"the label 'c' of 1 is none that the model knows \(a, b\)"):
        read_several_for([["a"], ["c"]], ("a", "b"), str)
    with pytest.raises(ValueError, match=r"the label '3' of 0 is none that the model knows"):
        read_several_for([3], ("a", "b"), str)


def test_columns_have_0_and_1() -> None:
    assert named_columns({"a": [1, 0.0, True], "b": ["0", "1", "FALSE"]}, str) == [["a"], ["b"], ["a"]]
    assert named_columns({"a": [None], "b": [""]}, str) == [None]
    with pytest.raises(ValueError, match=r"'b' of 1 is 2; a column of labels has 0 and 1"):
        named_columns({"a": [1, 0], "b": [0, 2]}, str)
    with pytest.raises(ValueError, match=r"'b' of 0 is None"):
        named_columns({"a": [1], "b": [None]}, str)


def test_rows_are_divided_by_their_rarest_label() -> None:
    rows = [[1, 0]] * 6 + [[1, 1]] * 4 + [[0, 0]] * 5
    assert strata(rows, 4) == [0] * 6 + [1] * 4 + [None] * 5
    assert strata(rows, 5) == [0] * 6 + [None] * 9


@pytest.mark.parametrize("texts", [["lone"], ["same"] * 30])
def test_too_few_rows_without_labels_are_trained(texts: list[str]) -> None:
    """One row, or many with the same text, cannot be in all three splits."""
    rows = Dataset.from_dict({"text": [*map(str, range(20)), *texts], "label": [[1]] * 20 + [[0]] * len(texts)})
    by_split = split_rows({"train": rows}, "label", kinds=strata(rows["label"][:], 6))
    assert {split: len(own) for split, own in by_split.items()} == {"train": 16 + len(texts), "valid": 2, "test": 2}
    with pytest.raises(ValueError, match=r"1 of None"):
        split_rows({"train": Dataset.from_dict(rows[20:21])}, "label", kinds=[None])
