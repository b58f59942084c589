"""Bits per byte by length of context, of small language models that were trained on short pieces, and then further with
and without states that are carried from piece to piece.

    python benchmarks/carried_states.py RUNS --data novels=FOLDER --minutes 1.5 --further 0.5
        [--models mega-lm,megalodon-lm,best-lm,fd-tnn-lm] [--carry 64] [--results FILE]

Each model is a recipe of the package at 128 channels. It is trained on pieces of 512 bytes, in batches of 4, for as many
steps as fit into the minutes on one thread, by the measured cost of a step and of a validation (RUNS/costs.json). Two
further trainings begin with its weights and take the steps that fit into the further minutes, at a lower rate: one as
before, and one with ``training.carry_states``. All three are tested on the same bytes at five lengths of context. The
results of each run, with the CPU seconds that its training took, are added to the results file. Finished runs are
skipped and interrupted ones resumed.

The setting follows Ruiz and Gu 2025, "Understanding and Improving Length Generalization in Recurrent Models": some
hundred steps with carried states after an ordinary training.
"""

from __future__ import annotations

import argparse
import json
import resource
from pathlib import Path
from typing import Any

from run_queue import cadence, finish, keep, planned, scores

MODELS = ("mega-lm", "megalodon-lm", "best-lm", "fd-tnn-lm")
LENGTHS = (512, 2048, 8192, 32768, 131072)
_LENGTH, _BATCH, _WIDTH = 512, 4, 128
_RATES = {"base": 0.004, "ordinary": 0.001, "carried": 0.001}
_EVALUATIONS = {"base": 4, "ordinary": 1, "carried": 1}


def common(source: str) -> list[str]:
    """Overrides of all runs."""
    return [
        *(f"data.source={source}", "data.tokenizer=bytes", f"data.length={_LENGTH}"),
        *(f"training.batch_size={_BATCH}", "training.evaluate_tokens=32769"),
    ]


def train(run: Path, key: str, kind: str, new: list[str], plan: dict[str, Any], results: Path) -> None:
    """Train a run, test it, and keep its results."""
    steps, evaluations = plan["steps"], _EVALUATIONS[kind]
    cpu = run.with_name(f"{run.name}.cpu.json")  # of all parts of a run that was interrupted
    seconds = json.loads(cpu.read_text()) if cpu.is_file() else 0.0
    before = _cpu_seconds()
    try:
        new = [*new, *cadence(steps, evaluations), f"training.learning_rate={_RATES[kind]}"]
        lengths = ",".join(map(str, LENGTHS))
        done = finish(run, new, ["--lengths", lengths, "--tokens", str(LENGTHS[-1] + 1)])
    finally:
        cpu.write_text(json.dumps(seconds + _cpu_seconds() - before))
    found = scores(run)
    keep(
        results,
        key,
        {
            **plan,
            "rate": _RATES[kind],
            "cpu_seconds_with_test": json.loads(cpu.read_text()),
            "elapsed_seconds": done["seconds"],
            "machine": done["machine"],
            "curve": [(m["step"], m["eval_loss"]) for m in done["evaluations"]],
            "scores": {split: found[split] for split in ("valid", "test")},
        },
    )
    by_length = " ".join(f"{score['bits_per_byte']:.4f}" for score in found["test"])
    print(f"{key}: {steps} steps, test bits per byte at {lengths}: {by_length}", flush=True)


def _cpu_seconds() -> float:
    """CPU seconds of the programs that this one has run."""
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def main() -> None:
    parser = argparse.ArgumentParser(description=" ".join((__doc__ or "").partition("\n\n")[0].split()))
    parser.add_argument("runs", type=Path, help="folder for the runs")
    parser.add_argument("--data", required=True, help="NAME=SOURCE")
    parser.add_argument("--models", default=",".join(MODELS), help="separated by commas")
    parser.add_argument("--minutes", type=float, default=1.5, help="minutes of the first training (1.5)")
    parser.add_argument("--further", type=float, default=0.5, help="minutes of each further training (0.5)")
    parser.add_argument("--carry", type=int, default=64, help="pieces over which states are carried (64)")
    parser.add_argument("--results", type=Path, default=Path("benchmarks/results/carried-states-cpu.json"))
    given = parser.parse_args()
    name, _, source = given.data.partition("=")
    shared = common(str(Path(source).resolve()))
    folder = given.runs / f"{name}-{given.minutes:g}-{given.further:g}-{given.carry}"
    folder.mkdir(parents=True, exist_ok=True)
    kinds = {"base": given.minutes, "ordinary": given.further, "carried": given.further}
    jobs, minutes, evaluations = {}, {}, {}
    for model in given.models.split(","):
        for kind, long in kinds.items():
            key = f"{model}/{kind}"
            jobs[key] = (model, [f"model.hidden_size={_WIDTH}", *shared])
            minutes[key], evaluations[key] = long, _EVALUATIONS[kind]
    plan = planned(jobs, minutes, given.runs / "costs.json", evaluations)
    for key, (model, overrides) in jobs.items():
        kind = key.rpartition("/")[2]
        new = ["--recipe", model]
        if kind == "base":
            new += overrides
        else:  # on other pieces than before
            new += [f"model.init_from={folder / f'{model}-base'}", "training.seed=1"]
            new += [each for each in shared if not each.startswith("data.tokenizer=")]
        if kind == "carried":
            new.append(f"training.carry_states={given.carry}")
        train(folder / key.replace("/", "-"), f"{name}/{key}", kind, new, plan[key], given.results)


if __name__ == "__main__":
    main()
