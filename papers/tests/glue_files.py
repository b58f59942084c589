"""Small files of GLUE's tasks in their published formats, with random words as texts."""

from __future__ import annotations

import csv
import random
from pathlib import Path

_WORDS = ["good", "bad", '"quoted"', "film,", "of", "a", "long", "story", "never", "seen", "again"]
_NUMBERS = {"0": "0", "1": "1"}
_ENTAILED = {"0": "not_entailment", "1": "entailment"}

# For each task its files, their headers (None for no header), and the labels as they stand there. TEXT, LABEL and
# SCORE are filled in; other fields stand as they are.
FILES = {
    "cola": (("train.tsv", "dev.tsv"), None, ["gj04", "LABEL", "", "TEXT"], _NUMBERS),
    "sst2": (("train.tsv", "dev.tsv"), ["sentence", "label"], ["TEXT", "LABEL"], _NUMBERS),
    "mrpc": (
        ("msr_paraphrase_train.txt", "msr_paraphrase_test.txt"),
        ["Quality", "#1 ID", "#2 ID", "#1 String", "#2 String"],
        ["LABEL", "7", "8", "TEXT", "TEXT"],
        _NUMBERS,
    ),
    "rte": (
        ("train.tsv", "dev.tsv"),
        ["index", "sentence1", "sentence2", "label"],
        ["7", "TEXT", "TEXT", "LABEL"],
        _ENTAILED,
    ),
    "wnli": (
        ("train.tsv", "dev.tsv"),
        ["index", "sentence1", "sentence2", "label"],
        ["7", "TEXT", "TEXT", "LABEL"],
        _NUMBERS,
    ),
    "stsb": (
        ("train.tsv", "dev.tsv"),
        ["index", "genre", "sentence1", "sentence2", "score"],
        ["7", "news", "TEXT", "TEXT", "SCORE"],
        {},
    ),
    "mnli": (
        ("train.tsv", "dev_matched.tsv"),
        ["index", "sentence1", "sentence2", "label1", "gold_label"],
        ["7", "TEXT", "TEXT", "contradiction", "LABEL"],
        {"0": "neutral", "1": "entailment"},
    ),
    "qnli": (
        ("train.tsv", "dev.tsv"),
        ["index", "question", "sentence", "label"],
        ["7", "TEXT", "TEXT", "LABEL"],
        _ENTAILED,
    ),
    "qqp": (
        ("train.tsv", "dev.tsv"),
        ["id", "qid1", "qid2", "question1", "question2", "is_duplicate"],
        ["7", "1", "2", "TEXT", "TEXT", "LABEL"],
        _NUMBERS,
    ),
}


def rows_of(task: str, count: int, seed: int = 0) -> list[list[str]]:
    """Lines of a file without the header. Rows whose texts contain a certain word have class 1 or a high score."""
    _, _, fields, labels = FILES[task]
    draw, rows = random.Random(seed), []
    for i in range(count):
        good = i % 2
        texts = [" ".join([*draw.choices(_WORDS, k=draw.randint(2, 5)), *["yes"] * good, str(i)]) for _ in range(2)]
        filled = {"LABEL": labels.get(str(good), ""), "SCORE": f"{4 * good + draw.random():.3f}"}
        rows.append([texts.pop() if field == "TEXT" else filled.get(field, field) for field in fields])
    return rows


def write_lines(path: Path, rows: list[list[str]], *, end: str = "\n", mark: bool = False) -> Path:
    """Write tab-separated fields, or for .csv as a spreadsheet does. mark: begin with the UTF-8 byte order mark."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with open(path, "w", encoding="utf-8-sig" if mark else "utf-8", newline="") as file:
        if path.suffix == ".csv":
            csv.writer(file).writerows(rows)
        else:
            file.writelines("\t".join(row) + end for row in rows)
    return path


def write_task(folder: Path, task: str, count: int = 40) -> Path:
    """Write the files of a task to its own folder, with training rows and half as many dev rows."""
    names, header, _, _ = FILES[task]
    for seed, (name, rows) in enumerate(zip(names, (count, count // 2), strict=True)):
        lines = [] if header is None else [header]
        write_lines(folder / task / name, lines + rows_of(task, rows, seed), mark=task == "mrpc")
    return folder / task
