"""Compile training steps of recipes with torch.compile, and compare them with the models' own.

    python benchmarks/compiled_training.py OUT.json [--recipes tnn-lm,...] [--layers 4] [--batch 4]
        [--lengths 512,300,450] [--repeats 3]

Models have the recipe's width, four layers and a vocabulary of bytes, and no dropout. Each trains on plain, padded and
packed rows of three lengths, as with ``training.compile=true``: layers share a graph for the first length, and one for
all. Differences are the largest of the loss, relative, and of a gradient, of the largest gradient of the same weight.
Nothing is read from a cache of compiled code. Compilation is in seconds by the clock and of the CPU, those of the C++
compiler included, which PyTorch runs on all cores; step and all, one number for each length. What PyTorch prepares once
a machine, its headers and a check of vector instructions, is left out and measured alone, with a function of one
operation. Steps are timed in turn, at the first length. The file is written after each row; rows that it has already
are kept.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

import psutil
import torch
from torch import Tensor, nn

from lagwise.models import LagwiseConfig, LagwiseForCausalLM, LagwiseForMaskedLM
from lagwise.training import load_recipe
from lagwise.training.setup import compile_model
from lagwise_papers.bench.timing import interleaved, save_results

RECIPES = (
    *("tnn-lm", "fd-tnn-lm", "ski-tnn-lm", "mega-lm", "tcnca-lm", "best-lm", "transformer-alibi-lm"),
    *("tnn-mlm", "fd-tnn-mlm", "ski-tnn-mlm", "mega-mlm", "tcn-mlm", "transformer-mlm"),
    *("megalodon-lm", "transformer-learned-lm"),
)
KINDS = ("plain", "padded", "packed")
VOCABULARY = 257
_TOLERANCE = 1e-3  # of a gradient
T = TypeVar("T")


def recipe_model(name: str, layers: int) -> nn.Module:
    """A recipe's model with so many layers, without dropout."""
    recipe = load_recipe(name)
    options = {**recipe.model, "vocab_size": VOCABULARY}
    block = options["block"]
    if block["name"] == "chain":
        options["num_hidden_layers"], left = divmod(layers, len(block["blocks"]))
        if left:
            raise ValueError(f"{name} has {len(block['blocks'])} layers at a time, got {layers}")
    else:
        options["num_hidden_layers"] = layers
    encoder = recipe.task["name"] == "masked_language_modelling"
    torch.manual_seed(0)
    config = LagwiseConfig(**options, causal=not encoder)
    model = (LagwiseForMaskedLM if encoder else LagwiseForCausalLM)(config).train()
    for module in model.modules():
        if isinstance(module, nn.Dropout):
            module.p = 0.0
    return model


def inputs(kind: str, batch: int, length: int) -> dict[str, Tensor]:
    """Draw random tokens; padded rows end with up to a third of padding, packed ones have texts of 50 tokens on
    average, of all lengths."""
    ids = torch.randint(3, VOCABULARY, (batch, length), generator=torch.Generator().manual_seed(length))
    if kind == "plain":
        return {"input_ids": ids, "labels": ids}
    if kind == "packed":
        starts = torch.rand(batch, length, generator=torch.Generator().manual_seed(length)) < 0.02
        return {"input_ids": ids, "labels": ids, "seq_idx": starts.cumsum(1)}
    ends = length - torch.arange(batch) * length // (3 * batch)
    mask = (torch.arange(length) < ends[:, None]).long()
    return {"input_ids": ids, "labels": ids.masked_fill(mask == 0, -100), "attention_mask": mask}


def step(model: nn.Module, inputs: dict[str, Tensor]) -> list[Tensor]:
    """Compute the loss and the gradients of a step."""
    model.zero_grad()
    loss = model(**inputs, use_cache=False).loss
    loss.backward()
    return [loss.detach(), *(p.grad for p in model.parameters() if p.grad is not None)]


def timed(run: Callable[[], T]) -> tuple[dict[str, float], T]:
    """Time a call by the clock and by the CPU, and return its result too."""
    clock, cpu = time.perf_counter(), cpu_seconds()
    result = run()
    return {"clock": time.perf_counter() - clock, "cpu": cpu_seconds() - cpu}, result


def cpu_seconds() -> float:
    """Sum the CPU seconds of this process and of all that it started: PyTorch's compiling processes live on."""
    this = psutil.Process()
    return sum(sum(process.cpu_times()[:4]) for process in (this, *this.children(recursive=True)))


def measure(name: str, kind: str, layers: int, batch: int, lengths: list[int], repeats: int) -> dict[str, Any]:
    """Measure one row of the results."""
    torch.compiler.reset()
    torch._dynamo.utils.counters.clear()
    model, compiled = recipe_model(name, layers), recipe_model(name, layers)  # of the same weights
    compile_model(compiled)
    row: dict[str, Any] = {"recipe": name, "rows": kind, "compile_seconds": [], "loss": 0.0, "gradients": 0.0}
    for length in lengths:
        batch_inputs = inputs(kind, batch, length)
        spent, results = timed(lambda batch_inputs=batch_inputs: step(compiled, batch_inputs))
        row["compile_seconds"].append(spent)
        results = [each.clone() for each in results]
        exact = step(model, batch_inputs)
        row["loss"] = max(row["loss"], float((results[0] - exact[0]).abs() / exact[0]))
        differences = [
            float((a - b).abs().max() / b.abs().max().clamp(min=1e-12))
            for a, b in zip(results[1:], exact[1:], strict=True)
        ]
        row["gradients"] = max(row["gradients"], *differences)
    row["graphs"] = torch._dynamo.utils.counters["stats"]["unique_graphs"]
    if not row["gradients"] <= _TOLERANCE:
        raise RuntimeError(f"{name}, {kind} rows: a gradient is off by {row['gradients']:.1e} of its largest")
    batch_inputs = inputs(kind, batch, lengths[0])
    methods = {"compiled": lambda: step(compiled, batch_inputs), "eager": lambda: step(model, batch_inputs)}
    return row | interleaved(methods, repeats=repeats)  # type: ignore[arg-type]


def main(args: argparse.Namespace) -> None:
    torch._inductor.config.force_disable_caches = True  # type: ignore[attr-defined]
    lengths = [int(each) for each in args.lengths.split(",")]
    rows = json.loads(args.out.read_text())["results"]["rows"] if args.out.exists() else []
    done = {(row["recipe"], row["rows"]) for row in rows}
    once = timed(lambda: torch.compile(torch.sin)(torch.zeros(100)))[0]
    shape = {"layers": args.layers, "batch": args.batch, "lengths": lengths, "once": once}
    for kind in KINDS:
        for name in args.recipes.split(","):
            if (name, kind) in done:
                continue
            row = measure(name, kind, args.layers, args.batch, lengths, args.repeats)
            rows.append(row)
            save_results(args.out, " ".join(["python", *sys.argv]), {**shape, "rows": rows})
            spent = ", ".join(f"{each['clock']:.1f} ({each['cpu']:.1f})" for each in row["compile_seconds"])
            print(
                f"{name:24}{kind:8} {row['graphs']} graphs, {spent} s; loss {row['loss']:.0e}, gradients"
                f" {row['gradients']:.0e}; step {row['compiled'].median / row['eager'].median:.2f} of eager",
                flush=True,
            )


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("out", type=Path)
    parser.add_argument("--recipes", default=",".join(RECIPES))
    parser.add_argument("--layers", type=int, default=4)
    parser.add_argument("--batch", type=int, default=4)
    parser.add_argument("--lengths", default="512,300,450")
    parser.add_argument("--repeats", type=int, default=3)
    main(parser.parse_args())
