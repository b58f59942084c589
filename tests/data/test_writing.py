"""Splits and predictions as files: the splits are found there as they were made, and train the same model."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from people_files import CASES, CLASSES, TEXTS
from typer.testing import CliRunner

from lagwise.cli.main import app
from lagwise.data import open_rows, open_source
from lagwise.data.labelled_rows import read_labelled
from lagwise.data.labels import known_several
from lagwise.data.options import DataOptions
from lagwise.data.sound_files import read_sound
from lagwise.data.writing import rows_as_csv, write_sounds
from lagwise.tasks import TASKS
from lagwise.training import load_recipe, make_task

# Where a split of a person's files has one of its files or class folders.
WRITTEN = {
    "spreadsheet german": "test.csv",
    "pandas compressed": "train.tsv",
    "json lines of pairs": "valid.jsonl",
    "hub parquet with names of classes": "train.parquet",
    "tables by split": "test.csv",
    "class folders of texts": "valid/yes",
    "series in the lines of a table": "test.csv",
    "class folders of recordings": "test/low",
    "class folders of sounds": "train/low",
    "arrays of numpy": "train.parquet",
    "files of a series archive": "train.parquet",
}


def contents(task: Any) -> dict[str, list[Any]]:
    """Inputs and labels of each split, in any order."""
    values = task.inputs == "values"
    columns = ("input_values",) if values else tuple(task.text) if isinstance(task.text, list) else (task.text,)
    found = read_labelled(task.source, columns, task.label, values=values)
    return {
        split: sorted(repr([row[name] for name in (*columns, "__label__")]) for row in rows)
        for split, rows in found.splits.items()
    }


@pytest.mark.sampled(2)
@pytest.mark.parametrize("name", WRITTEN)
def test_rows_are_in_the_same_splits(name: str, tmp_path: Path) -> None:
    case = CASES[name]
    (tmp_path / "own").mkdir()
    source = tmp_path / "own" / case.write(tmp_path / "own")

    def opened(source: Path) -> Any:
        return make_task(load_recipe(case.recipe, [f"data.source={source}", *case.settings]))

    task = opened(source)
    task.write_split(tmp_path / "split")
    assert (tmp_path / "split" / WRITTEN[name]).exists()
    again = opened(tmp_path / "split")
    assert again.source.split_names == ("train", "valid", "test")
    assert contents(again) == contents(task)
    assert all(contents(task).values())
    if name == "spreadsheet german":  # columns that the task does not read
        assert (tmp_path / "split" / "test.csv").read_text().startswith("Nr.;Text;Länge;Urteil\n")
    with pytest.raises(FileExistsError, match="is not empty"):
        task.write_split(tmp_path / "split")


@pytest.mark.parametrize("name", ["text of windows", "json lines of documents compressed", "folder of books"])
def test_running_text_is_in_the_same_splits(name: str, tmp_path: Path) -> None:
    (tmp_path / "own").mkdir()
    source = tmp_path / "own" / CASES[name].write(tmp_path / "own")
    TASKS["language_modelling"](DataOptions(source=str(source))).write_split(tmp_path / "split")
    for split in ("train", "valid", "test"):
        expected = list(open_source(str(source)).documents(split))
        assert expected
        assert list(open_source(str(tmp_path / "split")).documents(split)) == expected


def test_train_writes_its_split_and_trains_the_same_from_it(tmp_path: Path) -> None:
    rows = zip(TEXTS, CLASSES, strict=True)
    (tmp_path / "rows.csv").write_text("text,label\n" + "".join(f'"{text}",{label}\n' for text, label in rows))
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


def test_lists_of_names_are_read_as_they_were(tmp_path: Path) -> None:
    """So that predictions of several labels can be scored; series are left out."""
    labels: list[list[str]] = [["a", 'b "x"'], [], ["ä, b"]]
    rows = [{"label": own, "series": [0.5], "image": b"x", "array": np.zeros(2)} for own in labels]
    (tmp_path / "rows.csv").write_text(rows_as_csv([*rows, {"label": ["a"], "other": 1}]))
    read = open_rows(str(tmp_path / "rows.csv")).read()["train"]
    assert read.column_names == ["label", "other"]
    assert known_several(read["label"][:], ("a", 'b "x"', "ä, b"), str) == [[1, 1, 0], [0, 0, 0], [0, 0, 1], [1, 0, 0]]


def test_sounds_of_like_names_are_all_written(tmp_path: Path) -> None:
    names = ["a.wav", "a.flac", "x/a.wav", "2024.01.wav", "2024.02.wav"]
    write_sounds({name: (np.full((3, 1), i / 8), 8000) for i, name in enumerate(names)}, tmp_path)
    written = ["a.wav.wav", "a.flac.wav", "x/a.wav", "2024.01.wav", "2024.02.wav"]
    for i, name in enumerate(written):
        rate, samples = read_sound((tmp_path / name).read_bytes(), tmp_path / name)
        assert rate == 8000
        np.testing.assert_array_equal(samples, np.full((3, 1), i / 8))
