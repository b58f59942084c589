"""Train models on Long Range Arena's tasks for the same time each, one thread a run, and test the best of each.

    python benchmarks/arena.py RUNS --text IMDB --pictures CIFAR.npz [--pairs PAIRS] [--minutes 75] [--workers 2]
        [--runs text-tnn,listops-tnn,...] [--results FILE]

Runs are the recipes ``lra-TASK-small`` with the models of `PLAN`. Steps are as many as fit into the minutes, by the
median of some steps on the task's own data, timed in the process's own seconds; they are measured once and kept in
RUNS/steps.json. Runs that are finished are left, those that have begun are resumed, so the command may be stopped and
given again. Each finished run's scores and curve are written to the results file.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from run_queue import finish, keep, scores

_1D = "model.block.token_mixer.name=gtu"
PLAN: dict[str, tuple[str, list[str]]] = {
    "text-tnn": ("lra-text-small", []),
    "text-tcn-mlp": ("lra-text-small", ["model=tcn-mlp"]),
    "text-transformer": ("lra-text-small", ["model=transformer"]),
    "text-fd-tnn": ("lra-text-small", ["model=fd-tnn"]),
    "text-ski-tnn": ("lra-text-small", ["model=ski-tnn"]),
    "listops-tnn": ("lra-listops-small", []),
    "listops-tcn-mlp": ("lra-listops-small", ["model=tcn-mlp"]),
    "listops-fd-tnn": ("lra-listops-small", ["model=fd-tnn"]),
    "image-tnn-2d": ("lra-image-small", []),
    "image-tnn": ("lra-image-small", [_1D]),
    "pathfinder-tnn-2d": ("lra-pathfinder-small", []),
    "retrieval-tnn": ("lra-retrieval-small", []),
}
_WARMUP, _TIMED, _EVALUATIONS = 3, 15, 12  # steps, steps, and evaluations in a run
_PLANNING = threading.Lock()


def step_seconds(recipe_name: str, overrides: list[str], steps: int = _TIMED) -> float:
    """Median seconds of this process for a training step, on one thread and the task's own data."""
    import torch

    from lagwise.training import check_recipe, load_recipe
    from lagwise.training.hardware import bfloat16_is_fast
    from lagwise.training.model import build_model

    torch.set_num_threads(1)
    recipe = load_recipe(recipe_name, overrides)
    task = check_recipe(recipe)
    task.open(progress=True)
    model = build_model(recipe, task).train()
    batch = recipe.training.batch_size
    examples: Any = task.training_examples(steps + _WARMUP, batch, 0)
    seconds = []
    for step in range(steps + _WARMUP):
        begun = time.process_time()
        inputs = task.collate([examples[step * batch + i] for i in range(batch)])
        labels = inputs["labels"]
        with torch.autocast("cpu", torch.bfloat16, enabled=bfloat16_is_fast()):
            outputs = model(**{name: value for name, value in inputs.items() if name != "labels"})
            loss = task.loss(outputs, labels)
        model.zero_grad()
        loss.backward()
        seconds.append(time.process_time() - begun)
    return statistics.fmean(seconds[_WARMUP:])  # steps differ in length: the mean is what a run takes


def planned(name: str, source: str | None, minutes: float, kept: dict[str, Any], file: Path) -> dict[str, Any]:
    """Steps of a run, measured in a process of its own if they are not known."""
    if name not in kept:
        recipe, overrides = PLAN[name]
        given = [*overrides, *([f"data.source={json.dumps(source)}"] if source else [])]
        command = [sys.executable, __file__, "--measure", json.dumps([recipe, given])]
        environment = {**os.environ, "OMP_NUM_THREADS": "1"}
        found = subprocess.run(command, env=environment, stdout=subprocess.PIPE, check=True, text=True)
        seconds = float(found.stdout.splitlines()[-1])
        with _PLANNING:
            kept[name] = {"seconds": seconds, "steps": round(0.9 * 60 * minutes / seconds)}  # a tenth is for validation
            file.write_text(json.dumps(kept, indent=1) + "\n")
    return kept[name]


def train(name: str, source: str | None, runs: Path, plan: dict[str, Any], results: Path) -> None:
    recipe, overrides = PLAN[name]
    steps = plan["steps"]
    every = max(1, steps // _EVALUATIONS)
    new = [
        *("--recipe", recipe, *(["--data", source] if source else []), *overrides),
        *(f"training.steps={steps}", f"training.warmup_steps={max(1, steps // 20)}"),
        *(f"training.evaluate_every={every}", f"training.save_every={every}"),
    ]
    done, found = finish(runs / name, new), scores(runs / name)
    keep(
        results,
        name,
        {
            **plan,
            "recipe": recipe,
            "overrides": overrides,
            "machine": done["machine"],
            "curve": [(m["step"], m["eval_loss"], m["eval_accuracy"]) for m in done["evaluations"]],
            "scores": {split: found[split] for split in ("valid", "test")},
        },
    )
    print(f"{name}: {steps} steps, test accuracy {found['test']['accuracy']:.4f}", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("folder", nargs="?", type=Path, help="a folder for the runs")
    parser.add_argument("--text", help="labelled reviews")
    parser.add_argument("--pictures", help="labelled pictures of 32 x 32")
    parser.add_argument("--pairs", help="pairs of passages, as 'lagwise data lra-retrieval' writes them")
    parser.add_argument("--runs", default=",".join(PLAN), help="of the plan")
    parser.add_argument("--minutes", type=float, default=75, help="of each run (75)")
    parser.add_argument("--workers", type=int, default=2, help="runs at once (2)")
    parser.add_argument("--results", type=Path, default=Path("benchmarks/results/arena-cpu.json"))
    parser.add_argument("--measure", help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.measure:
        print(step_seconds(*json.loads(given.measure)))
        return
    if given.folder is None:
        parser.error("a folder for the runs is needed")
    sources = {"text": given.text, "image": given.pictures, "retrieval": given.pairs}
    names = [name for name in given.runs.split(",") if sources.get(name.partition("-")[0], "") is not None]
    given.folder.mkdir(parents=True, exist_ok=True)
    file = given.folder / "steps.json"
    kept = json.loads(file.read_text()) if file.is_file() else {}

    def one(name: str) -> None:
        source = sources.get(name.partition("-")[0])
        train(name, source, given.folder, planned(name, source, given.minutes, kept, file), given.results)

    with ThreadPoolExecutor(given.workers) as pool:
        for job in [pool.submit(one, name) for name in names]:
            job.result()


if __name__ == "__main__":
    main()
