"""Splits written as files are read again as the same splits."""

from __future__ import annotations

import gzip
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from pyarrow import parquet
from scipy.io import wavfile
from typer.testing import CliRunner

from lagwise.cli.main import app
from lagwise.data import open_source
from lagwise.data.labelled_rows import read_labelled
from lagwise.data.options import DataOptions
from lagwise.tasks import TASKS

CLASSES = ["cat", "dog"]
ROWS = [(i, f'a {CLASSES[i % 2]}, "number" {i}\nof many', CLASSES[i % 2]) for i in range(60)]
SERIES = np.random.default_rng(0).normal(size=(60, 8)).round(3).astype(np.float32)


def csv_table(path: Path, rows: list[Any] = ROWS) -> None:
    cells = "".join(f'{i};"{text.replace(chr(34), chr(34) * 2)}";{label}\n' for i, text, label in rows)
    path.write_text(f"id;text;label\n{cells}")


def jsonl(path: Path) -> None:
    path.write_text("\n\n".join(json.dumps({"id": i, "text": text, "label": label}) for i, text, label in ROWS))


def packed(path: Path) -> None:
    csv_table(path.with_suffix(""))
    path.write_bytes(gzip.compress(path.with_suffix("").read_bytes()))
    path.with_suffix("").unlink()


def parquet_file(path: Path) -> None:
    parquet.write_table(
        pa.table({name: [row[i] for row in ROWS] for i, name in enumerate(("id", "text", "label"))}), path
    )


def texts(folder: Path) -> None:
    for i, text, label in ROWS:
        (folder / label).mkdir(parents=True, exist_ok=True)
        (folder / label / f"{i}.txt").write_text(text)


def two_tables(folder: Path) -> None:
    folder.mkdir()
    csv_table(folder / "train.csv", ROWS[:25])
    csv_table(folder / "more train.csv", ROWS[25:50])
    csv_table(folder / "test.csv", ROWS[50:])


def lines(path: Path) -> None:
    rows = "".join(
        f"{label},{','.join(map(str, values))}\n" for values, (_, _, label) in zip(SERIES, ROWS, strict=True)
    )
    path.write_text(f"label,{','.join(f't{i}' for i in range(8))}\n{rows}")


def recordings(folder: Path) -> None:
    for values, (i, _, label) in zip(SERIES, ROWS, strict=True):
        (folder / label).mkdir(parents=True, exist_ok=True)
        (folder / label / f"{i}.csv").write_text("x,y\n" + "".join(f"{v},{-v}\n" for v in values))


def sounds(folder: Path) -> None:
    for values, (i, _, label) in zip(SERIES, ROWS, strict=True):
        (folder / label).mkdir(parents=True, exist_ok=True)
        wavfile.write(folder / label / f"{i}.wav", 8000, values)


def npz(path: Path) -> None:
    np.savez(path, input_values=SERIES, label=np.array([label for _, _, label in ROWS]))


def ts(path: Path) -> None:
    rows = "".join(f"{','.join(map(str, v))}:{label}\n" for v, (_, _, label) in zip(SERIES, ROWS, strict=True))
    path.write_text(f"# a comment\n@problemName p\n@classLabel true cat dog\n@data\n# another\n{rows}")


def arff(path: Path) -> None:
    rows = "\n".join(f"{','.join(map(str, v))},{label}" for v, (_, _, label) in zip(SERIES, ROWS, strict=True))
    path.write_text(f"% a comment\n@relation r\n@attribute a numeric\n@DATA\n{rows}\n")


def contents(task: Any) -> dict[str, list[Any]]:
    """Inputs and labels of each split, in any order."""
    columns = ("input_values",) if task.inputs == "values" else ("text",)
    found = read_labelled(task.source, columns, "label", values=task.inputs == "values")
    assert found.label_names == ("cat", "dog")
    rows = {
        split: [rows.select_columns(list(found.columns))[i] for i in range(len(rows))]
        for split, rows in found.splits.items()
    }
    labels = {split: rows["__label__"][:] for split, rows in found.splits.items()}
    return {split: sorted(map(repr, zip(rows[split], labels[split], strict=True))) for split in rows}


@pytest.mark.sampled(2)
@pytest.mark.parametrize(
    ("name", "write", "written"),
    [
        ("rows.csv", csv_table, "test.csv"),
        ("rows.csv.gz", packed, "train.csv"),
        ("rows.jsonl", jsonl, "valid.jsonl"),
        ("rows.parquet", parquet_file, "train.parquet"),
        ("tables", two_tables, "train-2.csv"),
        ("texts", texts, "valid/dog"),
        ("lines.csv", lines, "test.csv"),
        ("recordings", recordings, "test/cat"),
        ("sounds", sounds, "train/cat"),
        ("rows.npz", npz, "train.parquet"),
        ("rows.ts", ts, "train.parquet"),
        ("rows.arff", arff, "train.parquet"),
    ],
)
def test_rows_are_in_the_same_splits(name: str, write: Callable[[Path], None], written: str, tmp_path: Path) -> None:
    write(tmp_path / name)
    inputs = "values" if write in (lines, recordings, sounds, npz, ts, arff) else "tokens"

    def opened(source: Path) -> Any:
        return TASKS["sequence_classification"](DataOptions(source=str(source)), inputs=inputs)

    task = opened(tmp_path / name)
    task.write_split(tmp_path / "split")
    assert (tmp_path / "split" / written).exists()
    again = opened(tmp_path / "split")
    assert again.source.split_names == ("train", "valid", "test")
    assert contents(again) == contents(task)
    assert all(contents(task).values())
    if write in (csv_table, two_tables):  # columns that the task does not read
        assert (tmp_path / "split" / written).read_text().startswith("id;text;label\n")
    if write is parquet_file:
        assert parquet.read_table(tmp_path / "split" / written).column_names == ["id", "text", "label"]
    with pytest.raises(FileExistsError, match="is not empty"):
        task.write_split(tmp_path / "split")


def running(folder: Path) -> None:
    folder.mkdir()
    for i in range(30):
        (folder / f"{i}.txt").write_text(f"text {i} " * 5)


@pytest.mark.parametrize(
    ("name", "write"),
    [
        ("text.txt", lambda path: path.write_text("".join(f"line {i}\n" for i in range(500)), newline="\r\n")),
        ("text.jsonl", jsonl),
        ("text.parquet", parquet_file),
        ("texts", running),
    ],
)
def test_running_text_is_in_the_same_splits(name: str, write: Callable[[Path], Any], tmp_path: Path) -> None:
    write(tmp_path / name)
    TASKS["language_modelling"](DataOptions(source=str(tmp_path / name))).write_split(tmp_path / "split")
    for split in ("train", "valid", "test"):
        expected = list(open_source(str(tmp_path / name)).documents(split))
        assert expected
        assert list(open_source(str(tmp_path / "split")).documents(split)) == expected


def test_train_writes_its_split_and_trains_the_same_from_it(tmp_path: Path) -> None:
    csv_table(tmp_path / "rows.csv")
    first = ["train", "--recipe", "classify", "--data", str(tmp_path / "rows.csv"), "model=linear"]
    result = CliRunner().invoke(app, [*first, "--out", str(tmp_path / "a"), "--split", str(tmp_path / "split")])
    assert result.exit_code == 0, result.output
    assert sorted(path.name for path in (tmp_path / "split").iterdir()) == ["test.csv", "train.csv", "valid.csv"]
    second = ["train", "--recipe", "classify", "--data", str(tmp_path / "split"), "model=linear"]
    assert CliRunner().invoke(app, [*second, "--out", str(tmp_path / "b")]).exit_code == 0
    scores = [json.loads((tmp_path / run / "first.json").read_text())["scores"] for run in ("a", "b")]
    assert scores[0] == scores[1]
    other = ["--out", str(tmp_path / "a"), "--split", str(tmp_path / "c")]
    assert isinstance(CliRunner().invoke(app, [*first, *other]).exception, FileExistsError)
    assert not (tmp_path / "c").exists()  # the training does not begin
    restarted = CliRunner().invoke(app, [*first, *other, "--resume", "auto"])
    assert restarted.exit_code == 0, restarted.output
    assert not (tmp_path / "c").exists()  # one had begun before
    refused = CliRunner().invoke(app, ["train", "--resume", str(tmp_path / "a"), "--split", str(tmp_path / "c")])
    assert refused.exit_code == 2


def test_a_task_that_does_not_write_its_split_says_so(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="does not write its split"):
        TASKS["associative_recall"](DataOptions()).write_split(tmp_path / "split")
    assert not (tmp_path / "split").exists()
