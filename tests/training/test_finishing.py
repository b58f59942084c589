"""The end of a training and an evaluation: the model that a run ends with, and whether it has learned anything."""

from __future__ import annotations

import csv
from pathlib import Path

import numpy as np
import pytest
from typer.testing import CliRunner

from lagwise.cli.main import app
from lagwise.tasks.labelled import constant_note, constant_of
from lagwise.training import load_recipe, train

_SHORT = ["training.epochs=1", "training.least_steps=0", "model.hidden_size=8", "training.report_to=none"]


def _trained(folder: Path, labels: list[object], texts: list[str], *options: str) -> Path:
    with open(folder / "rows.csv", "w", newline="") as file:
        csv.writer(file).writerows([("text", "label"), *zip(texts, labels, strict=True)])
    recipe = load_recipe("classify", [*_SHORT, *options])
    recipe.data.source = str(folder / "rows.csv")
    return train(recipe, folder / "run")


@pytest.mark.parametrize(
    ("kind", "options"),
    [
        ("classes", ["training.first_answer=none", "task.wide=false"]),
        ("classes", ["model=linear"]),
        ("numbers", ["model=linear"]),
    ],
)
def test_a_run_that_is_no_better_than_one_answer_says_so(
    kind: str, options: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    random = np.random.default_rng(0)
    labels = random.normal(size=90).tolist() if kind == "numbers" else ["no", "no", "yes"] * 30
    texts = [f"word {number}" for number in random.permutation(90)]
    run = _trained(tmp_path, labels, texts, *options)
    answer, name = ("the mean", "mean squared error") if kind == "numbers" else ("the most common class", "accuracy")
    said = f"No better than always answering {answer}: {name} "
    assert said in capsys.readouterr().err
    evaluated = CliRunner().invoke(app, ["evaluate", str(run)], catch_exceptions=False).output
    assert said in " ".join(evaluated.split())


def test_a_run_that_has_learned_does_not(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    texts = [f"{'good' if i % 3 else 'bad'} film {i}" for i in range(90)]
    run = _trained(tmp_path, ["yes" if i % 3 else "no" for i in range(90)], texts, "model=linear")
    assert "No better" not in capsys.readouterr().err
    assert "No better" not in CliRunner().invoke(app, ["evaluate", str(run)], catch_exceptions=False).output


def test_only_the_metric_that_a_run_is_judged_by_is_compared() -> None:
    rare = {"accuracy": 0.9, "matthews": 0.5}
    assert constant_note(rare, {"accuracy": 0.95}, "matthews", "test rows") is None
    assert "accuracy 0.95 on the test rows, this model 0.9." in str(
        constant_note(rare, {"accuracy": 0.95}, "accuracy", "test rows")
    )
    assert constant_note({"micro_f1": 0.1}, {}, "micro_f1", "test rows") is None
    assert constant_of({"kind": "regression", "true": [0.0, 2.0]}) == {"mean_squared_error": 1.0}
