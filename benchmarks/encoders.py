"""Pretrain encoders of every family for the same time each, and say how well they find hidden tokens.

    python benchmarks/encoders.py DATA RUNS [--models tnn,fd-tnn,...] [--steps 8000] [--workers 2] [--results FILE]

Models: the recipes NAME-mlm, on the text DATA, a run folder each below RUNS, on one thread. Every model gets the time
that the first one's ``--steps`` take: training steps of all are timed in turn in one process at each of the recipe's
lengths, and a model's steps are those of the first times the ratio. Runs that are finished are left, those that have
begun are resumed, so the command may be stopped and given again. A finished run is evaluated at 512, 2048 and 8192
tokens, and its losses and its curve are written to the results file.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from run_queue import finish, keep, scores

MODELS = ("tnn", "transformer", "fd-tnn", "ski-tnn", "tcn")
_BATCH, _RATE, _LENGTHS = 16, 0.001, "512,2048,8192"


def step_times(names: list[str]) -> dict[str, float]:
    """Median seconds of a training step of each recipe, averaged over its lengths, on one thread."""
    import torch

    from lagwise.bench.harness import interleaved
    from lagwise.models import LagwiseConfig, LagwiseForMaskedLM
    from lagwise.training import load_recipe
    from lagwise.training.hardware import bfloat16_is_fast

    torch.set_num_threads(1)
    totals = dict.fromkeys(names, 0.0)
    recipes = {name: load_recipe(f"{name}-mlm") for name in names}
    models = {}
    for name, recipe in recipes.items():
        vocabulary = recipe.data.vocab_size + 1
        fields = {"vocab_size": vocabulary, "causal": False, "sparse_prediction": True, **recipe.model}
        models[name] = LagwiseForMaskedLM(LagwiseConfig(**fields))
    lengths = recipes[names[0]].data.lengths or [recipes[names[0]].data.length]
    for length in lengths:
        ids = torch.randint(8000, (_BATCH, length))
        labels = ids.where(torch.rand(ids.shape) < 0.15, -100)

        def step(model: LagwiseForMaskedLM, ids: Any = ids, labels: Any = labels) -> Callable[[], None]:
            def run() -> None:
                model.zero_grad()
                with torch.autocast("cpu", torch.bfloat16, enabled=bfloat16_is_fast()):
                    loss = model(ids, labels=labels).loss
                loss.backward()

            return run

        seconds = interleaved({name: step(model) for name, model in models.items()}, repeats=7, warmup=2)
        for name in names:
            totals[name] += seconds[name].median / len(lengths)
    return totals


def calibrated(names: list[str], steps: int, runs: Path) -> dict[str, dict[str, float]]:
    """Seconds of a step and steps of each model; measured once, and kept beside the runs."""
    path = runs / "steps.json"
    if not path.is_file():
        seconds = step_times(names)
        found = {n: {"seconds": s, "steps": round(steps * seconds[names[0]] / s, -1)} for n, s in seconds.items()}
        path.write_text(json.dumps(found, indent=1) + "\n")
    return json.loads(path.read_text())


def pretrain(name: str, data: Path, runs: Path, steps: int, results: Path, seconds: float) -> None:
    new = [
        *("--recipe", f"{name}-mlm", "--data", str(data)),
        *(f"training.steps={steps}", f"training.batch_size={_BATCH}", f"training.learning_rate={_RATE}"),
        *(f"training.warmup_steps={steps // 20}", "training.evaluate_every=250", "training.save_every=250"),
    ]
    done = finish(runs / name, new, ["--lengths", _LENGTHS])
    found = {
        "steps": steps,
        "step_seconds": seconds,
        "machine": done["machine"],
        "curve": [(m["step"], m["eval_loss"], m["eval_masked_accuracy"]) for m in done["evaluations"]],
        "test": scores(runs / name)["test"],
    }
    keep(results, name, found)
    last = found["test"][0]
    print(
        f"{name}: {steps} steps, loss {last['loss']:.3f}, accuracy {last['accuracy']:.3f} at {last['length']}",
        flush=True,
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("data", type=Path, help="a text, or a folder of train.txt, valid.txt and test.txt")
    parser.add_argument("runs", type=Path, help="a folder for the runs")
    parser.add_argument("--models", default=",".join(MODELS), help="recipes NAME-mlm; the first sets the time")
    parser.add_argument("--steps", type=int, default=8000, help="of the first model (8000)")
    parser.add_argument("--workers", type=int, default=2, help="runs at once (2)")
    parser.add_argument("--results", type=Path, default=Path("benchmarks/results/encoders-cpu.json"))
    given = parser.parse_args()
    given.runs.mkdir(parents=True, exist_ok=True)
    names = given.models.split(",")
    plan = calibrated(names, given.steps, given.runs)
    print(json.dumps(plan), flush=True)
    with ThreadPoolExecutor(given.workers) as pool:
        jobs = [
            pool.submit(pretrain, n, given.data, given.runs, int(plan[n]["steps"]), given.results, plan[n]["seconds"])
            for n in names
        ]
        for job in jobs:
            job.result()


if __name__ == "__main__":
    main()
