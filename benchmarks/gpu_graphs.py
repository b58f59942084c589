"""Count the kernels that a layer's compiled training step would launch on a GPU, without one.

    PYTHONPATH=build/triton python benchmarks/gpu_graphs.py OUT.json [--models tnn-lm,...] [--shape 4x2048]
        [--hidden 512]

Beside the calls of the eager step, which `gpu_counts.py` counts, those of the graphs that inductor schedules for an
H100 (`steps.compiled_counts`), by kind, and of the graphs with its option ``combo_kernels``. Also waits of the
host, operations on complex numbers, and why a graph could not be a CUDA graph (``mode="reduce-overhead"``). A layer's
are the difference between models of two layers and of one; the chain of best-lm counts as four layers. Needs a C++
compiler, a build of PyTorch without CUDA, and Triton's package, of which nothing runs (`make test-triton` puts it into
build/triton). The file is written after each row.
"""

from __future__ import annotations

import argparse
import os
import sys
from pathlib import Path
from typing import Any

import gpu_counts  # makes the device, before torch looks for one

gpu_counts.pretend_triton()

import torch  # noqa: E402

from lagwise_papers.bench.timing import save_results  # noqa: E402
from steps.compiled_counts import KINDS, GraphCount, count_compiled  # noqa: E402
from steps.step_models import MODELS, build, cases, layers_between  # noqa: E402

MODELS_AND_PEERS = (*MODELS, "torch.fft")


def graph_counts(name: str, hidden: int, batch: int, length: int, *, combined: bool = False) -> dict[str, Any]:
    """Count the launches of one layer's training step, and what the model's graphs wait for."""

    def counts(layers: int) -> GraphCount:
        ids = lambda: {"ids": torch.zeros(batch, length, dtype=torch.long)}  # noqa: E731
        return count_compiled(lambda: build(name, hidden, layers, length), ids, combined=combined)

    one, two = counts(1), counts(2)
    share = 2 / layers_between(name)
    kinds = {kind: (two.kinds[kind] - one.kinds[kind]) * share for kind in KINDS}
    facts = {"waits": two.waits, "graphs": two.graphs, "complex": two.complex, "refused": two.refused}
    return {"calls": sum(kinds.values()), "kinds": kinds, **facts}


def main(args: argparse.Namespace) -> None:
    rows = []
    for name, batch, length in cases(args.shape, args.models.split(",")):
        row = {"model": name, "batch": batch, "length": length, "hidden": args.hidden}
        row["eager"] = gpu_counts.layer_counts(name, args.hidden, batch, length)["calls"]
        row["compiled"] = graph_counts(name, args.hidden, batch, length)
        row["combined"] = graph_counts(name, args.hidden, batch, length, combined=True)
        rows.append(row)
        save_results(args.out, " ".join(["python", *sys.argv]), {"rows": rows})
        compiled, combined = row["compiled"], row["combined"]
        print(
            f"{name:22} {row['eager']:6.1f} calls, compiled {compiled['calls']:6.1f}, combined"
            f" {combined['calls']:6.1f}; {compiled['waits']} waits, {compiled['complex']} complex,"
            f" CUDA graph: {compiled['refused'] or 'yes'}",
            flush=True,
        )


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("out", type=Path)
    parser.add_argument("--models", default=",".join(MODELS_AND_PEERS))
    parser.add_argument("--shape", default="4x2048")
    parser.add_argument("--hidden", type=int, default=512)
    main(parser.parse_args())
    sys.stdout.flush()
    os._exit(0)  # the threads of autograd that serve the fake device do not end
