"""Tables of rows, in files of every kind."""

from __future__ import annotations

import json
import lzma
import re
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pytest
from pyarrow import parquet

from lagwise.data import open_rows

TABLE = {"text": ["plain", 'a "quoted" word', "two\nlines, and a comma", "größe → 日本"], "label": ["b", "a", "b", "a"]}


def write(path: Path, table: dict[str, list]) -> Path:
    frame = pd.DataFrame(table)
    kind = path.suffixes[0]
    if kind in (".csv", ".tsv"):
        frame.to_csv(path, index=False, sep="\t" if kind == ".tsv" else ",")
    elif kind == ".jsonl":
        path.write_text("".join(json.dumps(row) + "\n" for row in frame.to_dict("records")))
    elif kind == ".parquet":
        frame.to_parquet(path)
    else:
        np.savez(path, **{name: np.array(values) for name, values in table.items()})
    return path


def read(path: Path | str, columns: list[str] | None = None) -> dict[str, Any]:
    splits = open_rows(str(path)).read(columns)
    assert list(splits) == ["train"]
    return splits["train"].to_dict()  # pyrefly: ignore[bad-return]


class TestFiles:
    @pytest.mark.parametrize("suffix", [".csv", ".tsv", ".jsonl", ".parquet", ".npz"])
    def test_every_format_gives_the_same_rows(self, tmp_path: Path, suffix: str) -> None:
        path = write(tmp_path / f"a{suffix}", TABLE)
        assert read(path) == TABLE
        assert read(path, ["label", "nothing"]) == {"label": TABLE["label"]}
        packed = tmp_path / f"b{suffix}.xz"
        packed.write_bytes(lzma.compress(path.read_bytes()))
        assert read(packed) == TABLE

    def test_a_file_is_opened_without_being_read(self, tmp_path: Path) -> None:
        (tmp_path / "a.parquet").write_text("no parquet")
        source = open_rows(str(tmp_path / "a.parquet"))
        assert source.split_names == ("train",)
        with pytest.raises(ValueError, match=r"a\.parquet is not a parquet file"):
            source.read()

    def test_csv_as_spreadsheets_write_it(self, tmp_path: Path) -> None:
        path = tmp_path / "a.csv"
        path.write_bytes('\ufefftext; label\r\nja, gut;1\r\n\r\n"a\r\nb";0\r\n'.encode())
        assert read(path) == {"text": ["ja, gut", "a\r\nb"], "label": ["1", "0"]}
        path.write_text(",text\n0,a\n")
        assert read(path) == {"Unnamed: 0": ["0"], "text": ["a"]}

    def test_quotes_are_ordinary_characters_in_tsv(self, tmp_path: Path) -> None:
        """In GLUE an opening quote in the first field would otherwise consume the rest of the row."""
        (tmp_path / "a.tsv").write_text('text\tlabel\n"What" he said\t1\nplain\t0\n"open\t1\nand closed"\t0\n')
        expected = ['"What" he said', "plain", '"open', 'and closed"']
        assert read(tmp_path / "a.tsv") == {"text": expected, "label": ["1", "0", "1", "0"]}
        (tmp_path / "bars.tsv").write_text("text|label\na, b|1\n")  # named as one with tabs
        assert read(tmp_path / "bars.tsv") == {"text": ["a, b"], "label": ["1"]}
        (tmp_path / "one.tsv").write_text("text\na, b|c\n")
        assert read(tmp_path / "one.tsv") == {"text": ["a, b|c"]}

    @pytest.mark.parametrize(
        ("name", "content", "message"),
        [
            ("a.csv", "text,label\nfine,1\na,b,c\n", r"a\.csv, line 3: 3 fields, but the header has 2; .* quoted"),
            ("a.csv", 'text,label\n"two\nlines",1\nshort\n', "line 4: 1 fields, but the header has 2"),
            ("a.csv", 'text,label\nfine,1\n"never closed,1\n', "line 3: unexpected end of data; check the quotes"),
            ("a.csv", "text,text\na,b\n", "column name.* more than once: 'text'"),
            ("a.tsv", "text\tlabel\na b\n", "line 2: 1 fields.*a tab"),
            ("a.csv", b"text\ngr\xf6\xdfe\n", "not UTF-8"),
            ("a.csv.xz", lzma.compress(b"text\n" + bytes(range(1, 250)) * 9)[:80], "truncated"),
            ("a.jsonl", '{"text": "a"}\n\n{"text": \n', r"a\.jsonl, line 3: not a JSON object"),
            ("a.jsonl", '{"text": "a"}\n[1]\n', "line 2: not a JSON object but list"),
            ("a.jsonl", '{"y": 1}\n{"y": "b"}\n', r"'y' has mixed types: int \(line 1\), str \(line 2\)"),
            ("a.jsonl", '{"y": "a"}\n{"y": "\\ud800"}\n', "line 2: 'y' cannot be read"),
            ("a.parquet", "PAR1", "not a parquet file"),
            ("a.npz", "no zip", r"a\.npz is not an \.npz file"),
        ],
    )
    def test_errors_name_the_file_and_line(self, tmp_path: Path, name: str, content: str | bytes, message: str) -> None:
        path = tmp_path / name
        path.write_bytes(content if isinstance(content, bytes) else content.encode())
        with pytest.raises(ValueError, match=message) as error:
            read(path)
        assert name in str(error.value)
        assert "\n" not in str(error.value)

    def test_errors_in_unused_columns_are_ignored(self, tmp_path: Path) -> None:
        (tmp_path / "a.jsonl").write_text('{"text": "a", "id": 1}\n{"text": "b", "id": "x"}\n')
        assert read(tmp_path / "a.jsonl", ["text"]) == {"text": ["a", "b"]}

    def test_arrays_become_columns(self, tmp_path: Path) -> None:
        values = np.arange(24, dtype=np.float32).reshape(2, 4, 3)
        np.savez(tmp_path / "a.npz", input_values=values, label=[1, 0])
        rows = open_rows(str(tmp_path / "a.npz")).read()["train"]
        assert np.array_equal(rows["input_values"][:], values)
        assert rows["label"][:] == [1, 0]
        np.savez(tmp_path / "b.npz", input_values=values, label=[1, 0, 1])
        with pytest.raises(ValueError, match=r"the same number of rows.*input_values \(2, 4, 3\), label \(3,\)"):
            read(tmp_path / "b.npz")
        np.savez(tmp_path / "c.npz", input_values=np.array([[1.0], [1.0, 2.0]], dtype=object))
        with pytest.raises(ValueError, match=r"'input_values' holds Python objects.*\.parquet"):
            read(tmp_path / "c.npz")
        np.savez(tmp_path / "d.npz", label=np.array(["ä".encode(), b"b"]))
        assert read(tmp_path / "d.npz") == {"label": ["ä", "b"]}
        for wrong in (np.array([1j, 2]), np.zeros(2, "i4,i4"), np.array([b"\xff"])):
            np.savez(tmp_path / "e.npz", label=wrong)
            with pytest.raises(ValueError, match=rf"e\.npz: array 'label' of {re.escape(str(wrong.dtype))} cannot be"):
                read(tmp_path / "e.npz")

    def test_columns_of_one_name_are_refused(self, tmp_path: Path) -> None:
        parquet.write_table(pa.Table.from_arrays([pa.array(["a"])] * 2, names=["x", "x"]), tmp_path / "a.parquet")
        with pytest.raises(ValueError, match=r"a\.parquet has 1 column name\(s\) more than once: 'x'"):
            read(tmp_path / "a.parquet")

    def test_categories_are_read_as_names(self, tmp_path: Path) -> None:
        parquet.write_table(pa.table({"label": pa.array(["b", "a"]).dictionary_encode()}), tmp_path / "a.parquet")
        assert read(tmp_path / "a.parquet") == {"label": ["b", "a"]}

    def test_missing_files(self, tmp_path: Path) -> None:
        with pytest.raises(FileNotFoundError, match="hub:nowhere"):
            open_rows("nowhere")
        for path in (tmp_path / "new.csv", "new.csv", "~/new", "./new"):
            with pytest.raises(FileNotFoundError, match=r"there is no file or folder .*new[^(]*$"):
                open_rows(str(path))
        with pytest.raises(ValueError, match=r"no \.csv.* file in folder"):
            open_rows(str(tmp_path))
        (tmp_path / "a.txt").write_text("text")
        with pytest.raises(ValueError, match=r"not a table of rows.*\.csv"):
            open_rows(str(tmp_path / "a.txt"))
        (tmp_path / "a.csv").write_text("")
        with pytest.raises(ValueError, match="is empty"):
            open_rows(str(tmp_path / "a.csv"))


class TestFolders:
    def test_file_names_determine_splits(self, tmp_path: Path) -> None:
        for name in ("train-0.csv", "train-1.csv", "dev.csv"):
            write(tmp_path / name, {"text": [name], "label": ["a"]})
        source = open_rows(str(tmp_path))
        assert source.split_names == ("train", "valid")
        read = {split: rows["text"][:] for split, rows in source.read().items()}
        assert read == {"train": ["train-0.csv", "train-1.csv"], "valid": ["dev.csv"]}
        write(tmp_path / "more.csv", TABLE)
        with pytest.raises(ValueError, match=r"more\.csv' does not"):
            open_rows(str(tmp_path))

    def test_without_split_words_all_files_are_one_table(self, tmp_path: Path) -> None:
        write(tmp_path / "a.csv", {"text": ["1"]})
        write(tmp_path / "b.csv", {"text": ["2"]})
        assert read(tmp_path) == {"text": ["1", "2"]}
        write(tmp_path / "c.csv", {"txt": ["3"]})
        with pytest.raises(ValueError, match=r"different columns: a\.csv has text; c\.csv has txt"):
            read(tmp_path)

    def test_the_key_is_of_content_and_splits(self, tmp_path: Path) -> None:
        prints = set()
        for folder, names in (("a", ("train", "test")), ("b", ("train", "valid")), ("c", ("train", "test"))):
            (tmp_path / folder).mkdir()
            for name in names:
                write(tmp_path / folder / f"{name}.csv", {"text": ["1"]})
            prints.add(open_rows(str(tmp_path / folder)).key())
        assert len(prints) == 2
        write(tmp_path / "a" / "test.csv", {"text": ["2"]})
        assert open_rows(str(tmp_path / "a")).key() not in prints
