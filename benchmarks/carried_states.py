"""Bits per byte by length of context, of small language models that were trained on short pieces, and then further with
and without states that are carried from piece to piece.

    OMP_NUM_THREADS=1 python benchmarks/carried_states.py RUNS --data novels=FOLDER --minutes 0.5 --further 0.25
        [--models mega-lm,megalodon-lm,best-lm,fd-tnn-lm] [--carry 64] [--results FILE] [--steps 4000,2000]
        [--width 64] [--batch 4]

Each model is a recipe of the package, of ``--width`` channels. It is trained on pieces of 512 bytes, for as
many steps as fit into the minutes of one CPU, by the measured cost of a step and of a validation (RUNS/costs.json), or
for the first number of ``--steps``; the further trainings then take the second.
Two further trainings begin with its weights and take the steps that fit into the further minutes, at a lower rate and
on other pieces: one as before, and one with ``training.carry_states``. All three are tested on the same bytes at five
lengths of context. Finished runs are skipped and interrupted ones resumed.

The setting follows Ruiz and Gu 2025, "Understanding and Improving Length Generalization in Recurrent Models": some
hundred steps with carried states after an ordinary training.
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from lagwise.process import keep_freed_memory
from lagwise.runs import evaluate_run
from lagwise.training import load_recipe, read_metrics, train_or_resume
from lagwise_papers.bench.run_queue import cadence, keep, planned

MODELS = ("mega-lm", "megalodon-lm", "best-lm", "fd-tnn-lm")
LENGTHS = (512, 2048, 8192, 32768, 131072)
_LENGTH = 512
_RATES = {"base": 0.004, "ordinary": 0.001, "carried": 0.001}
_EVALUATIONS = {"base": 4, "ordinary": 1, "carried": 1}


def common(source: str, batch: int) -> list[str]:
    """Overrides of all runs."""
    return [
        *(f"data.source={source}", f"data.length={_LENGTH}"),
        *(f"training.batch_size={batch}", "training.evaluate_tokens=32769", "training.report_to=none"),
    ]


def measure(run: Path, model: str, kind: str, overrides: list[str], plan: dict[str, Any]) -> dict[str, Any]:
    """Train a run, test it, and return its results."""
    steps = plan["steps"]
    changes = [*overrides, *cadence(steps, _EVALUATIONS[kind]), f"training.learning_rate={_RATES[kind]}"]
    seconds = _timed(run, "train", lambda: train_or_resume(load_recipe(model, changes), run, progress=False))
    tests: list[Any] = []
    tested = _timed(
        run, "test", lambda: tests.append(evaluate_run(run, LENGTHS, max_tokens=LENGTHS[-1] + 1, progress=False))
    )
    return {
        **plan,
        "rate": _RATES[kind],
        "cpu_seconds": seconds,
        "test_cpu_seconds": tested,
        "curve": [(m["step"], m["eval_loss"]) for m in read_metrics(run) if "eval_loss" in m],
        "scores": {split: tests[0][split] for split in ("valid", "test")},
    }


def _timed(run: Path, what: str, call: Callable[[], object]) -> float:
    """The CPU seconds of a call, with those of earlier, interrupted calls for the same run."""
    file = run.with_name(f"{run.name}.{what}.json")
    earlier = json.loads(file.read_text()) if file.is_file() else 0.0
    begun = time.process_time()
    try:
        call()
    finally:
        spent = earlier + time.process_time() - begun
        file.write_text(json.dumps(spent))
    return spent


def main() -> None:
    parser = argparse.ArgumentParser(description=" ".join((__doc__ or "").partition("\n\n")[0].split()))
    parser.add_argument("runs", type=Path, help="folder for the runs")
    parser.add_argument("--data", required=True, help="NAME=SOURCE")
    parser.add_argument("--models", default=",".join(MODELS), help="separated by commas")
    parser.add_argument("--minutes", type=float, default=0.5, help="minutes of the first training (0.5)")
    parser.add_argument("--further", type=float, default=0.25, help="minutes of each further training (0.25)")
    parser.add_argument("--steps", help="steps of the first training and of each further one, in place of minutes")
    parser.add_argument("--width", type=int, default=64, help="channels of the models (64)")
    parser.add_argument("--batch", type=int, default=4, help="pieces of a step (4)")
    parser.add_argument("--carry", type=int, default=64, help="pieces over which states are carried (64)")
    parser.add_argument("--results", type=Path, default=Path("benchmarks/results/carried-states-cpu.json"))
    given = parser.parse_args()
    keep_freed_memory()  # as the command line does
    name, _, source = given.data.partition("=")
    shared = common(str(Path(source).resolve()), given.batch)
    amount = given.steps or f"{given.minutes:g}-{given.further:g}"
    folder = given.runs / f"{name}-{amount}-{given.carry}"
    folder.mkdir(parents=True, exist_ok=True)
    kinds = {"base": given.minutes, "ordinary": given.further, "carried": given.further}
    first = [f"model.hidden_size={given.width}", "data.tokenizer=bytes", *shared]
    jobs, minutes, evaluations = {}, {}, {}
    for model in given.models.split(","):
        for kind, long in kinds.items():
            key = f"{model}/{kind}"
            jobs[key], minutes[key], evaluations[key] = (model, first), long, _EVALUATIONS[kind]
    if given.steps:
        first_steps, further_steps = map(int, given.steps.split(","))
        plan = {key: {"steps": first_steps if key.endswith("/base") else further_steps} for key in jobs}
    else:
        plan = planned(jobs, minutes, given.runs / "costs.json", evaluations)
    found = json.loads(given.results.read_text())["results"] if given.results.is_file() else {}
    for key in jobs:
        model, kind = key.split("/")
        if f"{name}/{key}" in found:
            continue
        overrides = first
        if kind != "base":  # with the weights before, and on other pieces
            overrides = [f"model.init_from={folder / f'{model}-base'}", "training.seed=1", *shared]
        if kind == "carried":
            overrides = [*overrides, f"training.carry_states={given.carry}"]
        result = measure(folder / f"{model}-{kind}", model, kind, overrides, plan[key])
        keep(
            given.results,
            f"{name}/{key}",
            {**result, "width": given.width, "batch": given.batch, "carry": given.carry if kind == "carried" else 0},
        )
        by_length = " ".join(f"{score['bits_per_byte']:.4f}" for score in result["scores"]["test"])
        print(
            f"{key}: {plan[key]['steps']} steps, {result['cpu_seconds']:.0f} s, bits per byte {by_length}", flush=True
        )


if __name__ == "__main__":
    main()
