"""GLUE's tasks from files: every layout, damaged files, and files of another task."""

from __future__ import annotations

import lzma
from pathlib import Path
from typing import Any

import datasets
import pytest
from glue_files import FILES, rows_of, write_lines, write_task

from lagwise.data import prepare_labelled, read_labelled
from lagwise.training import check_recipe, load_recipe
from lagwise_papers.data.published import LAYOUTS, open_glue

PAIR = ("sentence1", "sentence2")


def columns(task: str) -> tuple[str, ...]:
    return ("text",) if "text" in LAYOUTS[task].texts else PAIR


def texts_of(task: str, rows: list[list[str]]) -> list[tuple[str, ...]]:
    places = [i for i, field in enumerate(FILES[task][2]) if field == "TEXT"]
    return [tuple(row[i] for i in places) for row in rows]


@pytest.mark.parametrize("task", LAYOUTS)
def test_every_task_is_read_from_its_published_files(tmp_path: Path, task: str) -> None:
    folder = write_task(tmp_path / "all", task)
    write_lines(folder / "test.tsv", [["index", "sentence"], ["0", "no label here"]])
    source = open_glue(str(folder), task)
    assert source.split_names == ("train", "test")
    read = source.read()
    for split, seed in (("train", 0), ("test", 1)):
        rows = rows_of(task, 40 if split == "train" else 20, seed)
        assert list(zip(*(read[split][c] for c in columns(task)), strict=True)) == texts_of(task, rows)
        if task == "stsb":
            assert read[split]["label"][:] == pytest.approx([float(row[-1]) for row in rows])
        else:
            expected = {"mnli": ["neutral", "entailment"]}.get(task, list(LAYOUTS[task].classes or ()))
            expected = sorted(expected, key=lambda name: name.startswith("entail"))  # where they are of class 1
            assert [read[split].features["label"].int2str(i) for i in read[split]["label"]] == expected * (
                len(rows) // 2
            )
    again = open_glue(str(tmp_path / "all"), task)
    assert again.key() == source.key()
    labelled = read_labelled(again, columns(task), "label")
    assert {split: len(rows) for split, rows in labelled.splits.items()} == {"train": 36, "valid": 4, "test": 20}
    assert labelled.kind == ("regression" if task == "stsb" else "classification")


def test_variants_of_the_files(tmp_path: Path) -> None:
    rows = rows_of("sst2", 6)
    write_lines(tmp_path / "SST-2" / "train.tsv", [["sentence", "label"], *rows], end="\r\n")
    write_lines(tmp_path / "SST-2" / "dev.tsv", [["content", "label"], *rows[:2], [""], *rows[2:]])
    assert open_glue(str(tmp_path), "sst2").read()["test"]["text"][:] == [row[0] for row in rows]
    scores = [['A "man", he said.', "A man.", "4.75"], ["One.", "Two.", "0"]]
    for name in ("train.csv", "dev.csv"):
        write_lines(tmp_path / "STS-B" / name, scores)
    read = open_glue(str(tmp_path), "stsb").read(["sentence1", "label", "other"])["train"]
    assert read.to_dict() == {"sentence1": ['A "man", he said.', "One."], "label": [4.75, 0.0]}
    header, lines = FILES["mrpc"][1], rows_of("mrpc", 6)
    assert header is not None
    for name in ("train.tsv", "dev.tsv", "test.tsv"):  # as GLUE deals them out anew
        write_lines(tmp_path / "MRPC" / name, [header, *lines[: {"train.tsv": 6, "dev.tsv": 4}.get(name, 2)]])
    assert [len(rows) for rows in open_glue(str(tmp_path), "mrpc").read().values()] == [6, 4]
    (tmp_path / "MRPC" / "dev.tsv").unlink()
    assert [len(rows) for rows in open_glue(str(tmp_path), "mrpc").read().values()] == [6, 2]
    packed = tmp_path / "one.tsv.xz"
    packed.write_bytes(lzma.compress((tmp_path / "MRPC" / "train.tsv").read_bytes()))
    assert len(open_glue(str(packed), "mrpc").read()["train"]) == 6


def test_unlabelled_files_are_read_only_individually(tmp_path: Path) -> None:
    path = write_lines(tmp_path / "test.tsv", [["index", "sentence"], ["0", "What now?"]])
    for task in ("cola", "sst2"):
        assert open_glue(str(path), task).read()["train"].to_dict() == {"text": ["What now?"]}
    path.rename(tmp_path / "dev.tsv")
    write_lines(tmp_path / "train.tsv", [["sentence", "label"], ["Good.", "1"]])
    with pytest.raises(ValueError, match=r"dev\.tsv has no labels"):
        open_glue(str(tmp_path), "sst2").read()


@pytest.mark.parametrize(
    ("task", "lines", "message"),
    [
        ("sst2", [["sentence", "label"], ["Good.", "1"], ["Bad."]], r"line 3: 1 fields, not 2"),
        ("sst2", [["sentence", "label"], ["Good\tfilm.", "1"]], r"line 2: 3 fields, not 2"),
        ("sst2", [["sentence", "label"], ["Good.", "2"]], r"line 2: the label '2' is none of 0, 1, negative, positive"),
        ("sst2", [["sentence", "label"], ["", "1"]], r"line 2: 'text' is empty"),
        (
            "sst2",
            [["words", "label"], ["Good.", "1"]],
            r"line 1: sst2 needs the columns 'sentence', 'label', got 'words', 'label'",
        ),
        ("rte", [["sentence1", "sentence2", "label"], ["a", "b", "entailm"]], r"line 2: the label 'entailm'"),
        ("cola", [["index", "sentence1", "sentence2", "label"]], r"line 1: the label 'sentence1' is none of"),
        ("cola", [["gj04", "1", "", "Good."], ["gj04", "1", "Good."]], r"line 2: 3 fields, not 4"),
        ("stsb", [["a", "b", "4.5"], ["a", "b", "5.5"]], r"line 2: the score '5.5' is not a number from 0 to 5"),
        ("stsb", [["a", "b", "c"]], r"line 1: the score 'c' is not a number"),
        ("stsb", [["a", "b"]], r"line 1: stsb needs the columns 'sentence1', 'sentence2', 'score', got 'a', 'b'"),
    ],
)
def test_damaged_files_are_refused_with_the_line(tmp_path: Path, task: str, lines: list, message: str) -> None:
    path = write_lines(tmp_path / "a.tsv", lines)
    with pytest.raises(ValueError, match=rf"a\.tsv, {message}"):
        open_glue(str(path), task).read()


def test_broken_lines_of_qqp_are_skipped(tmp_path: Path) -> None:
    """The published training file has a few."""
    header, rows = FILES["qqp"][1], rows_of("qqp", 12)
    assert header is not None
    broken = [rows[0][:4], [*rows[1][:3], "", *rows[1][4:]]]
    path = write_lines(tmp_path / "a.tsv", [header, rows[2], *broken, *rows[3:]])
    with pytest.warns(UserWarning, match=r"2 line\(s\) without a text are left out, first 3"):
        assert len(open_glue(str(path), "qqp").read()["train"]) == 10
    write_lines(path, [header, *broken * 6])
    with pytest.raises(ValueError, match=r"line 12: 4 fields, not 6"):
        open_glue(str(path), "qqp").read()


def test_missing_files(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError, match=r"no file or folder .*hub:nyu-mll/glue:cola"):
        open_glue(str(tmp_path / "none"), "cola")
    with pytest.raises(ValueError, match=r"no files of GLUE's mnli in .*: train and dev_matched .* a folder 'mnli'"):
        open_glue(str(write_task(tmp_path, "rte")), "mnli")
    with pytest.raises(ValueError, match=r"unknown data\.format: 'colla'; did you mean 'cola'"):
        open_glue(str(tmp_path), "colla")
    (tmp_path / "a.json").write_text("{}")
    with pytest.raises(ValueError, match=r"a\.json' is not a file of GLUE"):
        open_glue(str(tmp_path / "a.json"), "cola")
    write_lines(tmp_path / "rte" / "dev.txt", [["a"]])
    with pytest.raises(ValueError, match=r"both dev\.tsv and dev\.txt"):
        open_glue(str(tmp_path), "rte")


def test_the_hubs_columns_and_splits(tmp_path: Path) -> None:
    """A folder stands in for the hub, since `datasets` loads both by name."""
    for split, label in (("train", 1), ("validation", 0), ("test", -1)):
        rows: dict[str, list[Any]] = {"sentence": [f"a {split}", f"b {split}"], "label": [label] * 2, "idx": [0, 1]}
        made = datasets.Dataset.from_dict(rows)
        if split != "validation":  # where numbers stand as they are
            made = made.cast_column("label", datasets.ClassLabel(names=["negative", "positive"]))
        made.to_parquet(str(tmp_path / f"{split}-00000-of-00001.parquet"))
    source = open_glue(f"hub:{tmp_path}", "sst2")
    read = source.read()
    assert {split: rows.to_dict() for split, rows in read.items()} == {
        "train": {"text": ["a train", "b train"], "label": [1, 1]},
        "test": {"text": ["a validation", "b validation"], "label": [0, 0]},
    }
    assert read["train"].features["label"].names == ["negative", "positive"]
    assert source.key() == open_glue(f"hub:{tmp_path}", "sst2").key()
    with pytest.raises(ValueError, match=r"has no column 'sentence1' \(it has sentence, label, idx\)"):
        open_glue(f"hub:{tmp_path}", "rte").read()


def test_classes_have_the_tasks_names_and_order(tmp_path: Path) -> None:
    """The class whose F1 is the metric must be the second, regardless of the alphabet."""
    data = prepare_labelled(open_glue(str(write_task(tmp_path, "mrpc")), "mrpc"), text=PAIR, length=32, progress=False)
    assert data.label_names == ("not_equivalent", "equivalent")
    other = open_glue(str(tmp_path / "mrpc"), "mrpc").key()
    assert other != open_glue(str(write_task(tmp_path, "qqp")), "qqp").key()


METRICS = {"cola": "matthews", "mrpc": "f1", "qqp": "f1", "stsb": "pearson"}
TRAINING_ROWS = {
    "cola": 8551,
    "sst2": 67349,
    "mrpc": 4076,
    "rte": 2490,
    "wnli": 635,
    "stsb": 5749,
    "mnli": 392702,
    "qnli": 104743,
    "qqp": 363849,
}


@pytest.mark.parametrize("task", LAYOUTS)
def test_every_task_of_glue_has_a_recipe(task: str, tmp_path: Path) -> None:
    recipe, first = load_recipe(f"glue-{task}"), load_recipe("glue-cola")
    assert recipe.data.format == task
    assert recipe.task["metric"] == METRICS.get(task, "accuracy")
    pooling = {"pooling": "pair"} if isinstance(recipe.task.get("text"), list) else {}
    assert recipe.model == first.model | pooling
    steps = recipe.training.epochs * 0.9 * TRAINING_ROWS[task] / recipe.training.batch_size
    assert recipe.training.warmup_steps == pytest.approx(0.06 * steps, abs=1)
    same = ("batch_size", "learning_rate", "schedule", "weight_decay", "select", "clip")
    assert [getattr(recipe.training, name) for name in same] == [getattr(first.training, name) for name in same]
    recipe.data.source = str(write_task(tmp_path, task))
    assert check_recipe(recipe).open(progress=False).headline.name == recipe.task["metric"]
