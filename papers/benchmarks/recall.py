"""Associative recall with every kind of model, with a fixed number of steps.

    python papers/benchmarks/recall.py --out FILE

Results are added to an existing results file, and models that it contains are not trained again.

Each model has two layers. At length 64 it has 32 channels and chunks of 32, for longer sequences 128 and 128 (TCNCA
app. G). All models have the same small budget: learning rates are not tuned, and models are not trained to convergence.
"""

from __future__ import annotations

import argparse
import itertools
import json
import time
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from lagwise.runs import evaluate_run
from lagwise.training import load_recipe, read_metrics, train
from lagwise_papers.bench.run_queue import keep

PLANS = {64: (600, 32, 0.004), 1024: (250, 4, 0.002)}  # steps, rows of a batch and learning rate of each length
VOCABULARIES = (10, 20)  # tokens: half keys, half values
SIZES = {64: {"hidden": 32, "chunk": 32, "tcn": (5, 4, 3)}, 1024: {"hidden": 128, "chunk": 128, "tcn": (7, 6, 4)}}


def blocks(length: int) -> dict[str, dict[str, Any]]:
    """The block of every model at this length."""
    size = SIZES[64 if length <= 64 else 1024]
    tcn = {"name": "tcn", **dict(zip(("kernel_size", "dilation", "depth"), size["tcn"], strict=True))}
    mega = {"name": "mega", "chunk": size["chunk"], "query_size": 32}
    mlp = {"name": "mlp", "expansion": 2}
    convolution = {"name": "prenorm", "token_mixer": tcn, "channel_mixer": {"name": "none"}}
    chunks = {"name": "chunked_attention", "chunk": size["chunk"]}
    attention = {"name": "prenorm", "token_mixer": chunks, "channel_mixer": mlp}
    return {
        "TCNCA-simple": {"name": "chain", "blocks": [convolution, attention]},
        "TCNCA": {**mega, "memory": tcn},
        "MEGA": mega,
        "TNN": {"name": "prenorm", "token_mixer": {"name": "gtu"}},
        "FD-TNN": {"name": "prenorm", "token_mixer": {"name": "gtu", "kernel": {"name": "frequency"}}},
        "SKI-TNN": {"name": "prenorm", "token_mixer": {"name": "gtu", "kernel": {"name": "warped"}, "engine": "ski"}},
        "Transformer": {"name": "prenorm", "token_mixer": {"name": "attention", "heads": 4}, "channel_mixer": mlp},
    }


def measure(length: int, vocab_size: int, steps: int, batch_size: int, rate: float) -> dict[str, Any]:
    """Train and test each model; return accuracies and the cost of training."""
    rows = {}
    for name, block in blocks(length).items():
        recipe = load_recipe(
            "associative-recall",
            [
                *(f"data.length={length}", f"data.vocab_size={vocab_size}", f"training.steps={steps}"),
                *(f"training.batch_size={batch_size}", f"training.learning_rate={rate}"),
                *(f"training.evaluate_every={max(1, steps // 10)}", f"training.save_every={steps}"),
            ],
        )
        recipe.model |= {"hidden_size": SIZES[64 if length <= 64 else 1024]["hidden"], "block": block}
        with TemporaryDirectory() as folder:
            run = Path(folder) / "run"
            started = time.monotonic()
            train(recipe, run, progress=False)
            seconds = time.monotonic() - started
            tested = evaluate_run(run, progress=False)["test"][0]
            curve = [(m["step"], m["eval_accuracy"]) for m in read_metrics(run) if "eval_accuracy" in m]
        rows[name] = {**tested, "seconds": seconds, "steps": steps, "batch_size": batch_size, "valid": curve}
        print(f"{length:>6} {vocab_size:>3} {name:<14} {tested['accuracy']:.3f}  {seconds:.0f} s", flush=True)
    return rows


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, required=True, help="results file")
    out = parser.parse_args().out
    done = json.loads(out.read_text())["results"] if out.is_file() else {}
    for (length, plan), tokens in itertools.product(PLANS.items(), VOCABULARIES):
        if f"{length}/{tokens}" not in done:
            keep(out, f"{length}/{tokens}", measure(length, tokens, *plan))


if __name__ == "__main__":
    main()
