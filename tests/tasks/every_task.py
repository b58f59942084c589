"""Every task in the table, as a recipe that trains in about a second, with its data."""

from __future__ import annotations

import csv
import json
import random
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from glue_files import write_task
from scipy.io import wavfile

from lagwise.data.images import encode_array
from lagwise.training import Recipe, load_recipe

_TRAINING = [
    *("training.steps=6", "training.batch_size=4", "training.warmup_steps=2", "training.save_every=3"),
    *("training.evaluate_every=3", "training.log_every=1", "training.evaluate_tokens=512"),
    "training.precision=float32",
]
MODEL = {
    "hidden_size": 8,
    "num_hidden_layers": 1,
    "block": {
        "name": "prenorm",
        "token_mixer": {"name": "gtu", "expansion": 1, "kernel": {"name": "rpe", "hidden": 4, "layers": 1}},
    },
}


class Case(NamedTuple):
    """task: its name in the table. prepare: writes data to a folder and returns overrides of the recipe. rows: rows to
    predict. wrong: invalid overrides, and a part of the error."""

    task: str
    prepare: Callable[[Path], list[str]]
    rows: list[dict[str, Any]]
    wrong: tuple[str, str]


def _words(count: int) -> str:
    return " ".join(random.choices(["good", "bad", "film", "long", "short", "seen", "again", "never"], k=count))


def _text(folder: Path) -> list[str]:
    (folder / "text.txt").write_text("\n".join(_words(10) for _ in range(300)) + "\n")
    return ["task.name=language_modelling", f"data.source={folder / 'text.txt'}", "data.length=32"]


def _masked(folder: Path) -> list[str]:
    return [*_text(folder), "task.name=masked_language_modelling", "data.lengths=[16, 32]"]


def _queries(folder: Path) -> list[str]:
    return ["task.name=multi_query_recall", "task.pairs=[2, 3]", "data.length=16", "data.vocab_size=12"]


def _recall(folder: Path) -> list[str]:
    return ["task.name=associative_recall", "data.length=16", "data.vocab_size=6"]


def _classes(folder: Path) -> list[str]:
    texts = [_words(random.randint(1, 12)) for _ in range(60)]
    _write(folder / "rows.csv", [{"text": t, "label": "yes" if "good" in t else "no"} for t in texts])
    return [*_CLASSIFY, "task.wide=true", f"data.source={folder / 'rows.csv'}"]


def _pairs(folder: Path) -> list[str]:
    rows = [{"one": _words(3), "two": _words(random.randint(1, 5)), "score": i / 7} for i in range(60)]
    _write(folder / "pairs.csv", rows)
    columns = ["task.text=[one, two]", "task.label=score"]
    return [*_CLASSIFY, "task.wide=true", f"data.source={folder / 'pairs.csv'}", *columns]


def _series(folder: Path) -> list[str]:
    values = np.random.default_rng(0).normal(size=(60, 20, 2)).astype(np.float32)
    np.savez(folder / "series.npz", input_values=values, label=(values.mean((1, 2)) > 0).astype(int))
    return [*_CLASSIFY, "task.wide=true", f"data.source={folder / 'series.npz'}", "task.inputs=values"]


def _acceptable(folder: Path) -> list[str]:
    write_task(folder, "cola", 60)
    return [*_CLASSIFY, f"data.source={folder}", "data.format=cola", "task.metric=matthews"]


def _genes(folder: Path) -> list[str]:
    for name, letters in (("one", "ACGT"), ("other", "AC")):
        lines = [f">{i}\n{''.join(random.choices(letters, k=12))}{letters * i}\n" for i in range(30)]
        (folder / f"{name}.fa").write_text("".join(lines))
    return ["task.name=dna_classification", "data.length=32", "data.tokenizer=dna", f"data.source={folder}"]


def _several(folder: Path) -> list[str]:
    names = ("good", "long", "never")
    texts = [_words(random.randint(1, 6)) for _ in range(90)]
    lines = [json.dumps({"text": t, "label": [name for name in names if name in t]}) for t in texts]
    (folder / "several.jsonl").write_text("\n".join(lines))
    return [*_CLASSIFY, f"data.source={folder / 'several.jsonl'}"]


def _several_of_series(folder: Path) -> list[str]:
    values = np.random.default_rng(0).normal(size=(60, 20, 2)).astype(np.float32)
    np.savez(folder / "several.npz", input_values=values, label=(values.mean(1) > 0).astype(int))
    return [*_CLASSIFY, f"data.source={folder / 'several.npz'}", "task.inputs=values"]


def _steps(folder: Path) -> list[str]:
    """Recordings as .csv in which loud samples have the label "on" and some labels are missing."""
    for number in range(6):
        values = np.random.default_rng(number).normal(size=(100, 2))
        labels = ["" if i % 7 == 3 else "on" if abs(x) > 1 else "off" for i, x in enumerate(values[:, 0])]
        rows = [{"x": x, "y": y, "label": label} for (x, y), label in zip(values.tolist(), labels, strict=True)]
        _write(folder / f"recording-{number}.csv", rows)
    return [*_LABEL, f"data.source={folder}"]


def _events(folder: Path) -> list[str]:
    lines = []
    for number in range(6):
        values = np.random.default_rng(number).normal(size=100)
        places = list(range(5 + number, 100, 20))
        values[places] += 5
        classes = ["beat" if i % 2 else "drop" for i in range(len(places))]
        lines.append(json.dumps({"input_values": values.tolist(), "at": places, "label": classes}))
    (folder / "events.jsonl").write_text("\n".join(lines))
    return [*_LABEL, f"data.source={folder / 'events.jsonl'}", "task.events=at", "task.tolerance=8", "task.stride=4"]


def _forecasting(folder: Path) -> list[str]:
    waves = np.sin(np.arange(200)[:, None] / [2, 3]) + np.random.default_rng(0).normal(0, 0.1, (200, 2))
    _write(folder / "waves.csv", [{"hour": i, "a": a, "b": "" if i % 9 == 0 else b} for i, (a, b) in enumerate(waves)])
    options = ["task.name=forecasting", "task.horizon=6", "task.patch=4", "data.length=16"]
    return [*options, f"data.source={folder / 'waves.csv'}"]


def _columns(folder: Path) -> list[str]:
    """Recordings of two sensors and of a third one, which depends on them and is missing now and then."""
    for number in range(6):
        values = np.random.default_rng(number).normal(size=(120, 2))
        target = np.convolve(values[:, 0], [0.5, 0.3, 0.2])[:120] + values[:, 1]
        rows = [
            {"x": x, "y": y, "z": "" if i % 11 == 3 else z}
            for i, ((x, y), z) in enumerate(zip(values, target, strict=True))
        ]
        _write(folder / f"recording-{number}.csv", rows)
    options = ["task.targets=[z]", "task.stride=2", "task.delay=3"]
    return ["task.name=signal_to_signal", "data.length=32", f"data.source={folder}", *options]


def _noisy(folder: Path) -> list[str]:
    """Waves, and noise to be added."""
    for name, count in (("waves", 8), ("noise", 4)):
        (folder / name).mkdir()
        for number in range(count):
            random = np.random.default_rng((number, count))
            wave = np.sin(np.arange(300) * random.uniform(0.1, 0.3)) if name == "waves" else random.normal(size=200)
            wavfile.write(folder / name / f"{number}.wav", 8000, (8000 * wave).clip(-32768, 32767).astype(np.int16))
    options = ["task.ratios=[0, 10]", "task.stride=4", "task.window=16", "task.loss=sdr", "task.hide=0.1"]
    files = [f"data.source={folder / 'waves'}", f"task.noise={folder / 'noise'}"]
    return ["task.name=signal_to_signal", "data.length=64", *files, *options]


_CLASSIFY = ["task.name=sequence_classification", "data.length=32"]
_LABEL = ["task.name=sequence_labelling", "data.length=32", "task.delay=2"]


def _write(path: Path, rows: list[dict[str, Any]]) -> None:
    with open(path, "w", newline="") as file:
        writer = csv.DictWriter(file, list(rows[0]))
        writer.writeheader()
        writer.writerows(rows)


def _images(folder: Path) -> list[str]:
    images = np.random.default_rng(0).integers(0, 256, (60, 8, 4, 3), dtype=np.uint8)
    np.savez(folder / "images.npz", image=images, label=(images.mean((1, 2, 3)) > 127).astype(int))
    return [
        *("task.name=image_classification", f"data.source={folder / 'images.npz'}"),
        "model.inputs={name: patches, size: 2}",
    ]


CASES = {
    "language modelling": Case(
        "language_modelling", _text, [{"text": "good film"}, {"text": ""}], ("data.source=nowhere.txt", "nowhere.txt")
    ),
    "masked language modelling": Case(
        "masked_language_modelling", _masked, [{"text": "good <|mask|>", "id": 7}], ("task.rate=1.5", "task.rate")
    ),
    "associative recall": Case(
        "associative_recall", _recall, [{"text": "a 1 b 0 a"}], ("data.source=text.txt", "does not apply to the task")
    ),
    "recall of several queries": Case(
        "multi_query_recall", _queries, [{"text": "k1 1 k2 0 k1"}], ("task.pairs=[9]", "from 1 to 5")
    ),
    "classes of text": Case(
        "sequence_classification", _classes, [{"text": "good", "id": 7}, {"text": ""}], ("task.label=stars", "'stars'")
    ),
    "numbers of pairs": Case(
        "sequence_classification", _pairs, [{"one": "bad", "two": "film"}], ("task.kind=rank", "unknown `kind`")
    ),
    "a task of GLUE": Case(
        "sequence_classification",
        _acceptable,
        [{"text": "good film"}],
        ("task.metric=f2", "unknown `metric`"),
    ),
    "classes of DNA": Case(
        "dna_classification", _genes, [{"text": "ACGT", "id": 7}], ("task.kind=rank", "unknown `kind`")
    ),
    "forecasts": Case(
        "forecasting",
        _forecasting,
        [{"past_values": [0.0, 1.0, None, 3.0] * 5}, {"past_values": "[1, null, 3]"}],
        ("task.time=day", "unknown column of times: 'day'"),
    ),
    "classes of images": Case(
        "image_classification",
        _images,
        [{"image": encode_array(np.zeros((8, 4, 3), dtype=np.uint8)), "id": 7}],
        ("task.channels=2", "`channels`"),
    ),
    "classes of series": Case(
        "sequence_classification",
        _series,
        [{"input_values": [[0.0, 1.0], [2.0, 3.0]]}],
        ("task.class_weights=even", "unknown `class_weights`"),
    ),
    "several labels of text": Case(
        "sequence_classification", _several, [{"text": "good film", "id": 7}], ("task.kind=regression", "is list")
    ),
    "several labels of series": Case(
        "sequence_classification",
        _several_of_series,
        [{"input_values": [[0.0, 1.0], [2.0, 3.0]]}],
        ("task.label=kind", "'kind'"),
    ),
    "labels of samples": Case(
        "sequence_labelling",
        _steps,
        [{"input_values": [[0.0, 1.0], [2.0, 3.0]]}],
        ("task.label=state", "all but that of the labels, 'state'"),
    ),
    "another signal": Case(
        "signal_to_signal",
        _columns,
        [{"input_values": [[0.0, 1.0], [2.0, float("nan")], [1.0, 1.0]]}],
        ("task.targets=[w]", r"unknown column of .*: 'w'"),
    ),
    "signals without noise": Case(
        "signal_to_signal", _noisy, [{"input_values": [0.0, 0.5, -0.5] * 9}], ("task.ratios=null", "belong together")
    ),
    "events in series": Case(
        "sequence_labelling", _events, [{"input_values": [0.0] * 9}], ("task.tolerance=null", "belong together")
    ),
}


def recipe(name: str, folder: Path, *overrides: str) -> Recipe:
    """The recipe of a case, with its data written to the folder."""
    random.seed(0)
    folder.mkdir(parents=True, exist_ok=True)
    made = load_recipe("tnn-lm", [*CASES[name].prepare(folder), *_TRAINING, *overrides])
    made.model = MODEL | {name: made.model[name] for name in ("inputs",) if name in made.model}
    return made
