"""Count what a layer's training step would do on a GPU, without one: calls, bytes, arithmetic, memory and waits.

    python benchmarks/gpu_counts.py OUT.json [--before OLD.json] [--models tnn-lm,...] [--shapes 4x2048,...]
        [--hidden 512] [--places] [--without-triton] [--no-peers]

Counts are of fake tensors on a CUDA device that does nothing (`steps.counting`), with the code's kernels in
Triton counted as one pass over their inputs and outputs. A layer's are the difference between models of three layers
and of one; the chain of best-lm counts as four layers. They are exact and repeatable; they predict no time. Bytes are
also given as multiples of the least: every activation is written once and read once where it is used, in bfloat16, with
norms, gates and residual sums fused into the products beside them, and the backward pass moves twice as much
(`steps.step_models.min_bytes`).

``--before`` puts the figures of an earlier file beside the new ones. Needs a C++ compiler, and a build of PyTorch
without CUDA.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
from pathlib import Path
from typing import Any

from steps import fake_cuda

fake_cuda.load()

import torch  # noqa: E402

from lagwise_papers.bench.timing import save_results  # noqa: E402
from steps.counting import Count, count_step  # noqa: E402
from steps.step_models import (  # noqa: E402
    MODELS,
    PEERS,
    SHAPES,
    build,
    cases,
    layers_between,
    min_bytes,
)


def layer_counts(name: str, hidden: int, batch: int, length: int, by_line: bool = False) -> dict[str, Any]:
    """Count one layer's training step."""

    def counts(layers: int) -> Count:
        ids = {"ids": (batch, length)}
        inputs = lambda: {k: torch.zeros(v, dtype=torch.long) for k, v in ids.items()}  # noqa: E731
        return count_step(lambda: build(name, hidden, layers, length), inputs, by_line=by_line)

    one, three = counts(1), counts(3)
    layers = layers_between(name)
    figures = ("calls", "bytes", "flops", "peak", "waits")
    row = {"model": name, "batch": batch, "length": length, "hidden": hidden}
    row |= {each: (getattr(three, each) - getattr(one, each)) / layers for each in figures}
    row["times_least"] = row["bytes"] / min_bytes(name, batch * length, hidden)
    if by_line:
        row["places"] = {
            line: [(a - b) / layers for a, b in zip(figures_of_three, one.by_line[line], strict=True)]
            for line, figures_of_three in three.by_line.items()
        }
    return row


def pretend_triton() -> None:
    """Have fused kernels serve the fake device, whether Triton is installed or not."""
    from lagwise.ops import fused

    fused._installed = True


def main(args: argparse.Namespace) -> None:
    if not args.without_triton:
        pretend_triton()
    before = None
    if args.before is not None:
        content = json.loads(args.before.read_text())
        before = {"commit": content["commit"], "rows": content["results"]["rows"]}
    rows = []
    for name, batch, length in cases(args.shapes, [*args.models.split(","), *([] if args.no_peers else PEERS)]):
        row = layer_counts(name, args.hidden, batch, length, args.places)
        lines = sorted(row.pop("places", {}).items(), key=lambda line: -line[1][1])
        rows.append(row)
        print(
            f"{name:22}{f'{batch}x{length}':>10} {row['calls']:6.1f} calls {row['bytes'] / 1e9:8.3f} GB"
            f" {row['times_least']:6.2f} x least {row['flops'] / 1e9:8.1f} GFLOP {row['peak'] / 1e9:7.3f} GB peak"
            f" {row['waits']:5.1f} waits",
            flush=True,
        )
        for line, (calls, size) in lines[:70]:
            print(f"    {size / row['bytes']:6.1%} {calls:6.1f} calls  {line}")
    command = " ".join(["python", *sys.argv])
    save_results(args.out, command, {"rows": rows, "before": before, "triton": not args.without_triton})


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("out", type=Path)
    parser.add_argument("--before", type=Path)
    parser.add_argument("--models", default=",".join(MODELS))
    parser.add_argument("--shapes", default=",".join(SHAPES))
    parser.add_argument("--hidden", type=int, default=512)
    parser.add_argument("--places", action="store_true")
    parser.add_argument("--without-triton", action="store_true")
    parser.add_argument("--no-peers", action="store_true")
    main(parser.parse_args())
    sys.stdout.flush()
    os._exit(0)  # the threads of autograd that serve the fake device do not end
