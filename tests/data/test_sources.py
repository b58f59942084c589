"""Sources of text."""

from __future__ import annotations

import hashlib
import json
import lzma
import os
import threading
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pytest
from datasets import Dataset, DatasetDict
from scipy.io import wavfile
from typer.testing import CliRunner

from lagwise.cli.main import app
from lagwise.data import find as find_module
from lagwise.data import load_tokenizer, open_rows, open_source, prepare_labelled, reading
from lagwise.data.tokens import document_parts
from lagwise.models import LagwiseConfig, LagwiseForCausalLM
from lagwise.models.loading import save_tokenizer
from lagwise.runs import evaluate_run
from lagwise.training import load_recipe, train

TEXT = "A line of text, with ünïcödé in it.\n" * 200


def split_texts(name: str) -> dict[str, str]:
    source = open_source(name)
    return {split: "".join(source.documents(split)) for split in ("train", "valid", "test")}


class TestSources:
    def test_a_text_file_is_split_at_lines_without_loss(self, tmp_path: Path) -> None:
        (tmp_path / "a.txt").write_text("".join(f"line {i}\n" for i in range(1000)))
        parts = split_texts(str(tmp_path / "a.txt"))
        assert parts["train"] + parts["valid"] + parts["test"] == (tmp_path / "a.txt").read_text()
        assert 0.04 < len(parts["valid"]) / len(parts["train"]) < 0.07

    @pytest.mark.parametrize("suffix", [".jsonl", ".parquet", ".jsonl.xz"])
    def test_records_are_documents(self, tmp_path: Path, suffix: str) -> None:
        documents = [f"document {i}" for i in range(100)]
        path = tmp_path / f"a{suffix}"
        if suffix == ".parquet":
            from pyarrow import parquet, table

            parquet.write_table(table({"text": documents}), path)
        else:
            lines = "\n".join(json.dumps({"text": d}) for d in documents)
            path.write_bytes(lzma.compress(lines.encode()) if suffix.endswith("xz") else lines.encode())
        source = open_source(str(path))
        found = [d for split in ("train", "valid", "test") for d in source.documents(split)]
        assert found == documents

    def test_file_names_determine_the_splits_of_a_folder(self, tmp_path: Path) -> None:
        for name in ("my-train", "my.val", "my_test"):
            (tmp_path / f"{name}.txt").write_text(name)
        assert split_texts(str(tmp_path)) == {"train": "my-train", "valid": "my.val", "test": "my_test"}

    def test_a_text_without_lines_is_split_at_spaces(self, tmp_path: Path) -> None:
        text = " ".join(f"word{i}" for i in range(5000))
        (tmp_path / "a.txt").write_text(text)
        parts = split_texts(str(tmp_path / "a.txt"))
        assert parts["train"] + parts["valid"] + parts["test"] == text
        assert parts["train"].endswith(" ")
        assert 0.04 < len(parts["test"]) / len(text) < 0.06

    def test_few_records_are_split_individually(self, tmp_path: Path) -> None:
        records = ["a" * 1000, "b" * 1000]
        (tmp_path / "a.jsonl").write_text("\n".join(json.dumps({"text": r}) for r in records) + "\n\n")
        source = open_source(str(tmp_path / "a.jsonl"))
        assert [sorted(set(d)) for d in source.documents("train")] == [["a"], ["b"]]
        assert [len(d) for d in source.documents("test")] == [50, 50]

    def test_folders_may_name_the_splits(self, tmp_path: Path) -> None:
        for split in ("train", "test"):
            (tmp_path / split).mkdir()
            (tmp_path / split / "0.txt").write_text(split)
        assert split_texts(str(tmp_path)) == {"train": "train", "valid": "test", "test": "test"}
        (tmp_path / "stray.txt").write_text("?")
        with pytest.raises(ValueError, match=r"stray\.txt"):
            open_source(str(tmp_path))

    @pytest.mark.parametrize("names", [("test/a", "test/b", "test/c"), ("valid", "test"), ("my test data",)])
    def test_files_named_as_held_out_are_not_trained_on(self, tmp_path: Path, names: tuple[str, ...]) -> None:
        for name in names:
            (tmp_path / name).parent.mkdir(exist_ok=True)
            (tmp_path / f"{name}.txt").write_text(name)
        with pytest.raises(ValueError, match=r"has no file to train on, only .*test by the names in it"):
            open_source(str(tmp_path))
        (tmp_path / "other.txt").write_text("other")
        with pytest.raises(ValueError, match=r"say which files are train, valid and test.*'other\.txt' does not"):
            open_source(str(tmp_path))

    def test_the_standard_library(self) -> None:
        source = open_source("stdlib")
        files = [f for split in source.files.values() for f in split]
        assert len(files) == len(set(files))
        sizes = {split: sum(f.stat().st_size for f in files) for split, files in source.files.items()}
        assert sizes["train"] > 4e6
        assert min(sizes.values()) > 2e5
        assert not any("site-packages" in f.parts for f in files)

    def test_the_key_is_of_the_content(self, tmp_path: Path) -> None:
        for name, text in (("a.txt", TEXT), ("b.txt", TEXT + "!")):
            (tmp_path / name).write_text(text)
        (tmp_path / "sub").mkdir()
        (tmp_path / "sub" / "a.txt").write_text(TEXT)
        one, other, moved = (
            open_source(str(p)).key() for p in (tmp_path / "a.txt", tmp_path / "b.txt", tmp_path / "sub/a.txt")
        )
        assert one == moved
        assert one != other

    def test_hub_data_sets_by_name(self, tmp_path: Path) -> None:
        """A folder stands in for the hub, since `datasets` loads both by name."""
        for split, count in (("train", 40), ("test", 6)):
            lines = "".join(json.dumps({"text": f"{split} {i}"}) + "\n" for i in range(count))
            (tmp_path / f"{split}.jsonl").write_text(lines)
        source = open_source(f"hub:{tmp_path}")
        assert list(source.documents("train")) == [f"train {i}" for i in range(40)]
        assert list(source.documents("valid")) == list(source.documents("test")) == [f"test {i}" for i in range(6)]
        assert source.key() == open_source(f"hub:{tmp_path}").key()
        with pytest.raises(ValueError, match="cannot load data set"):
            open_source(f"hub:{tmp_path}/nothing")

    @pytest.mark.parametrize(
        ("name", "content", "message"),
        [
            ("empty.txt", b"", "is empty"),
            ("binary.txt", b"ELF\0\1\2", "looks binary"),
            ("latin.txt", "größe".encode("latin1"), "not UTF-8.*byte 2.*iconv"),
            ("cut.txt.xz", lzma.compress(TEXT.encode())[:60], "truncated"),
            ("bad.jsonl", b'{"text": "fine"}\n{"txt": 1}\n', "line 2"),
            ("bad2.jsonl", b'{"text": 5}\n', "must be a string"),
            ("surrogate.jsonl", b'{"text": "\\ud800"}\n', "line 1.*Unicode"),
            ("bad.parquet", b"PAR1 not really", "parquet"),
        ],
    )
    def test_errors_name_the_file_and_the_problem(
        self, tmp_path: Path, name: str, content: bytes, message: str
    ) -> None:
        (tmp_path / name).write_bytes(content)
        with pytest.raises(ValueError, match=message) as error:
            split_texts(str(tmp_path / name))
        assert name in str(error.value)

    @pytest.mark.parametrize("name", ["bomb.txt.xz", "bomb.jsonl.xz"])
    def test_a_document_too_large_for_memory_is_refused(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str
    ) -> None:
        """As a decompression bomb is."""
        monkeypatch.setattr(reading, "memory", lambda: 8 * 10**6)
        (tmp_path / name).write_bytes(lzma.compress(b"a" * 5 * 10**6, preset=0))
        assert (tmp_path / name).stat().st_size < 10**5
        with pytest.raises(ValueError, match=r"holds over .* GB of text"):
            split_texts(str(tmp_path / name))

    def test_files_larger_than_memory_are_read_by_parts(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        """Many documents, and also one text in a file of its own, where its parts are asked for."""
        monkeypatch.setattr(reading, "memory", lambda: 8 * 10**6)
        monkeypatch.setattr(reading, "_CHUNK_BYTES", 10**5)
        line = b'{"text": "' + b"a" * 10**5 + b'"}\n'
        (tmp_path / "a.jsonl.xz").write_bytes(lzma.compress(line * 50, preset=0))
        assert sum(map(len, split_texts(str(tmp_path / "a.jsonl.xz")).values())) == 50 * 10**5
        (tmp_path / "b.txt").write_bytes(b"some words\n" * 10**6)
        source = open_source(str(tmp_path / "b.txt"))
        (parts,) = source.document_parts("train")
        assert max(map(len, parts)) <= 10**5


def test_data_sets_are_sources_themselves_and_saved(tmp_path: Path) -> None:
    rows = Dataset.from_dict({"text": [f"row {i}" for i in range(40)], "label": ["a", "b"] * 20})
    rows.save_to_disk(tmp_path / "one")
    DatasetDict(train=rows, validation=rows.select([1]), test=rows.select([2, 3])).save_to_disk(tmp_path / "two")
    for source in (rows, str(tmp_path / "one")):
        assert [len(list(open_source(source).documents(split))) for split in ("train", "valid", "test")] == [36, 2, 2]
        assert open_rows(source).read()["train"]["label"][:] == rows["label"][:]
        assert prepare_labelled(source, cache=tmp_path, progress=False).label_names == ("a", "b")
    assert open_rows(str(tmp_path / "two")).split_names == ("train", "valid", "test")
    assert list(open_source(str(tmp_path / "two")).documents("test")) == ["row 2", "row 3"]
    with pytest.raises(ValueError, match="or a table of pandas, polars or pyarrow, got list"):
        open_rows([1])  # type: ignore[arg-type]


def test_a_json_array_is_read_as_lines_are(tmp_path: Path) -> None:
    records = [{"text": f"ä {i}", "label": i % 2} for i in range(40)]
    (tmp_path / "lines.jsonl").write_text("".join(json.dumps(record) + "\n" for record in records))
    wanted = open_rows(str(tmp_path / "lines.jsonl")).read()["train"][:]
    for name, indent in (("a.jsonl", None), ("a.json", 1)):
        (tmp_path / name).write_text(json.dumps(records, indent=indent))
        source = open_rows(str(tmp_path / name))
        assert source.read()["train"][:] == wanted
        assert [*map("".join, document_parts(tmp_path / name))] == wanted["text"]
    for text, message in (("[1]", "element 1 of the array is not an object but int"), ("[{", "not a JSON array")):
        (tmp_path / "a.json").write_text(text)
        with pytest.raises(ValueError, match=message):
            open_rows(str(tmp_path / "a.json")).read()


def test_a_description_in_json_beside_texts_is_no_text(tmp_path: Path) -> None:
    (tmp_path / "titles.json").write_text('["a title"]')
    (tmp_path / "a.txt").write_text(TEXT)
    source = open_source(str(tmp_path))
    assert {path.name for files in source.files.values() for path in files} == {"a.txt"}
    assert "1 .json" in source.notes[0]


def test_rows_of_chats_name_the_library_that_learns_them(tmp_path: Path) -> None:
    (tmp_path / "a.jsonl").write_text(json.dumps({"messages": [{"role": "user", "content": "x"}]}) + "\n")
    with pytest.raises(ValueError, match="'messages' are learned with trl"):
        list(open_source(str(tmp_path / "a.jsonl")).documents("train"))
    with pytest.raises(ValueError, match="'messages' are learned with trl"):
        prepare_labelled(str(tmp_path / "a.jsonl"), cache=tmp_path, progress=False)


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="needs named pipes")
def test_a_pipe_is_read_once(tmp_path: Path) -> None:
    for name, text, columns in (("a", "text,label\nx,y\n", ["text", "label"]), ("b", '{"text": "x"}\n', ["text"])):
        pipe = tmp_path / name
        os.mkfifo(pipe)
        threading.Thread(target=pipe.write_text, args=(text,), daemon=True).start()
        assert open_rows(str(pipe)).read()["train"].column_names == columns
        assert open_rows(str(pipe)).read()["train"]["text"] == ["x"]


class Streamed:
    """A table with Arrow's interface, as those of polars, whose strings are views."""

    def __init__(self, rows: dict[str, list[str]]):
        views = {name: pa.array(cells, pa.string_view()) for name, cells in rows.items()}
        self.__arrow_c_stream__ = pa.table(views).__arrow_c_stream__


@pytest.mark.parametrize("made", [pd.DataFrame, pa.table, Streamed])
def test_tables_in_memory_are_sources(made: Any, tmp_path: Path) -> None:
    rows = {"text": [f"row {i}" for i in range(40)], "label": ["a", "b"] * 20}
    assert prepare_labelled(made(rows), cache=tmp_path, progress=False).label_names == ("a", "b")
    assert open_rows(made(rows)).key() == open_rows(made(rows)).key()
    assert open_rows(made(rows)).read()["train"].to_dict() == rows
    if made is pd.DataFrame:
        table = made(rows).astype({"label": "category"}).set_index("text", drop=False)
        assert open_rows(table).read()["train"].to_dict() == rows


def test_a_training_and_an_evaluation_hash_each_file_of_the_data_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for i in range(20):
        file = tmp_path / "data" / ["high", "low"][i % 2] / f"{i}.wav"
        file.parent.mkdir(exist_ok=True, parents=True)
        wavfile.write(file, 8000, (9999 * np.sin(np.arange(64) * (0.2 + i % 2 + i / 999))).astype(np.int16))
    monkeypatch.setattr(find_module, "_SETTLED", -1)
    hashed: Counter[str] = Counter()
    original = hashlib.file_digest

    def counted(file: Any, *options: Any) -> Any:
        hashed[Path(file.name).relative_to(tmp_path).parts[0] if "/data/" in file.name else ""] += 1
        return original(file, *options)

    monkeypatch.setattr(hashlib, "file_digest", counted)
    recipe = load_recipe("signal", [f"data.source={tmp_path / 'data'}", "model=linear", "training.report_to=none"])
    train(recipe, tmp_path / "run", progress=False)
    assert hashed["data"] == 20
    find_module._digest.cache_clear()  # as in another process
    evaluate_run(tmp_path / "run", progress=False)
    assert hashed["data"] == 40


@pytest.mark.parametrize("encoding", ["utf-16", "utf-32"])
def test_a_byte_order_mark_tells_the_encoding(encoding: str, tmp_path: Path) -> None:
    assert reading.decoded("größe".encode(encoding), Path("a.txt")) == "größe"
    path = tmp_path / "a.jsonl"
    path.write_bytes('{"text": "größe"}\n{"text": "b"}\n'.encode(encoding))
    assert open_rows(str(path)).read()["train"].to_dict() == {"text": ["größe", "b"]}
    with pytest.raises(ValueError, match=f"is {encoding.upper()}, not UTF-8; convert it"):
        [*map("".join, document_parts(path))]
    with pytest.raises(ValueError, match="is not valid UTF"):
        reading.decoded("größe".encode(encoding)[:-1], Path("a.txt"))


@pytest.mark.parametrize("command", ["generate", "predict"])
def test_standard_input_that_is_not_utf8(command: str, tmp_path: Path) -> None:
    run = tmp_path / "run"
    LagwiseForCausalLM(LagwiseConfig(vocab_size=258, hidden_size=8, num_hidden_layers=1)).save_pretrained(run)
    save_tokenizer(load_tokenizer("bytes"), run, None)
    (run / "recipe.yaml").write_text(load_recipe("tnn-lm").to_yaml())
    options = ["--prompt-file", "-"] if command == "generate" else []
    result = CliRunner().invoke(app, [command, str(run), *options], input="größe\n".encode("latin1"))
    assert isinstance(result.exception, ValueError)
    assert str(result.exception).startswith("standard input is not UTF-8 (byte 2 is 0xf6)")
    assert str(result.exception).endswith("for example with 'iconv -f latin1 -t utf-8'")
