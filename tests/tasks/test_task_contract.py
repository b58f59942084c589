"""Requirements for every task: train, resume to the same losses, evaluate, predict, report, and refuse wrong data."""

from __future__ import annotations

import json
import math
import pickle
import shutil
from pathlib import Path

import pytest
import torch
from every_task import CASES, recipe

from lagwise.analysis.report import plot_run
from lagwise.runs import evaluate_run, predict_run
from lagwise.tasks import TASKS, Task, TaskData
from lagwise.training import load_recipe, make_task, read_metrics, resume, train

every_case = pytest.mark.parametrize("name", CASES)
_DRAWN = ("language modelling", "classes of text", "classes of images")


def losses(run: Path) -> dict[float, float]:
    return {line["step"]: line["loss"] for line in read_metrics(run) if "loss" in line}


def test_every_task_has_a_case() -> None:
    assert {case.task for case in CASES.values()} == set(TASKS)


@pytest.mark.sampled(2)
@every_case
def test_it_trains_and_logs_its_metric(name: str, runs: dict[str, Path]) -> None:
    task = make_task(load_recipe(str(runs[name] / "recipe.yaml")))
    headline = task.open(progress=False).headline.name
    metrics = read_metrics(runs[name])
    assert list(losses(runs[name])) == [1, 2, 3, 4, 5, 6]
    found = [line for line in metrics if f"eval_{headline}" in line]
    assert [line["step"] for line in found] == [3, 6]
    assert all(math.isfinite(line[f"eval_{headline}"]) and math.isfinite(line["eval_loss"]) for line in found)


@pytest.mark.sampled(2)
@every_case
def test_it_resumes_to_the_same_losses(name: str, runs: dict[str, Path], tmp_path: Path) -> None:
    half = tmp_path / "half"
    shutil.copytree(runs[name], half)
    for path in (half / "config.json", half / "model.safetensors"):
        path.unlink()
    shutil.rmtree(half / "checkpoint-6")
    resume(half, progress=False)
    assert losses(half) == losses(runs[name])
    assert (half / "model.safetensors").read_bytes() == (runs[name] / "model.safetensors").read_bytes()


@every_case
def test_it_evaluates_and_shows_the_result(name: str, runs: dict[str, Path]) -> None:
    result = evaluate_run(runs[name], progress=False)
    assert json.loads(json.dumps(result)) == json.loads((runs[name] / "evaluation.json").read_text())
    task = make_task(load_recipe(str(runs[name] / "recipe.yaml")))
    for table in task.tables(result):
        assert table.rows
        assert all(len(row) == len(table.head) for row in table.rows)


@every_case
def test_it_predicts_without_its_training_data(
    name: str, runs: dict[str, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    place = tmp_path / "elsewhere"
    shutil.copytree(runs[name], place)
    rows = CASES[name].rows
    predicted = predict_run(place, rows, progress=False)
    assert len(predicted) == len(rows)
    for row, before in zip(predicted, rows, strict=True):
        assert row.items() >= before.items()
        assert len(row) > len(before)
    with pytest.raises(ValueError, match=r"row 1 has no '\w+', which this run reads"):
        predict_run(place, [{"other": "good"}], progress=False)
    task = type(make_task(load_recipe(str(place / "recipe.yaml"))))
    assert task.predicts in predicted[0].keys() - rows[0].keys()
    monkeypatch.setattr(task, "predict", lambda *_, **__: pytest.fail("it began to predict"))
    with pytest.raises(ValueError, match=f"already have a column '{task.predicts}'"):
        predict_run(place, [{**rows[0], task.predicts: "x"}], progress=False)


@pytest.mark.parametrize("name", [n if n in _DRAWN else pytest.param(n, marks=pytest.mark.slow) for n in CASES])
def test_its_report_has_its_figures_and_tables(name: str, runs: dict[str, Path]) -> None:
    evaluate_run(runs[name], progress=False)
    *figures, report = plot_run(runs[name])
    assert all(path.stat().st_size > 5000 for path in figures)
    page = report.read_text()
    assert page.count("<svg") == len(figures)
    assert "<h2>Results</h2>" in page


@every_case
def test_it_refuses_wrong_data_before_a_run_begins(name: str, tmp_path: Path) -> None:
    override, message = CASES[name].wrong
    wrong = recipe(name, tmp_path / "data", override)
    with pytest.raises((ValueError, FileNotFoundError), match=message):
        train(wrong, tmp_path / "run", progress=False)
    assert not (tmp_path / "run").exists()


@every_case
def test_its_data_are_sent_to_workers_that_are_spawned(name: str, tmp_path: Path) -> None:
    """`training.workers` on macOS and Windows, whose processes get examples and collator as pickles."""
    data = make_task(recipe(name, tmp_path)).open(progress=False)
    sent, collate = pickle.loads(pickle.dumps((data.training_examples(2, 4, 0), data.collate)))
    own = data.training_examples(2, 4, 0)
    batch = data.collate([own[i] for i in range(4)])
    torch.testing.assert_close(collate([sent[i] for i in range(4)]), batch, rtol=0, atol=0, equal_nan=True)


def test_a_task_has_few_public_names() -> None:
    """What a new kind of task has to know; an option or a helper of one task is no part of it."""
    for cls in (Task, TaskData):
        names = {name for base in cls.__mro__[:-1] for name in (*vars(base), *base.__annotations__)}
        assert len({name for name in names if not name.startswith("_")}) <= 22, cls
