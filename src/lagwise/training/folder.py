"""The recipe, task and log in a run's folder, which are read without the packages that training needs."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from lagwise.files import RECIPE_FILE, RUN_FILE, TOKENIZER, one_line, read_json
from lagwise.tables import build, typed
from lagwise.tasks import TASKS, Metric, Task
from lagwise.tasks.scores import headline_of
from lagwise.training.recipe import Recipe, load_recipe

METRICS_FILE = "metrics.jsonl"


def load_run(run: Path | str, overrides: Sequence[str] = ()) -> Recipe:
    """Load the recipe of a run, with overrides. Its tokenizer folder is the run's own copy. Errors as in
    `load_recipe`."""
    run = Path(run)
    recipe = load_recipe(str(run / RECIPE_FILE), overrides)
    if (run / TOKENIZER).is_dir():
        recipe = replace(recipe, data=replace(recipe.data, tokenizer=str(run / TOKENIZER)))
    return recipe


def make_task(recipe: Recipe) -> Task:
    """Build the recipe's task, without its data. ValueError for unknown names and options out of range."""
    data = replace(recipe.data)  # the task fills in its default source
    return build(TASKS, recipe.task, data, what="task", prefix="task.")


def logged_headline(task: Task, metrics: Sequence[Mapping[str, float]]) -> Metric:
    """Return the headline of a run from the lines of its log, which know the kind of labels that was found in the
    data."""
    logged = {name for line in metrics for name in line}
    if f"eval_{task.headline.name}" in logged:
        return task.headline
    return next((headline_of(name) for name in ("pearson", "micro_f1") if f"eval_{name}" in logged), task.headline)


def final_model(recipe: Recipe, task: Task, metrics: Sequence[Mapping[str, float]]) -> tuple[int, float] | None:
    """Return the step of the model that a run ends with, and its headline metric on validation data; None if the log
    has no validation."""
    metric = logged_headline(task, metrics)
    name = f"eval_{metric.name}"
    scores = [(int(line["step"]), line[name]) for line in metrics if name in line]
    if not scores or recipe.training.select == "last":
        return scores[-1] if scores else None
    return (max if metric.greater_is_better else min)(scores, key=lambda score: score[1])  # the first of equal ones


def data_unchanged(out: Path, recipe: Recipe) -> bool:
    """Whether the hash of a run's data is the same as when the run started. Nothing is encoded."""
    return make_task(recipe).key() == read_json(out / RUN_FILE).get("data")


def read_metrics(run: Path | str) -> list[dict[str, float]]:
    """Read the log of a run, one mapping per line. FileNotFoundError if it has none."""
    path = Path(run) / METRICS_FILE
    if not path.is_file():
        raise FileNotFoundError(f"{str(run)!r} has no {METRICS_FILE}: it is not a training run")
    return logged_lines(path)


def logged_lines(path: Path) -> list[dict[str, float]]:
    """Read the lines of a log, without the last if it is truncated. ValueError if another line is damaged."""
    lines = path.read_bytes().splitlines()
    result = []
    for number, line in enumerate(lines, 1):
        try:
            logged = json.loads(line)
            typed(int, logged["step"], "step")
            result.append(logged)
        except (ValueError, KeyError, TypeError, RecursionError) as error:
            if number < len(lines):
                raise ValueError(f"{str(path)!r}, line {number}, is damaged ({one_line(error)})") from error
    return result
