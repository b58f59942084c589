"""The record of a run in its folder, for reports: its facts, settings and command."""

from __future__ import annotations

import shlex
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

from lagwise.files import RECIPE_FILE, TOKENIZER, beside, one_line, read_json
from lagwise.runs.evaluate import EVALUATION_FILE, open_run
from lagwise.tasks import Metric, Table, Task
from lagwise.training import (
    Recipe,
    final_model,
    joined_answer,
    kept_first_answer,
    logged_headline,
    read_metrics,
)

T = TypeVar("T")


@dataclass(frozen=True)
class RecordedRun:
    """The record of a run.

    Attributes:
        about: content of run.json.
        metrics: lines of the log.
        evaluation: result of `lagwise evaluate`, None before it.
        tables: the evaluation as tables for people.
    """

    folder: Path
    recipe: Recipe
    task: Task
    about: Mapping[str, Any]
    metrics: Sequence[Mapping[str, float]]
    evaluation: Mapping[str, Any] | None
    tables: Sequence[Table]

    def facts(self) -> dict[str, str]:
        """Summarise what was trained, for how long, and the scores on validation data."""
        facts = {
            "task": self.recipe.task["name"].replace("_", " "),
            "data": self.recipe.data.source or "generated",
            "parameters": f"{self.about['parameters']:,}",
            "steps": f"{max((line['step'] for line in self.metrics), default=0):,}",
        }
        if seconds := self.curve("seconds"):
            facts["seconds"] = f"{seconds[-1][1]:,.0f}"
        name, label, greater_is_better = self.headline
        for line in self.metrics:
            if "first_answer" in line:
                facts[f"first answer's validation {label}"] = f"{line['first_answer']:.4f}"
        if scores := self.curve(f"eval_{name}"):
            step, best = (max if greater_is_better else min)(scores, key=lambda point: point[1])
            facts[f"best validation {label}"] = f"{best:.4f} at step {step:,}"
            facts[f"last validation {label}"] = f"{scores[-1][1]:.4f}"
        about = joined_answer(self.folder)
        if about:
            facts[f"validation {label} of both"] = f"{about['trained'][about['metric']]:.4f}"
        if kept_first_answer(self.folder):
            facts["model"] = "the first answer"
        elif about:
            facts["model"] = f"the first answer and the layers, with a share of {about['share']:.2f}"
        elif selected := final_model(self.recipe, self.task, self.metrics):
            facts["model"] = f"of step {selected[0]:,}, the {self.recipe.training.select} one"
        return facts

    def machine(self) -> dict[str, str]:
        """Summarise hardware and versions."""
        about = self.about
        versions = [name for name in ("lagwise", "torch", "transformers", "numpy", "python") if name in about]
        return {
            "processor": about["processor"],
            "threads": str(about["threads"]),
            "GPU": about["gpu"] or "none",
            "processes": str(self.processes),
            "versions": ", ".join(f"{name} {about[name]}" for name in versions),
        }

    @property
    def processes(self) -> int:
        """The number of processes that shared the batch."""
        return self.about.get("processes", 1)

    @property
    def headline(self) -> Metric:
        """The metric by which the task compares checkpoints."""
        return logged_headline(self.task, self.metrics)

    @property
    def other_data(self) -> str | None:
        """The source of the evaluated data if it is not the run's own, otherwise None."""
        source, evaluation = self.recipe.data.source, self.evaluation or {}
        scored = evaluation.get("data")
        is_source = source is None or scored in (None, source)
        return None if is_source and not evaluation.get("given") else str(scored)

    def curve(self, metric: str) -> list[tuple[float, float]]:
        """Return the logged values of a metric over the steps of training."""
        return [(line["step"], line[metric]) for line in self.metrics if metric in line]


def recorded_run(run: Path) -> RecordedRun:
    """Read a run's folder, but not its weights. FileNotFoundError if it is not a run that has begun; ValueError if a
    file in it is damaged."""
    with_evaluation = (run / EVALUATION_FILE).is_file()

    def read() -> RecordedRun:
        recipe, task = open_run(run)
        evaluation = read_json(run / EVALUATION_FILE) if with_evaluation else None
        tables = task.tables(evaluation) if evaluation else ()
        recorded = RecordedRun(run, recipe, task, read_json(run / "run.json"), read_metrics(run), evaluation, tables)
        recorded.facts(), recorded.machine()  # raise if a file is damaged
        return recorded

    return undamaged(run, read)


def undamaged(run: Path, use: Callable[[], T]) -> T:
    """Call a function that reads a run's files. Errors that changed JSON causes become a ValueError."""
    try:
        return use()
    except (KeyError, TypeError, AttributeError, IndexError) as error:
        what = f"{type(error).__name__}: {one_line(error)}"
        raise ValueError(f"run.json, metrics.jsonl or {EVALUATION_FILE} in {str(run)!r} is damaged ({what})") from error


def training_command(run: Path, processes: int = 1) -> str:
    """Return the shell command that trains a run's recipe again, ``RUN/recipe.yaml``, into ``RUN-again``."""
    options = ["--recipe", str(run / RECIPE_FILE)]
    if (run / TOKENIZER).is_dir():  # the recipe names the folder from which the run copied it
        options.append(f"data.tokenizer={run / TOKENIZER}")
    start = ["lagwise"] if processes == 1 else ["torchrun", "--nproc-per-node", str(processes), "-m", "lagwise"]
    return shlex.join([*start, "train", *options, "--out", str(beside(run, "-again"))])
