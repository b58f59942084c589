"""Shared code of the scripts that queue trainings: planning steps for a time budget, running or resuming run folders,
and saving results."""

from __future__ import annotations

import dataclasses
import hashlib
import json
import os
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from lagwise.process import keep_freed_memory
from lagwise_papers.bench.timing import save_results

_WRITING = threading.Lock()  # runs finish in several threads


def costs(jobs: Sequence[tuple[str, Sequence[str]]]) -> list[dict[str, float]]:
    """Measure the mean CPU seconds of a training step and of an evaluation on the valid split, of each recipe with its
    overrides, on one thread and the task's data, as `lagwise.training.minutes` takes them."""
    import torch

    from lagwise.training import check_recipe, load_recipe
    from lagwise.training.setup import measured

    torch.set_num_threads(1)
    results = []
    for name, overrides in jobs:
        recipe = load_recipe(name, overrides)
        seconds, evaluation = measured(recipe, check_recipe(recipe).open(progress=True), time.process_time)
        results.append({"seconds": seconds, "evaluation_seconds": evaluation})
    return results


def planned(
    jobs: Mapping[str, tuple[str, Sequence[str]]],
    minutes: float | Mapping[str, float],
    file: Path,
    evaluations: int | Mapping[str, int] = 12,
) -> dict[str, dict[str, Any]]:
    """Plan the number of steps of each job that fit into a run's minutes with so many evaluations, both for all jobs or
    by name, and their `costs`.

    Jobs map names to a recipe and its overrides. Costs are kept in the file, by the recipe's content; jobs that are
    missing there are measured in a separate process.
    """
    saved = json.loads(file.read_text()) if file.is_file() else {}
    keys = {name: _content(*job) for name, job in jobs.items()}
    missing = {key: jobs[name] for name, key in keys.items() if key not in saved}
    if missing:
        command = [sys.executable, __file__, json.dumps(list(missing.values()))]
        environment = {**os.environ, "OMP_NUM_THREADS": "1"}
        measured = subprocess.run(command, env=environment, stdout=subprocess.PIPE, check=True, text=True)
        saved |= dict(zip(missing, json.loads(measured.stdout.splitlines()[-1]), strict=True))
        file.write_text(json.dumps(saved, indent=1) + "\n")
    plan = {}
    for name, key in keys.items():
        count = evaluations if isinstance(evaluations, int) else evaluations[name]
        budget_minutes = minutes[name] if isinstance(minutes, Mapping) else minutes
        left = 60 * budget_minutes - count * saved[key]["evaluation_seconds"]
        if left <= 0:
            raise ValueError(f"{count} evaluations of {name} alone take more than {budget_minutes} minutes")
        plan[name] = {**saved[key], "steps": max(1, round(left / saved[key]["seconds"]))}
    return plan


def _content(recipe: str, overrides: Sequence[str]) -> str:
    """Hash what determines the costs of a recipe with its overrides."""
    from lagwise.training import load_recipe

    recipe_options = dataclasses.asdict(load_recipe(recipe, overrides))
    training = {name: recipe_options["training"][name] for name in ("batch_size", "accumulate", "evaluate_tokens")}
    if recipe_options["training"]["optimizer"] != "adamw":  # left out for AdamW, so that older costs remain valid
        training["optimizer"] = recipe_options["training"]["optimizer"]
    sections = [recipe_options[name] for name in ("model", "task", "data")]
    text = json.dumps([*sections, training], sort_keys=True)
    return hashlib.sha256(text.encode()).hexdigest()[:16]


def lagwise(log: Path, *arguments: str) -> None:
    """Run the command line on one thread; CalledProcessError if it fails."""
    with open(log, "a") as file:
        command = [sys.executable, "-m", "lagwise", *arguments]
        subprocess.run(command, env={**os.environ, "OMP_NUM_THREADS": "1"}, stdout=file, stderr=file, check=True)


def cadence(steps: int, evaluations: int) -> list[str]:
    """Return the overrides for a training of so many steps: a twentieth to warm up, and evaluations and checkpoints at
    even distances."""
    every = max(1, steps // evaluations)
    lengths = [f"training.steps={steps}", f"training.warmup_steps={max(1, steps // 20)}"]
    return [*lengths, f"training.evaluate_every={every}", f"training.save_every={every}"]


def finish(run: Path, new: Sequence[str], evaluation: Sequence[str] = ()) -> dict[str, Any]:
    """Train a run by ``lagwise train`` with the arguments ``new``, or resume it, and then evaluate it. Finished parts
    are skipped. The log is written next to the run's folder.

    Returns the run's machine, its seconds of training and validation without pauses, and the logged evaluations: the
    step, and values by ``eval_NAME``.
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
        "seconds": max(line["seconds"] for line in lines),
        "evaluations": [line for line in lines if "eval_loss" in line],
    }


def scores(run: Path) -> dict[str, Any]:
    """Read the evaluation of a finished run."""
    return json.loads((run / "evaluation.json").read_text())


def keep(results: Path, name: str, result: dict[str, Any]) -> None:
    """Add a run's results to a results file."""
    with _WRITING:
        saved = json.loads(results.read_text())["results"] if results.is_file() else {}
        save_results(results, " ".join(["python", *sys.argv]), {**saved, name: result})


def together(workers: int, calls: Iterable[Callable[[], object]]) -> None:
    """Make calls in so many threads, begun in their order. The first error is raised when the others have ended."""
    with ThreadPoolExecutor(workers) as pool:
        for each in [pool.submit(call) for call in calls]:
            each.result()


if __name__ == "__main__":
    keep_freed_memory()  # as in trainings
    print(json.dumps(costs(json.loads(sys.argv[1]))))
