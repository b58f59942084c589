"""Train image classifiers of equal size for equal times, with one thread per run, and test the best checkpoints.

    python benchmarks/pictures.py RUNS --cifar CIFAR.npz --fashion FASHION.npz [--minutes 60] [--workers 2]
        [--runs tnn-2d,vit,...] [--results FILE]

On CIFAR-10 in colour: the recipe tnn-cifar (which mixes along rows and columns), TNN over the sequence of patches, and
a vision transformer, which have as many parameters within 2 %. They are also tested on images of 1.5 and 2 times the
trained side. On Fashion-MNIST: tnn-cifar for grey images. The number of steps is what fits into the minutes; it is
estimated once from the mean CPU time of some steps on the data, and kept in RUNS/costs.json. Seconds and images a
second in the results are by the clock. Finished runs are skipped and interrupted runs are resumed, so the command may
be stopped and repeated.
"""

from __future__ import annotations

import argparse
import json
from functools import partial
from pathlib import Path
from typing import Any

from lagwise.training import load_recipe
from lagwise_papers.bench.run_queue import cadence, finish, keep, planned, scores, together

RECIPE = "tnn-cifar"
# In the sequence of patches the next row is 8 lags away: the recipe's decay of .9 is .987 per lag. There is one kernel
# per layer instead of two, and its network has twice the hidden units, for as many parameters.
_FLAT = [
    *("model.block.token_mixer.name=gtu", "model.block.token_mixer.kernel.decay=0.987"),
    "model.block.token_mixer.kernel.hidden=64",
]
# Clothes fill their images, so they are not cropped.
_GREY = ["task.channels=1", "model.inputs.channels=1", "task.augment=[flip]", "training.batch_size=64"]
PLAN: dict[str, tuple[str, list[str], list[int]]] = {  # data, overrides, and longer sides of the test images
    "tnn-2d": ("cifar", [], [32, 48, 64]),
    "tnn": ("cifar", _FLAT, [32, 48, 64]),
    "vit": ("cifar", ["model=transformer", "model.hidden_size=148"], [32, 48, 64]),
    "fashion-tnn-2d": ("fashion", _GREY, [28]),
}
_EVALUATIONS = 12  # per run


def train(name: str, overrides: list[str], plan: dict[str, Any], runs: Path, results: Path) -> None:
    steps = plan["steps"]
    new = ["--recipe", RECIPE, *overrides, *cadence(steps, _EVALUATIONS)]
    done = finish(runs / name, new, ["--lengths", ",".join(map(str, PLAN[name][2]))])
    run_scores, evaluations = scores(runs / name), done["evaluations"]
    seconds = evaluations[-1]["seconds"]
    keep(
        results,
        name,
        {
            "data": PLAN[name][0],
            "overrides": PLAN[name][1],
            "steps": steps,
            "planned_step_seconds": plan["seconds"],  # CPU time, which other load on the machine does not change
            "seconds": seconds,  # wall-clock time, with augmentation and validation
            "pictures_per_second": load_recipe(RECIPE, PLAN[name][1]).training.batch_size * steps / seconds,
            "machine": done["machine"],
            "curve": [(m["seconds"], m["step"], m["eval_loss"], m["eval_accuracy"]) for m in evaluations],
            "scores": {key: run_scores[key] for key in ("valid", "test", "sizes")},
        },
    )
    print(f"{name}: {steps} steps, test accuracy {run_scores['test']['accuracy']:.4f}", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("folder", type=Path, help="folder for the runs")
    parser.add_argument("--cifar", help="labelled images in colour")
    parser.add_argument("--fashion", help="labelled grey images")
    parser.add_argument("--runs", default=",".join(PLAN), help="names in the plan, separated by commas")
    parser.add_argument("--minutes", type=float, default=60, help="minutes per run (60)")
    parser.add_argument("--workers", type=int, default=2, help="concurrent runs (2)")
    parser.add_argument("--results", type=Path, default=Path("benchmarks/results/pictures-cpu.json"))
    args = parser.parse_args()
    sources = {"cifar": args.cifar, "fashion": args.fashion}
    jobs = {
        name: (RECIPE, [*PLAN[name][1], f"data.source={json.dumps(sources[PLAN[name][0]])}"])
        for name in args.runs.split(",")
        if sources[PLAN[name][0]]
    }
    args.folder.mkdir(parents=True, exist_ok=True)
    plan = planned(jobs, args.minutes, args.folder / "costs.json")
    runs, results = args.folder, args.results
    together(args.workers, (partial(train, name, job[1], plan[name], runs, results) for name, job in jobs.items()))


if __name__ == "__main__":
    main()
