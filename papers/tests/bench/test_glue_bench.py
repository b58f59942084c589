"""The GLUE comparison: scores, resuming, and errors before training."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from every_task import recipe
from glue_files import write_task

from lagwise.data import read_labelled
from lagwise.training import train
from lagwise.training.trainer import LagwiseTrainer
from lagwise_papers.bench.glue import compare_glue
from lagwise_papers.bench.text_baselines import bag_of_bytes, majority, tf_idf
from lagwise_papers.data.published import open_glue

SMALL = [
    *("training.epochs=1", "training.batch_size=12", "data.length=24", "training.save_every=2"),
    *("training.evaluate_every=2", "training.precision=float32"),
]


pytestmark = pytest.mark.slow  # trainings on every task


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a tiny masked language model in ``encoder`` and data in ``data``."""
    place = tmp_path_factory.mktemp("glue")
    train(recipe("masked language modelling", place / "text"), place / "encoder", progress=False)
    for task in ("cola", "stsb"):
        write_task(place / "data", task)
    return place


def compare(folder: Path, out: Path, **changes: Any) -> dict[str, Any]:
    options = {"tasks": ["cola", "stsb"], "seeds": 2, "overrides": SMALL} | changes
    return compare_glue([folder / "encoder"], str(folder / "data"), out, progress=False, **options)


@pytest.fixture(scope="module")
def whole(folder: Path) -> dict[str, Any]:
    return compare(folder, folder / "out")


def untimed(scores: dict[str, Any]) -> Any:
    """Scores without training times."""
    return json.loads(json.dumps(scores), object_hook=lambda each: {k: v for k, v in each.items() if k != "seconds"})


def test_every_run_has_scores_of_every_task_and_seed(folder: Path, whole: dict[str, Any]) -> None:
    assert whole["tasks"] == {
        "cola": {"metric": "matthews", "rows": {"train": 36, "valid": 4, "test": 20}},
        "stsb": {"metric": "pearson", "rows": {"train": 36, "valid": 4, "test": 20}},
    }
    assert list(whole["scores"]) == ["majority", "TF-IDF", "encoder"]
    for task, found in whole["scores"]["encoder"].items():
        assert [(each["seed"], each["steps"]) for each in found] == [(0, 3), (1, 3)]
        run = folder / "out" / "encoder" / f"{task}-1"
        saved = json.loads((run / "evaluation.json").read_text())
        assert (saved["test"], saved["valid"]) == (found[1]["test"], found[1]["valid"])
        assert not list(run.glob("checkpoint-*"))


def test_a_resumed_comparison_has_the_same_scores(
    folder: Path, whole: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    save = LagwiseTrainer._save_checkpoint
    saved = 0

    def interrupted(self: LagwiseTrainer, *args: Any) -> None:
        nonlocal saved
        save(self, *args)
        saved += 1
        if saved == 3:  # after the second of three steps of the second fine-tuning
            raise KeyboardInterrupt

    monkeypatch.setattr(LagwiseTrainer, "_save_checkpoint", interrupted)
    seen: list[str] = []
    with pytest.raises(KeyboardInterrupt):
        compare(folder, tmp_path / "out", seeds=1, report=lambda results: seen.append(json.dumps(results)))
    assert len(seen) == 1
    unfinished = tmp_path / "out" / "encoder" / "stsb-0"
    assert [path.name for path in unfinished.glob("checkpoint-*")] == ["checkpoint-2"]
    first = {task: found[:1] for task, found in whole["scores"]["encoder"].items()}
    assert untimed(compare(folder, tmp_path / "out", seeds=1)["scores"]["encoder"]) == untimed(first)


@pytest.mark.parametrize(
    ("changes", "error", "message"),
    [
        ({"tasks": ["cola", "colla"]}, ValueError, "unknown task of GLUE: 'colla'; did you mean 'cola'"),
        ({"tasks": ["rte"]}, ValueError, "no files of GLUE's rte"),
        ({"untrained": [Path("nowhere")]}, FileNotFoundError, r"`init_from` must be the folder of a trained run"),
        ({"overrides": ["training.learning_rat=1"]}, ValueError, "did you mean 'learning_rate'"),
    ],
)
def test_errors_are_raised_before_training(
    folder: Path, tmp_path: Path, changes: dict[str, Any], error: type[Exception], message: str
) -> None:
    with pytest.raises(error, match=message):
        compare(folder, tmp_path / "out", **changes)
    assert not (tmp_path / "out").exists()
    for runs in ([], [folder / "encoder", folder / "encoder"], [folder / "majority"]):
        with pytest.raises((ValueError, FileNotFoundError), match=r"one or more folders with different names"):
            compare_glue(runs, str(folder / "data"), tmp_path / "out", tasks=["cola"], progress=False)


def test_baselines_learn_from_words(tmp_path: Path) -> None:
    """The class depends on a word, or the score on how similar two texts are."""
    rows = read_labelled(open_glue(str(write_task(tmp_path, "cola", 80)), "cola"), ("text",), "label")
    assert tf_idf(rows)["matthews"] > 0.9
    assert majority(rows)["accuracy"] == 0.5
    pairs = read_labelled(open_glue(str(write_task(tmp_path, "stsb", 80)), "stsb"), ("sentence1", "sentence2"), "label")
    assert tf_idf(pairs)["pearson"] > 0.8
    true = np.asarray(pairs.splits["test"]["__label__"][:])
    mean = np.mean(pairs.splits["train"]["__label__"][:])
    assert majority(pairs)["mean_squared_error"] == pytest.approx(np.mean((true - mean) ** 2))
    with pytest.raises(ValueError, match="are numbers"):
        bag_of_bytes(pairs)
