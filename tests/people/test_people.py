"""What people do with their own files: train beside them, resume, evaluate, predict, forecast."""

from __future__ import annotations

import csv
import io
import json
import shutil
from pathlib import Path
from typing import Any

import pytest
from people_files import CASES, TEXTS
from typer.testing import CliRunner

from lagwise.cli.main import app
from lagwise.training import run as run_module

_TRAINING = (
    *("training.steps=2", "training.batch_size=4", "training.save_every=1", "training.evaluate_every=1"),
    *("training.log_every=1", "training.evaluate_tokens=64", "training.report_to=none", "training.precision=float32"),
    *("training.first_answer=none", "model.hidden_size=8", "model.num_hidden_layers=1", "data.length=32"),
)
_OWN = {
    "classify": ("data.tokenizer=bytes", "task.wide=false"),
    "series": ("task.wide=false",),
    "tnn-digits": ("task.wide=false",),
}
TRAINED = [name for name, case in CASES.items() if case.recipe != "forecast"]
RESUMED = {CASES[name].recipe: name for name in reversed(TRAINED)}.values()  # the first of each recipe
FORECAST = [name for name, case in CASES.items() if case.recipe == "forecast"]


def stopped(*_: object) -> None:
    raise KeyboardInterrupt


def invoke(*arguments: object, stdin: str | None = None) -> Any:
    return CliRunner().invoke(app, [str(each) for each in arguments], input=stdin, catch_exceptions=False)


def lagwise(*arguments: object, stdin: str | None = None) -> str:
    """Run a command in this process, and return its standard output."""
    result = invoke(*arguments, stdin=stdin)
    assert result.exit_code == 0, result.output
    return result.stdout


def table(text: str) -> list[dict[str, str]]:
    return list(csv.DictReader(io.StringIO(text)))


@pytest.mark.sampled(2)
@pytest.mark.parametrize("name", TRAINED)
def test_files_are_trained_on_where_they_lie(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The run lies in the folder of the data; it is trained, or stopped and resumed, then evaluated and used."""
    case = CASES[name]
    data, run = case.write(tmp_path), Path("runs") / case.recipe
    monkeypatch.chdir(tmp_path)
    options = [*_TRAINING, *_OWN.get(case.recipe, ()), *case.settings]
    command = ["train", "--recipe", case.recipe, "--data", data, *options]
    if name in RESUMED:
        with monkeypatch.context() as patch:
            patch.setattr(run_module, "finish", stopped)
            assert f"To resume: lagwise train --resume {run}" in invoke(*command).output
        shutil.rmtree(run / "checkpoint-2")
        command = ["train", "--resume", str(run)]
    assert f"Trained: {run}" in lagwise(*command)
    names = json.loads((run / "config.json").read_text()).get("id2label", {}).values()
    assert case.labels is None or tuple(names) == case.labels
    assert "Test data: " in lagwise("evaluate", run)
    monkeypatch.chdir(tmp_path.parent)
    run, data = tmp_path / run, tmp_path / data  # type: ignore[assignment]
    if case.rows:
        assert len(table(lagwise("predict", run, "--data", data))) == case.rows
        if "task.noise=noise" not in case.settings:  # which are signals without targets
            lagwise("evaluate", run, "--data", data)
        assert json.loads((run / "evaluation.json").read_text())["test"]
    else:
        texts = [text.replace("film", "<|mask|>") for text in TEXTS]
        assert len(table(lagwise("predict", run, stdin="\n".join(texts)))) == len(TEXTS)


@pytest.mark.parametrize("name", FORECAST)
def test_series_are_forecast(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    case = CASES[name]
    data = case.write(tmp_path)
    monkeypatch.chdir(tmp_path)
    lagwise("forecast", "--data", data, "--model", "ridge", "--look-back", "7", "--out", "next.csv", *case.settings)
    assert len(table(Path("next.csv").read_text())) == case.rows
