"""Multi-query associative recall with every kind of mixer, each trained for the same CPU time.

    OMP_NUM_THREADS=1 python papers/benchmarks/query_recall.py RUNS [--minutes 0.75 | --steps N]
        [--models "TNN;MEGA;..."] [--results FILE]

Sequences are Zoology's (Arora et al. 2023) at the smallest of its lengths: 128 tokens, 64 in a sequence, 4 to 16
pairs. All models have 64 channels and three layers, or the chain of four of the recipe best-lm, and attention in
chunks of 16, so that most queries are in another chunk than their pairs; the Transformer sees the whole sequence. All
have one learning rate, without tuning, and as many steps as fit into the minutes of one CPU, by the measured cost of
a step and of a validation (RUNS/query-costs.json); with ``--steps``, as many as it says, of 64 sequences instead of 32.
Finished models are skipped and interrupted ones resumed.
"""

from __future__ import annotations

import argparse
import json
import time
from pathlib import Path
from typing import Any

import yaml

from lagwise.models.presets import PRESETS
from lagwise.process import keep_freed_memory
from lagwise.runs import evaluate_run
from lagwise.training import load_recipe, read_metrics, train_or_resume
from lagwise_papers.bench.run_queue import cadence, keep, planned

Fields = dict[str, Any]
_WIDTH, _LAYERS, _CHUNK, _RATE, _EVALUATIONS = 64, 3, 16, 0.003, 3
_TEST = 32_000  # tokens of test sequences of each length and number of pairs


def _of_word(word: str, **changes: Any) -> Fields:
    """The model of a word, with attention in narrow chunks."""
    model = PRESETS[word]
    narrow = {"chunk": _CHUNK} if "chunk" in model["block"] else {}
    return {"num_hidden_layers": _LAYERS, **model, "block": {**model["block"], **narrow, **changes}}


def _best(**fields: Any) -> Fields:
    """The blocks of best-lm, with attention in narrow chunks, without its embeddings of n-grams and matches."""
    blocks = [dict(block) for block in load_recipe("best-lm").model["block"]["blocks"]]
    blocks[-1]["token_mixer"] = {**blocks[-1]["token_mixer"], "chunk": _CHUNK}
    return {"num_hidden_layers": 1, "block": {"name": "chain", "blocks": blocks}, **fields}


MODELS: dict[str, Fields] = {
    "TNN": _of_word("tnn"),
    "FD-TNN": _of_word("fd-tnn"),
    "MEGA": _of_word("mega"),
    "Megalodon": _of_word("megalodon"),
    "Megalodon, sliding chunks": _of_word("megalodon", sliding=True),
    "best-lm": _best(),
    "best-lm, matches of 1 token": _best(match_sizes=[1]),
    "Transformer": _of_word("transformer"),
}


def recipe(name: str, folder: Path, batch: int) -> Path:
    """Write the recipe of a model."""
    text = {
        "description": f"{name} on multi-query recall",
        "task": {"name": "multi_query_recall", "pairs": [4, 8, 16]},
        "model": {"hidden_size": _WIDTH, **MODELS[name]},
        "data": {"vocab_size": 128, "length": 64},
        "training": {"batch_size": batch, "learning_rate": _RATE, "report_to": "none", "evaluate_tokens": 16384},
    }
    path = folder / f"{list(MODELS).index(name)}.yaml"
    path.write_text(yaml.safe_dump(text, sort_keys=False))
    return path


def main() -> None:
    parser = argparse.ArgumentParser(description=" ".join((__doc__ or "").partition("\n\n")[0].split()))
    parser.add_argument("runs", type=Path, help="folder for the runs")
    parser.add_argument("--models", help="separated by semicolons (all)")
    parser.add_argument("--minutes", type=float, default=0.75, help="minutes of each model (0.75)")
    parser.add_argument("--steps", type=int, help="steps of each model, in place of minutes")
    parser.add_argument("--results", type=Path, default=Path("benchmarks/results/query-recall-cpu.json"))
    args = parser.parse_args()
    keep_freed_memory()  # as the command line does
    names = args.models.split(";") if args.models else list(MODELS)
    folder = args.runs / (f"queries-{args.steps}-steps" if args.steps else f"queries-{args.minutes:g}")
    folder.mkdir(parents=True, exist_ok=True)
    paths = {name: recipe(name, folder, 64 if args.steps else 32) for name in names}
    jobs = {name: (str(path), list[str]()) for name, path in paths.items()}
    if args.steps:
        plan = {name: {"steps": args.steps} for name in names}
    else:
        plan = planned(jobs, args.minutes, args.runs / "query-costs.json", _EVALUATIONS)
    for name, path in paths.items():
        done = json.loads(args.results.read_text())["results"] if args.results.is_file() else {}
        if name in done:
            continue
        begun, run, steps = time.process_time(), folder / path.stem, plan[name]["steps"]
        train_or_resume(load_recipe(str(path), cadence(steps, _EVALUATIONS)), run, progress=False)
        seconds = time.process_time() - begun
        tested = evaluate_run(run, max_tokens=_TEST, progress=False)["test"]
        curve = [(m["step"], m["eval_accuracy"]) for m in read_metrics(run) if "eval_accuracy" in m]
        model = load_recipe(str(path)).model
        keep(args.results, name, {**plan[name], "cpu_seconds": seconds, "model": model, "curve": curve, "test": tested})
        by_size = " ".join(f"{each['length']}/{each['pairs']}: {each['accuracy']:.3f}" for each in tested)
        print(f"{name}: {steps} steps, {seconds:.0f} s, {by_size}", flush=True)


if __name__ == "__main__":
    main()
