"""Train models on Long Range Arena's tasks for equal times, with one thread per run, and test the best checkpoints.

    python benchmarks/arena.py RUNS --text IMDB --pictures CIFAR.npz [--pairs PAIRS] [--minutes 75] [--workers 2]
        [--runs text-tnn,listops-tnn,...] [--results FILE]

Runs are the recipes ``lra-TASK-small`` with the models of `PLAN`. The number of steps is what fits into the minutes. It
is estimated once from the mean CPU time of some steps on the task's data and kept in RUNS/steps.json. Finished runs are
skipped and interrupted runs are resumed, so the command may be stopped and repeated. The scores and the curve of each
finished run are written to the results file.
"""

from __future__ import annotations

import argparse
import json
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from run_queue import finish, keep, planned, scores

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
_EVALUATIONS = 12  # per run


def train(name: str, job: tuple[str, list[str]], plan: dict[str, Any], runs: Path, results: Path) -> None:
    recipe, overrides = job
    steps = plan["steps"]
    every = max(1, steps // _EVALUATIONS)
    new = [
        *("--recipe", recipe, *overrides),
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
    parser.add_argument("folder", type=Path, help="folder for the runs")
    parser.add_argument("--text", help="labelled reviews")
    parser.add_argument("--pictures", help="labelled images of 32 x 32 pixels")
    parser.add_argument("--pairs", help="pairs of passages, as 'lagwise data lra-retrieval' writes them")
    parser.add_argument("--runs", default=",".join(PLAN), help="names in the plan, separated by commas")
    parser.add_argument("--minutes", type=float, default=75, help="minutes per run (75)")
    parser.add_argument("--workers", type=int, default=2, help="concurrent runs (2)")
    parser.add_argument("--results", type=Path, default=Path("benchmarks/results/arena-cpu.json"))
    given = parser.parse_args()
    sources = {"text": given.text, "image": given.pictures, "retrieval": given.pairs}
    jobs = {}
    for name in given.runs.split(","):
        source = sources.get(name.partition("-")[0], "")
        if source is not None:
            recipe, overrides = PLAN[name]
            jobs[name] = (recipe, [*overrides, *([f"data.source={json.dumps(source)}"] if source else [])])
    given.folder.mkdir(parents=True, exist_ok=True)
    plan = planned(jobs, given.minutes, given.folder / "steps.json")
    with ThreadPoolExecutor(given.workers) as pool:
        runs = [pool.submit(train, name, job, plan[name], given.folder, given.results) for name, job in jobs.items()]
        for run in runs:
            run.result()


if __name__ == "__main__":
    main()
