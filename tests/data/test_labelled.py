"""Labelled rows from files to model inputs: labels, errors and caching."""

from __future__ import annotations

import dataclasses
import json
from datetime import date, datetime
from decimal import Decimal
from pathlib import Path
from typing import Any

import datasets
import numpy as np
import pandas as pd
import pytest
from scipy.io import wavfile

import lagwise.data.labelled as labelled_module
from lagwise.data import LabelledData, open_rows, open_series, prepare_labelled
from lagwise.data.rows import RowSource


def write(path: Path, rows: list[dict[str, Any]]) -> str:
    path.parent.mkdir(exist_ok=True)
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return str(path)


def reviews(count: int = 30, **more: Any) -> list[dict[str, Any]]:
    return [{"text": f"review {i}", "label": ("good", "bad")[i % 2], **more} for i in range(count)]


def prepare(source: str | RowSource, **options: Any) -> LabelledData:
    return prepare_labelled(source, progress=False, **options)


@pytest.fixture
def source(tmp_path: Path) -> str:
    return write(tmp_path / "rows.jsonl", reviews())


class TestText:
    def test_encoded_rows_restore_the_text(self, source: str) -> None:
        data = prepare(source)
        assert (data.kind, data.label_names, data.features) == ("classification", ("bad", "good"), None)
        assert data.counts == {
            "train": {"bad": 11, "good": 11},
            "valid": {"bad": 2, "good": 2},
            "test": {"bad": 2, "good": 2},
        }
        assert data.tokenizer is not None
        seen = []
        for rows in data.splits.values():
            for row in rows:
                assert row["length"] == len(row["input_ids"])
                seen.append({"text": data.tokenizer.decode(row["input_ids"]), "label": data.label_names[row["label"]]})
        assert sorted(seen, key=lambda row: int(row["text"][7:])) == reviews()
        assert data.describe().splitlines() == [
            "classification of 2 classes (the labels are text); rows: train 22, valid 4, test 4",
            "valid and test made from 10 % of train each",
        ]

    def test_long_rows_are_cut_and_counted(self, tmp_path: Path) -> None:
        rows = [{"text": "x" * (i + 1), "label": i % 2} for i in range(40)]
        data = prepare(write(tmp_path / "a.jsonl", rows), length=30)
        assert sum(data.cut.values()) == 10
        assert max(max(rows["length"]) for rows in data.splits.values()) == 30
        assert (
            f"{data.cut['train']} rows of train ({data.cut['train'] / 32:.1%}) are cut to length 30" in data.describe()
        )

    def test_pairs(self, tmp_path: Path) -> None:
        rows = [{"a": f"{i}" * 4, "b": "z" * 9, "label": i % 2} for i in range(10)]
        data = prepare(write(tmp_path / "a.jsonl", rows), text=["a", "b"], length=9)
        row = next(row for row in data.splits["train"] if row["label"] == 0)
        assert row["input_ids"] == [*row["input_ids"][:1] * 4, 256, *b"zzzz"]
        assert row["token_type_ids"] == [0] * 5 + [1] * 4
        assert sum(data.cut.values()) == 10
        encoded = data.encoder([{"a": "", "b": "1234567890"}, {"a": "1234567890", "b": "12"}, {"a": "12", "b": "3"}])
        assert encoded["input_ids"][:] == [[256, *b"12345678"], [*b"123456", 256, *b"12"], [*b"12", 256, *b"3"]]
        assert encoded["length"][:] == [9, 9, 4]

    def test_encoding_at_prediction(self, source: str) -> None:
        data = prepare(source, length=5)
        encoded = data.encoder(iter([{"text": "größe", "other": 1}, {"text": ""}, {"text": None}]))
        assert encoded["input_ids"][:] == [list("größe".encode())[:5], [256], [256]]
        assert set(encoded.column_names) == {"input_ids", "length"}
        assert len(data.encoder([])) == 0
        assert data.encoder(open_rows(source).read()["train"])["length"][:] == [5] * 30
        with pytest.raises(ValueError, match=r"row 2 has no 'text' \(it has txt\)"):
            data.encoder([{"text": "a"}, {"txt": "a"}])
        with pytest.raises(ValueError, match="row 1: 'text' must be text, got int"):
            data.encoder([{"text": 5}])
        with pytest.raises(ValueError, match="'text' must be text, got int64"):
            data.encoder(datasets.Dataset.from_dict({"text": [5]}))
        with pytest.raises(ValueError, match=r"the rows have no 'text' \(they have txt\)"):
            data.encoder(datasets.Dataset.from_dict({"txt": ["a"]}))


class TestSeries:
    def rows(self, **first: Any) -> list[dict[str, Any]]:
        rows = [{"input_values": [[float(i), 0.5]] * (1 + i % 3), "label": i / 4} for i in range(20)]
        rows[0] |= first
        return rows

    def test_values_are_unchanged(self, tmp_path: Path) -> None:
        data = prepare(write(tmp_path / "a.jsonl", self.rows()), inputs="values", length=2)
        assert (data.kind, data.label_names, data.tokenizer, data.features) == ("regression", None, None, 2)
        assert data.reason == "the labels are numbers with fractions"
        assert sum(data.cut.values()) == 6
        for rows in data.splits.values():
            for row in rows:
                number = int(row["label"] * 4)
                assert row["input_values"] == [[number, 0.5]] * min(2, 1 + number % 3)
        assert data.encoder([{"input_values": np.ones((5, 2))}])["input_values"][0] == [[1, 1], [1, 1]]
        table = open_rows(str(tmp_path / "a.jsonl")).read()["train"]
        assert data.encoder(table).to_dict() == data.encoder(self.rows()).to_dict()

    def test_a_list_of_numbers_is_one_feature(self, tmp_path: Path) -> None:
        np.savez(tmp_path / "a.npz", x=np.arange(60, dtype=np.float64).reshape(20, 3), label=np.arange(20) % 2)
        data = prepare(str(tmp_path / "a.npz"), inputs="values", text="x")
        assert data.features == 1
        values = np.array([v for rows in data.splits.values() for v in rows["input_values"]])
        assert sorted(values.ravel()) == list(range(60))
        assert data.encoder([{"x": [1, 2]}])["input_values"][0] == [[1], [2]]

    @pytest.mark.parametrize(
        ("values", "message"),
        [
            ([[0.0, 1.0], [float("inf"), 0.0]], r"'input_values' of row 1 is not a series .* inf at position 1"),
            ([[None, None]] * 2, "row 1 .* all its samples are missing"),
            ([], "row 1 .* it is empty"),
            (None, "row 1 .* it is empty"),
            ([[1.0]], "'input_values' of row 2 .* it has 2 features, not 1 as other series"),
            ([[1.0], [1.0, 2.0]], "row 1 .* its vectors have 1 to 2 numbers"),
        ],
    )
    def test_faulty_series_are_named(self, tmp_path: Path, values: Any, message: str) -> None:
        with pytest.raises(ValueError, match=message):
            prepare(write(tmp_path / "a.jsonl", self.rows(input_values=values)), inputs="values")

    def test_faulty_series_at_prediction(self, tmp_path: Path) -> None:
        data = prepare(write(tmp_path / "a.jsonl", self.rows()), inputs="values")
        for value, message in (
            ([[1.0, float("inf")]], "row 2 is not a series of finite numbers"),
            ([[1.0]], "row 2 .* it has 1 features, not 2 as other series"),
            ("text", "row 2: 'input_values' is not a series of numbers"),
        ):
            with pytest.raises(ValueError, match=message):
                data.encoder([{"input_values": [[1.0, 1.0]]}, {"input_values": value}])

    def test_text_is_not_a_series(self, tmp_path: Path) -> None:
        rows = [{"input_values": "text", "label": i} for i in range(9)]
        with pytest.raises(ValueError, match=r"'input_values' must hold series.* but it is a column of string"):
            prepare(write(tmp_path / "a.jsonl", rows), inputs="values")


class TestSplits:
    def folder(self, path: Path, **splits: list[dict[str, Any]]) -> str:
        for name, rows in splits.items():
            write(path / "named" / f"{name}.jsonl", rows)
        return str(path / "named")

    def test_a_test_split_without_labels_is_skipped(self, tmp_path: Path) -> None:
        unlabelled = [{"text": "?", "label": None}] * 5
        data = prepare(self.folder(tmp_path, train=reviews(), test=unlabelled))
        assert "test has no labels and is left out" in data.notes
        assert {s: len(rows) for s, rows in data.splits.items()} == {"train": 22, "valid": 4, "test": 4}

    def test_rows_without_labels_are_not_scored(self, tmp_path: Path) -> None:
        partly = [{"text": "?", "label": ""}, {"text": "!", "label": "bad"}, {"text": "?"}]
        data = prepare(self.folder(tmp_path, train=reviews(), valid=reviews(4), test=partly))
        assert "2 rows of test have no label and are left out" in data.notes
        assert "test has no row of 'good'" in data.describe().splitlines()
        assert data.splits["test"]["label"][:] == [0]
        assert data.encoder([{"text": "!"}])["input_ids"][0] == data.splits["test"]["input_ids"][0]

    def test_columns_must_be_in_every_split(self, tmp_path: Path) -> None:
        folder = self.folder(tmp_path, train=reviews(), test=[{"content": "a", "label": "bad"}])
        with pytest.raises(ValueError, match=r"test of .* has no column 'text'; .*`text=COLUMN`.*content, label"):
            prepare(folder)

    def test_a_label_missing_in_train_is_an_error(self, tmp_path: Path) -> None:
        folder = self.folder(tmp_path, train=reviews(), test=[*reviews(3), {"text": "a", "label": "odd"}])
        with pytest.raises(ValueError, match=r"'odd' of test row 4 \(1 such rows in test\) does not occur in train"):
            prepare(folder)

    def test_classes_of_the_hub_keep_their_order(self) -> None:
        features = datasets.Features(
            {"text": datasets.Value("string"), "label": datasets.ClassLabel(names=["no", "unused", "both"])}
        )
        rows = {"text": [f"{i}" for i in range(20)], "label": [0, 2] * 10}
        train = datasets.Dataset.from_dict(rows, features=features)
        test = datasets.Dataset.from_dict({"text": ["a", "b"], "label": [-1, -1]}, features=features)
        data = prepare(RowSource("hub:x", dataset={"train": train, "test": test}))
        assert data.label_names == ("no", "both")
        assert data.notes[0] == "test has no labels and is left out"


class TestErrors:
    @pytest.mark.parametrize(
        ("rows", "options", "message"),
        [
            (reviews(), {"label": "lable"}, r"no column 'lable'; did you mean `label=label`\? \(columns: text, label"),
            (reviews(), {"text": "review"}, r"no column 'review'; name .* `text=COLUMN` \(columns: text, label\)"),
            ([{"a": "x", "b": "y", "label": "z"}], {}, r"no column 'text'; .*`text=COLUMN` \(columns: a, b, label\)"),
            (
                [{"a": "x", "b": "y", "labl": "z"}],
                {},
                r"no column 'text' and no .*'label'; .*`text=COL.*=labl`\?",
            ),
            ([*reviews(), {"text": "", "label": "bad"}], {}, "1 of 31 rows have an empty 'text', the first is row 31"),
            (reviews(1), {}, "all 1 labels are 'good'; classification needs two"),
            ([{"text": 5, "label": "a"}, {"text": 6, "label": "b"}], {}, "'text' of row 1 is int, not text"),
            ([*reviews(), {"text": "x", "label": "odd"}], {}, r"a\.jsonl': too few different rows for .* 1 of 'odd'; "),
            (
                [{"text": f"{i}", "label": i // 2} for i in range(20)],
                {},
                r"2 of '0', .*; if .* `kind=regression`",
            ),
            ([{"text": f"{i}", "label": 1.5} for i in range(20)], {}, r"all 20 labels are 1\.5; regression needs"),
            ([{"text": "x", "label": "a"}, {"text": "y", "label": 1}], {}, r"'label' has mixed types: str .*int"),
            (reviews(), {"text": ["text", "text"]}, "`text` must name one column"),
            (reviews(), {"text": "label"}, "other than the label's, got 'label'"),
            (reviews(), {"text": ["a", "b"], "inputs": "values"}, "`text` must name one column"),
            (reviews(), {"inputs": "token"}, "unknown `inputs`: 'token'; did you mean 'tokens'"),
            (reviews(), {"length": 0}, "`length` must be an integer of at least 1"),
            (reviews(), {"tokenizer": "word"}, "'words', 'characters', .*or a folder"),
        ],
    )
    def test_errors_are_one_line(self, tmp_path: Path, rows: list, options: dict[str, Any], message: str) -> None:
        with pytest.raises(ValueError, match=message) as error:
            prepare(write(tmp_path / "a.jsonl", rows), **options)
        assert "\n" not in str(error.value)

    def test_a_table_without_rows(self, tmp_path: Path) -> None:
        (tmp_path / "a.csv").write_text("text,label\n")
        with pytest.raises(ValueError, match=r"a\.csv' has no rows"):
            prepare(str(tmp_path / "a.csv"))


class TestCache:
    def test_cached_rows_are_reused(self, source: str, monkeypatch: pytest.MonkeyPatch) -> None:
        first = prepare(source)
        monkeypatch.setattr(labelled_module, "read_labelled", lambda *a, **k: pytest.fail("read again"))
        again = prepare(source)
        assert again.key == first.key
        fields = {f.name for f in dataclasses.fields(LabelledData)} - {"splits", "encoder"}
        assert all(getattr(again, name) == getattr(first, name) for name in fields)
        for split, rows in first.splits.items():
            assert again.splits[split].to_dict() == rows.to_dict()

    def test_the_cache_key_covers_all_options(self, source: str, tmp_path: Path) -> None:
        other = write(tmp_path / "b.jsonl", reviews(32))
        seen = [prepare(source), prepare(source, length=9), prepare(source, tokenizer="bpe", vocab_size=260)]
        seen += [prepare(other), prepare(source, kind="classification"), prepare(source, text=["text"], label="label")]
        keys = [data.key for data in seen]
        assert len(set(keys)) == 5
        assert keys[0] == keys[5]


def test_declared_classes_are_classes(tmp_path: Path) -> None:
    """Sixty classes with numbers for names are not amounts."""
    features = datasets.Features(
        {"text": datasets.Value("string"), "label": datasets.ClassLabel(names=[str(i) for i in range(60)])}
    )
    rows = {"text": [f"row {i}" for i in range(240)], "label": [i % 60 for i in range(240)]}
    datasets.Dataset.from_dict(rows, features=features).to_parquet(str(tmp_path / "rows.parquet"))
    data = prepare(str(tmp_path / "rows.parquet"))
    assert data.kind == "classification"
    assert data.label_names == tuple(map(str, range(60)))


def test_dates_and_decimals_of_parquet_are_read_as_those_of_csv(tmp_path: Path) -> None:
    frame = pd.DataFrame({"text": [f"row {i}" for i in range(60)]})
    for values, kind in (
        ([date(2024, 1 + i % 2, 1) for i in range(60)], "classification"),
        ([datetime(2024, 1, 1, 12 * (i % 2)) for i in range(60)], "classification"),
        ([Decimal(i) / 4 for i in range(60)], "regression"),
        ([Decimal(i % 2) for i in range(60)], "classification"),
    ):
        frame["label"] = values
        frame.to_parquet(tmp_path / "rows.parquet")
        frame.to_csv(tmp_path / "rows.csv", index=False)
        found, expected = (prepare(str(tmp_path / f"rows.{suffix}")) for suffix in ("parquet", "csv"))
        assert (found.kind, found.label_names) == (kind, expected.label_names)
        assert found.splits["train"]["label"][:] == expected.splits["train"]["label"][:]


def test_a_test_file_without_labels_is_named(tmp_path: Path) -> None:
    write(tmp_path / "data" / "train.jsonl", reviews())
    write(tmp_path / "data" / "test.jsonl", [{"text": "no label here"}])
    with pytest.raises(ValueError, match=r"test of .* has no column 'label', .* use lagwise predict for it"):
        prepare(str(tmp_path / "data"))


def test_a_missing_column_tells_that_the_first_line_is_the_header(tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_text("".join(f"I liked it {i},{'ab'[i % 2]}\n" for i in range(20)))
    with pytest.raises(ValueError, match=r"no column 'text'.*the first line of the file is taken for the header"):
        prepare(str(tmp_path / "a.csv"))
    with pytest.raises(ValueError, match=r"no column 'text'.*columns: a\)$"):
        prepare(write(tmp_path / "b.jsonl", [{"a": 1}]))


def test_files_that_are_rows_of_one_folder(tmp_path: Path) -> None:
    (tmp_path / "cat").mkdir()
    for i in range(4):
        (tmp_path / "cat" / f"{i}.txt").write_text(f"text {i}")
    with pytest.raises(ValueError, match="the 4 files to train on are a row each, all of the class 'cat'"):
        prepare(str(tmp_path))


def test_series_are_not_read_as_the_names_of_their_files(tmp_path: Path) -> None:
    for name in ("cat", "dog"):
        (tmp_path / name).mkdir()
        for i in range(4):
            wavfile.write(tmp_path / name / f"{i}.wav", 8000, np.arange(i + 9, dtype=np.int16))
    with pytest.raises(ValueError, match=r"has series \(column 'input_values'\), not texts: use the recipe signal"):
        prepare(str(tmp_path))
    assert prepare(str(tmp_path), text="file").label_names == ("cat", "dog")  # as it is named


@pytest.mark.parametrize(("one", "other"), [("Spam", "spam"), ("+1", "1"), ("1e3", "1000"), ("007", "7")])
def test_classes_whose_names_are_alike_are_noted(tmp_path: Path, one: str, other: str) -> None:
    rows = [
        {"text": f"mail {i}", "label": (one, other, "ham")[i % 3] if one == "Spam" else (one, other)[i % 2]}
        for i in range(30)
    ]
    data = prepare(write(tmp_path / "rows.jsonl", rows))
    assert any("are different classes" in note and repr(one) in note for note in data.notes)


def test_numbers_and_categories_are_no_texts(tmp_path: Path) -> None:
    table = pd.DataFrame({"x": np.arange(60) / 7, "y": np.arange(60) / 3, "shop": ["Yes", "No"] * 30})
    table = table.assign(label=["buy", "not", "buy"] * 20)
    table.to_csv(tmp_path / "a.csv", index=False)
    with pytest.raises(ValueError, match=r"numbers and categories \(x, y, shop\).*HistGradientBoosting.*`text=shop`"):
        prepare(str(tmp_path / "a.csv"))
    table.drop(columns="shop").to_parquet(tmp_path / "b.parquet")
    with pytest.raises(ValueError, match=r"numbers and categories \(x, y\).*the recipe series$"):
        prepare(str(tmp_path / "b.parquet"))
    table.assign(review=[f"a review {i}" for i in range(60)]).drop(columns="shop").to_csv(
        tmp_path / "c.csv", index=False
    )
    found = prepare(str(tmp_path / "c.csv"))
    assert found.encoder.columns == ("review",)
    assert "only column 'review' is read as text, not x, y" in found.notes


def test_a_group_is_in_one_split_and_is_no_input(tmp_path: Path) -> None:
    lines = [f"{i}.5,{i}.25,{i // 4},{['no', 'yes'][i % 2]}" for i in range(60)]
    (tmp_path / "rows.csv").write_text("\n".join(["x,y,subject,label", *lines]))
    source = open_series(str(tmp_path / "rows.csv"), "label", group="subject")
    assert source.reading_options()["features"] == ["x", "y"]
    found = prepare_labelled(source, inputs="values", group="subject", cache=tmp_path, progress=False)
    shown = {split: [int(row["input_values"][0][0]) for row in rows] for split, rows in found.splits.items()}
    assert {split: len({i // 4 for i in each}) for split, each in shown.items()} == {"train": 11, "valid": 2, "test": 2}
    assert [len(each) for each in shown.values()] == [44, 8, 8]


def test_separate_texts_each_have_half_of_the_length(tmp_path: Path) -> None:
    rows = [{"a": f"{i}" * 4, "b": "z" * 9, "label": i % 2} for i in range(10)]
    path = str(tmp_path / "a.jsonl")
    Path(path).write_text("".join(json.dumps(row) + "\n" for row in rows))
    joined = prepare_labelled(path, text=["a", "b"], length=9, cache=tmp_path, progress=False)
    for _ in range(2):  # encoded, then from the cache
        data = prepare_labelled(path, text=["a", "b"], length=9, separate=True, cache=tmp_path, progress=False)
        assert data.key != joined.key
        assert all(row[:4] == row[:1] * 4 and row[4:] == [*b"zzzz"] for row in data.splits["train"]["input_ids"])
        assert sum(data.cut.values()) == 10
        encoded = data.encoder([{"a": "", "b": "1234567"}, rows[0]])
        assert encoded["input_ids"][:] == [[256, *b"1234"], [*b"0000zzzz"]]
        assert encoded["token_type_ids"][:] == [[0] + [1] * 4, [0] * 4 + [1] * 4]
    with pytest.raises(ValueError, match=r"`separate` is for a pair of texts, got text 'a'"):
        prepare_labelled(path, text="a", separate=True, cache=tmp_path, progress=False)
