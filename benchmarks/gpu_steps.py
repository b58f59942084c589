"""Time a layer's training step on a CUDA card, beside the counts of `gpu_counts.py`.

    python benchmarks/gpu_steps.py OUT.json [--counts benchmarks/results/gpu-counts.json] [--models tnn-lm,...]
        [--shapes 4x2048,...] [--hidden 512] [--repeats 7] [--compiled tnn-lm,...]

A step is a forward and a backward pass in bfloat16 autocast, by the models of `steps.step_models`. A layer's
time is the difference between models of three layers and of one; the chain of best-lm counts as four layers. Each is
timed as Python launches it, and as a CUDA graph, which takes the time of the card alone; models named by ``--compiled``
also through `torch.compile`, as by ``training.compile=true`` and ``reduce-overhead``. Packages of peers that are not
installed are left out.

A model is timed only if its loss is within 1 % of the one without autocast and fused kernels, and its gradient of the
embeddings points the same way (cosine of at least 0.98).
"""

from __future__ import annotations

import argparse
import copy
import json
import sys
from collections.abc import Callable
from dataclasses import astuple
from pathlib import Path
from typing import Any
from unittest import mock

import torch
from torch import Tensor, nn

from lagwise.models.compiled import capture
from lagwise.ops import fused
from lagwise.training.recipe import REDUCE_OVERHEAD
from lagwise.training.setup import compile_model
from lagwise_papers.bench.timing import Timing, interleaved, save_results
from steps.step_models import MODELS, PEERS, SHAPES, build, cases, layers_between

INSTALLED = ("Mamba-2", "GLA")  # peers that are only timed, where their packages are
COMPILED = {"compiled": True, "reduce_overhead": REDUCE_OVERHEAD}  # values of training.compile
_WARMUP = 4  # steps: a graph is compiled, warmed up, and recorded
Step = Callable[[], Tensor]


def training_step(model: nn.Module, ids: Tensor) -> Step:
    """A function that runs a model's forward and backward pass and returns the loss."""

    def step() -> Tensor:
        torch.compiler.cudagraph_mark_step_begin()
        model.zero_grad(set_to_none=True)
        with torch.autocast("cuda", torch.bfloat16):
            loss = model(ids)
        loss.backward()
        return loss.detach()

    return step


def check(name: str, model: nn.Module, plain: nn.Module, ids: Tensor) -> None:
    """Raise ValueError if a model's loss or gradient differs from that of an equal one in float32 by PyTorch's
    operators."""

    def embedding_gradient(of: nn.Module) -> Tensor:
        weight = next(m.weight for m in of.modules() if isinstance(m, nn.Embedding))
        assert isinstance(weight, Tensor)
        assert weight.grad is not None
        return weight.grad.double().flatten()

    loss, gradient = float(training_step(model, ids)()), embedding_gradient(model)
    plain.zero_grad(set_to_none=True)
    with mock.patch.object(fused, "available", return_value=False):
        exact = plain(ids)
        exact.backward()
    cosine = float(torch.cosine_similarity(gradient, embedding_gradient(plain), 0))
    if not (abs(loss - float(exact)) <= 0.01 * float(exact) and cosine >= 0.98):
        raise ValueError(f"{name} has the loss {loss} for {float(exact)}, gradients' cosine {cosine}; it is not timed")


def seconds(step: Callable[[], Any], repeats: int, calls: int = 4) -> Timing:
    """Measure the seconds of a call, over groups of calls that follow each other, as in a training."""

    def group() -> None:
        for _ in range(calls):
            step()

    timing = interleaved({"group": group}, repeats=repeats, warmup=1)["group"]
    return Timing(*(each / calls for each in astuple(timing)))


def measure(
    name: str, hidden: int, layers: int, batch: int, length: int, repeats: int, compiled: bool
) -> dict[str, Any]:
    """Measure the time and the memory of a model's step."""
    torch.manual_seed(0)
    model = build(name, hidden, layers, length).cuda()
    ids = torch.randint(1, 257, (batch, length), device="cuda")
    if layers == 1:
        check(name, model, model, ids)
    step = training_step(model, ids)
    step()
    torch.cuda.synchronize()
    before = torch.cuda.memory_allocated()
    torch.cuda.reset_peak_memory_stats()
    result: dict[str, Any] = {"eager": seconds(step, repeats)}
    result["peak"] = torch.cuda.max_memory_allocated() - before
    try:
        result["graph"] = seconds(capture(step, step, ids.device)[0], repeats)
    except RuntimeError as error:  # a step that waits for values
        torch.cuda.synchronize()
        print(f"{name}: no CUDA graph: {str(error).splitlines()[0]}", flush=True)
    for how in COMPILED if compiled else ():
        if how == "reduce_overhead" or name in MODELS:  # only ours compile layers
            result[how] = compiled_seconds(name, copy.deepcopy(model), model, ids, how, repeats)
    return result


def compiled_seconds(name: str, model: nn.Module, plain: nn.Module, ids: Tensor, how: str, repeats: int) -> Timing:
    """Measure the seconds of a model's step through `torch.compile`."""
    compile_model(getattr(model, "model", model), COMPILED[how])
    step = training_step(model, ids)
    for _ in range(_WARMUP):
        step()
    check(f"{name}, {how}", model, plain, ids)
    torch.cuda.synchronize()
    return seconds(step, repeats)


def layer_times(name: str, hidden: int, batch: int, length: int, repeats: int, compiled: bool) -> dict[str, Any]:
    """Measure the seconds and bytes of one layer's training step."""
    one, three = (measure(name, hidden, layers, batch, length, repeats, compiled) for layers in (1, 3))
    layers = layers_between(name)
    row: dict[str, Any] = {"model": name, "batch": batch, "length": length, "hidden": hidden}
    for how in ("eager", "graph", *COMPILED):
        if how in one and how in three:
            row[how] = (three[how].median - one[how].median) / layers
            row[f"{how}_model"] = three[how]
    row["peak"] = (three["peak"] - one["peak"]) / layers
    return row


def ceilings() -> dict[str, float]:
    """Measure what the card moves, multiplies and launches: bytes per second of a copy (read and written), bfloat16
    multiplications and additions per second, seconds of a launch."""
    source = torch.randn(1 << 28, device="cuda")
    target = torch.empty_like(source)
    a, b = (torch.randn(8192, 8192, device="cuda", dtype=torch.bfloat16) for _ in range(2))
    small = torch.zeros(1, device="cuda")
    return {
        "bytes_per_second": 2 * source.nbytes / seconds(lambda: target.copy_(source), 5).median,
        "flops_per_second": 2 * 8192**3 / seconds(lambda: a @ b, 5).median,
        "launch_seconds": seconds(lambda: small.add_(1), 5, calls=1000).median,
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("out", type=Path)
    parser.add_argument("--counts", type=Path, default=Path("benchmarks/results/gpu-counts.json"))
    parser.add_argument("--models", default=",".join(MODELS + PEERS + INSTALLED))
    parser.add_argument("--shapes", default=",".join(SHAPES))
    parser.add_argument("--hidden", type=int, default=512)
    parser.add_argument("--repeats", type=int, default=7)
    parser.add_argument("--compiled", default="", help="models to compile too, at 4x2048")
    args = parser.parse_args()
    if not torch.cuda.is_available():
        raise SystemExit("There is no CUDA card here; benchmarks/gpu_counts.py counts without one.")
    limits = ceilings()
    print(" ".join(f"{name} {value:.3g}" for name, value in limits.items()), flush=True)
    counted = {
        (row["model"], row["batch"], row["length"], row["hidden"]): row
        for row in (json.loads(args.counts.read_text())["results"]["rows"] if args.counts.is_file() else [])
    }
    rows = []
    for name, batch, length in cases(args.shapes, args.models.split(",")):
        shape = f"{batch}x{length}"
        try:
            compiled = name in args.compiled.split(",") and shape == "4x2048"
            row = layer_times(name, args.hidden, batch, length, args.repeats, compiled)
        except (ImportError, ValueError, RuntimeError) as error:
            print(f"{name} {shape}: {type(error).__name__}: {error}", flush=True)
            continue
        count = counted.get((name, batch, length, args.hidden))
        if count is not None:
            row["counted"] = {
                "bytes_seconds": count["bytes"] / limits["bytes_per_second"],
                "launch_seconds": count["calls"] * limits["launch_seconds"],
            }
        rows.append(row)
        times = " ".join(f"{how} {row[how] * 1e3:.3f}" for how in ("eager", "graph", *COMPILED) if how in row)
        counted_ms = row.get("counted", {}).get("bytes_seconds", 0) * 1e3
        print(f"{name:22}{shape:>10} ms: {times} counted {counted_ms:.3f}; {row['peak'] / 1e9:.3f} GB", flush=True)
        torch.cuda.empty_cache()
        save_results(args.out, " ".join(["python", *sys.argv]), {"ceilings": limits, "rows": rows})


if __name__ == "__main__":
    main()
