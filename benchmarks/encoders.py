"""Pretrain encoders of every family for equal times, and compare how well they predict masked tokens.

    python benchmarks/encoders.py DATA RUNS [--models tnn,fd-tnn,...] [--minutes 60] [--workers 2] [--results FILE]

Models are the recipes NAME-mlm on the text DATA, each in a run folder below RUNS, with one thread. The number of steps
is what fits into the minutes. It is estimated from the mean time of some steps that the models take in turn and kept in
RUNS/costs.json. Finished runs are skipped and interrupted runs are resumed, so the command may be stopped and repeated.
A finished run is evaluated at 512, 2048 and 8192 tokens, and its losses and curve are written to the results file.
"""

from __future__ import annotations

import argparse
import json
from functools import partial
from pathlib import Path
from typing import Any

from lagwise_papers.bench.run_queue import finish, keep, planned, scores, together

MODELS = ("tnn", "transformer", "fd-tnn", "ski-tnn", "tcn")
_BATCH, _RATE, _LENGTHS = 16, 0.001, "512,2048,8192"


def pretrain(name: str, job: tuple[str, list[str]], plan: dict[str, Any], runs: Path, results: Path) -> None:
    recipe, overrides = job
    steps = int(plan["steps"])
    new = [
        *("--recipe", recipe, *overrides, f"training.steps={steps}", f"training.learning_rate={_RATE}"),
        *(f"training.warmup_steps={steps // 20}", "training.evaluate_every=250", "training.save_every=250"),
    ]
    done = finish(runs / name, new, ["--lengths", _LENGTHS])
    result = {
        "steps": steps,
        "step_seconds": plan["seconds"],
        "machine": done["machine"],
        "curve": [(m["step"], m["eval_loss"], m["eval_masked_accuracy"]) for m in done["evaluations"]],
        "test": scores(runs / name)["test"],
    }
    keep(results, name, result)
    last = result["test"][0]
    print(
        f"{name}: {steps} steps, loss {last['loss']:.3f}, accuracy {last['accuracy']:.3f} at {last['length']}",
        flush=True,
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("data", type=Path, help="a text file, or a folder with train.txt, valid.txt and test.txt")
    parser.add_argument("runs", type=Path, help="folder for the runs")
    parser.add_argument("--models", default=",".join(MODELS), help="names of recipes NAME-mlm, separated by commas")
    parser.add_argument("--minutes", type=float, default=60, help="minutes per run (60)")
    parser.add_argument("--workers", type=int, default=2, help="concurrent runs (2)")
    parser.add_argument("--results", type=Path, default=Path("benchmarks/results/encoders-cpu.json"))
    args = parser.parse_args()
    args.runs.mkdir(parents=True, exist_ok=True)
    data = [f"data.source={json.dumps(str(args.data))}", f"training.batch_size={_BATCH}"]
    jobs = {name: (f"{name}-mlm", data) for name in args.models.split(",")}
    plan = planned(jobs, args.minutes, args.runs / "costs.json")
    print(json.dumps(plan), flush=True)
    runs, results = args.runs, args.results
    together(args.workers, (partial(pretrain, name, job, plan[name], runs, results) for name, job in jobs.items()))


if __name__ == "__main__":
    main()
