"""Train a small model with each kernel, and compare streaming before and after conversion to a state space.

    python benchmarks/kernel_conversion.py OUT.json RUNS [--names rpe,s4d,...] [--steps 300] [--tolerance 1e-3]

RUNS is a folder for the runs. Models are causal TNNs with 2 layers of 64 channels, trained with each kernel on one
thread, on the bytes of Python's standard library, for the same number of steps of 8 x 256 tokens. LRU and S5 are also
used in place of the gated Toeplitz unit. Results: states per channel (smallest, median, largest); their certified error
and bound relative to the gain; bits per byte before and after at 256 and 1024 tokens of test data; tokens per second of
one stream before and after; and the error of streaming without conversion against the forward pass (float32, relative
to the largest logit). If a kernel cannot be converted, the reason is recorded. State spaces need no conversion. Each
result is written to the file at once, and finished runs are skipped.
"""

from __future__ import annotations

import argparse
import json
import tempfile
from pathlib import Path
from typing import Any

import torch

from lagwise.kernels import KERNELS
from lagwise.mixers import ToeplitzMixer
from lagwise.models import StreamingCache, load_model
from lagwise.models.conversion import effective_taps
from lagwise.ops import reduce_taps
from lagwise.process import keep_freed_memory
from lagwise.runs import convert_run, evaluate_run
from lagwise.runs.convert import layer_figures, tokens_per_second
from lagwise.tables import known
from lagwise_papers.bench.run_queue import keep, lagwise
from lagwise_papers.family.recurrence import RecurrentMixer

LENGTH, LONGEST = 256, 1024
NETWORK = {"hidden": 32, "layers": 3}
KERNEL_OPTIONS: dict[str, dict[str, Any]] = {
    "rpe": NETWORK,
    "frequency": NETWORK,
    "free": {"max_length": LONGEST},
    "hyena": {"span": LONGEST},
    "s4": {"span": LONGEST},
    "spectral": {"span": LONGEST},
}


def mixers() -> dict[str, dict[str, Any]]:
    """Return specs by name."""
    unit = {"name": "gtu", "expansion": 1}
    return {
        **{name: {**unit, "kernel": {"name": name, **KERNEL_OPTIONS.get(name, {})}} for name in KERNELS},
        "ski": {**unit, "kernel": {"name": "warped"}, "engine": "ski"},
        "lru": {"name": "lru"},
        "s5": {"name": "s5"},
    }


def train(run: Path, mixer: dict[str, Any], steps: int) -> None:
    """Train a run unless it is finished."""
    if (run / "config.json").is_file():
        return
    block = {"name": "prenorm", "token_mixer": mixer, "channel_mixer": {"name": "glu", "expansion": 1}}
    lagwise(
        run.with_name(f"{run.name}.log"),
        *("train", "--data", "stdlib", "--out", str(run), "model.hidden_size=64", "model.num_hidden_layers=2"),
        *(f"model.block={json.dumps(block)}", f"data.length={LENGTH}", f"training.steps={steps}"),
        *("training.batch_size=8", "training.learning_rate=0.004", "training.warmup_steps=30"),
        *(f"training.evaluate_every={steps}", f"training.save_every={steps}"),
    )


@torch.inference_mode()
def streaming_error(model: Any, tokens: int = 64) -> float:
    """Compute the largest relative difference of logits between streaming after a prompt and the forward pass."""
    ids = torch.randint(model.config.vocab_size, (1, LENGTH + tokens))
    full = model(ids).logits[:, LENGTH:]
    cache = StreamingCache(model.config.num_hidden_layers)
    model(ids[:, :LENGTH], past_key_values=cache, logits_to_keep=1)
    steps = [model(token[None, None], past_key_values=cache).logits for token in ids[0, LENGTH:]]
    return float((torch.cat(steps, 1) - full).abs().max() / full.abs().max())


def measured(run: Path, tolerance: float) -> dict[str, Any]:
    """Measure the results of a row."""
    model, _ = load_model(run)
    row: dict[str, Any] = {"tolerance": tolerance, "streaming_error": streaming_error(model)}
    layers = [m for m in model.modules() if isinstance(m, ToeplitzMixer)]
    if not layers or layers[0].kernel.recurrent:
        kernels: Any = [m.kernel for m in layers]
        poles = [kernel.recurrence().poles[0] for kernel in kernels]
        poles += [m.recurrence().log_decay for m in model.modules() if isinstance(m, RecurrentMixer)]
        row["state_space"] = max(len(each) for each in poles)  # complex states, per channel or in all
        row["tokens_per_second"] = tokens_per_second({"before": model}, LENGTH)
        return row
    with tempfile.TemporaryDirectory() as folder:
        try:
            result = convert_run(run, tolerance, Path(folder) / "converted", progress=False)
        except ValueError as refusal:
            row |= {"refused": str(refusal), "tokens_per_second": tokens_per_second({"before": model}, LENGTH)}
            for coarser in (1e-2, 1e-1):
                try:
                    each = [reduce_taps(effective_taps(layer, 4096), coarser) for layer in layers]
                except ValueError:
                    continue
                return {**row, "coarser": coarser, "layers": [layer_figures(str(i), r) for i, r in enumerate(each)]}
            return row
        scored = [
            evaluate_run(each, [LENGTH, 4 * LENGTH], max_tokens=32769, progress=False)["test"]
            for each in (run, Path(folder) / "converted")
        ]
    result["bits_per_byte"] = [
        {"length": before["length"], "before": before["bits_per_byte"], "after": after["bits_per_byte"]}
        for before, after in zip(*scored, strict=True)
    ]
    return {**row, **{key: value for key, value in result.items() if key not in ("run", "out")}}


def main(args: argparse.Namespace) -> None:
    torch.set_num_threads(1)
    torch.manual_seed(0)
    specs = mixers()
    done = json.loads(args.out.read_text())["results"] if args.out.is_file() else {}
    for name in args.names.split(",") if args.names else specs:
        if known(name, specs, "name") in done:
            continue
        run = args.runs.resolve() / name
        run.parent.mkdir(parents=True, exist_ok=True)
        train(run, specs[name], args.steps)
        row = {"mixer": specs[name], "steps": args.steps, **measured(run, args.tolerance)}
        keep(args.out, name, row)
        print(name, json.dumps({key: row[key] for key in row if key not in ("mixer", "layers")}), flush=True)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("out", type=Path, help="results file; results are added to it")
    parser.add_argument("runs", type=Path, help="folder for the runs")
    parser.add_argument("--names", help="kernels and mixers, separated by commas (all)")
    parser.add_argument("--steps", type=int, default=300, help="training steps (300)")
    parser.add_argument("--tolerance", type=float, default=1e-3, help="relative to a channel's gain (1e-3)")
    keep_freed_memory()
    main(parser.parse_args())
