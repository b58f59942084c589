"""Shared code of the scripts that queue trainings: planning steps for a time budget, running or resuming run folders,
and saving results."""

from __future__ import annotations

import json
import os
import statistics
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from lagwise.bench.harness import save_results

_WRITING = threading.Lock()  # runs finish in several threads
_WARMUP, _TIMED = 3, 15  # steps
_VALIDATION = 0.1  # share of a run's time


def step_seconds(jobs: Sequence[tuple[str, Sequence[str]]]) -> list[float]:
    """Mean CPU seconds of a training step of each recipe with its overrides, on one thread and the task's data.

    The jobs take steps in turn, so that other load on the machine affects all of them equally. Steps differ in
    duration, and their mean determines a run's time.
    """
    import torch

    from lagwise.training.hardware import bfloat16_is_fast

    torch.set_num_threads(1)
    steps = [_step(recipe, overrides) for recipe, overrides in jobs]
    seconds: list[list[float]] = [[] for _ in jobs]
    for number in range(_WARMUP + _TIMED):
        for job, step in enumerate(steps):
            begun = time.process_time()
            with torch.autocast("cpu", torch.bfloat16, enabled=bfloat16_is_fast()):
                loss = step(number)
            loss.backward()
            seconds[job].append(time.process_time() - begun)
    return [statistics.fmean(found[_WARMUP:]) for found in seconds]


def _step(recipe_name: str, overrides: Sequence[str]) -> Callable[[int], Any]:
    """A function that computes the loss of a recipe's step from the step's number."""
    from lagwise.training import check_recipe, load_recipe
    from lagwise.training.model import build_model

    recipe = load_recipe(recipe_name, overrides)
    task = check_recipe(recipe)
    task.open(progress=True)
    model = build_model(recipe, task).train()
    batch = recipe.training.batch_size
    examples: Any = task.training_examples(_WARMUP + _TIMED, batch, 0)

    def loss(number: int) -> Any:
        model.zero_grad()
        inputs = task.collate([examples[number * batch + i] for i in range(batch)])
        if task.loss is None:
            return model(**inputs).loss
        labels = inputs.pop("labels")
        return task.loss(model(**inputs), labels)

    return loss


def planned(jobs: Mapping[str, tuple[str, Sequence[str]]], minutes: float, file: Path) -> dict[str, dict[str, Any]]:
    """Seconds per step of each job, and the number of steps that fit into a run's minutes without validation.

    Jobs map names to a recipe and its overrides. Jobs missing in the file are measured in a separate process and added
    to it.
    """
    plan = json.loads(file.read_text()) if file.is_file() else {}
    missing = [name for name in jobs if name not in plan]
    if missing:
        command = [sys.executable, __file__, json.dumps([jobs[name] for name in missing])]
        environment = {**os.environ, "OMP_NUM_THREADS": "1"}
        found = subprocess.run(command, env=environment, stdout=subprocess.PIPE, check=True, text=True)
        for name, seconds in zip(missing, json.loads(found.stdout.splitlines()[-1]), strict=True):
            plan[name] = {"seconds": seconds, "steps": round((1 - _VALIDATION) * 60 * minutes / seconds)}
        file.write_text(json.dumps(plan, indent=1) + "\n")
    return plan


def lagwise(log: Path, *arguments: str) -> None:
    """Run the command line on one thread; CalledProcessError if it fails."""
    with open(log, "a") as file:
        command = [sys.executable, "-m", "lagwise", *arguments]
        subprocess.run(command, env={**os.environ, "OMP_NUM_THREADS": "1"}, stdout=file, stderr=file, check=True)


def finish(run: Path, new: Sequence[str], evaluation: Sequence[str] = ()) -> dict[str, Any]:
    """Train a run by ``lagwise train`` with the arguments ``new``, or resume it, and then evaluate it. Finished parts
    are skipped. The log is written next to the run's folder.

    Returns the run's machine and the logged evaluations: the step, and values by ``eval_NAME``.
    """
    log = run.with_name(f"{run.name}.log")
    if not (run / "config.json").is_file():
        begun = (run / "recipe.yaml").is_file()
        lagwise(log, "train", *(["--resume", str(run)] if begun else ["--out", str(run), *new]))
    if not (run / "evaluation.json").is_file():
        lagwise(log, "evaluate", str(run), *evaluation)
    lines = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    return {
        "machine": json.loads((run / "run.json").read_text()),
        "evaluations": [line for line in lines if "eval_loss" in line],
    }


def scores(run: Path) -> dict[str, Any]:
    """The evaluation of a finished run."""
    return json.loads((run / "evaluation.json").read_text())


def keep(results: Path, name: str, found: dict[str, Any]) -> None:
    """Add a run's results to a results file."""
    with _WRITING:
        kept = json.loads(results.read_text())["results"] if results.is_file() else {}
        save_results(results, " ".join(["python", *sys.argv]), {**kept, name: found})


if __name__ == "__main__":
    print(json.dumps(step_seconds(json.loads(sys.argv[1]))))
