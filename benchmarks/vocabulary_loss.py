"""Time training steps of a language model with and without the logits of all tokens.

    python benchmarks/vocabulary_loss.py OUT.json [--repeats 5] [--threads 1]

A step is a forward and backward pass in float32 of a TNN (the recipe tnn-lm, 4 layers of 256 channels) with `CASES`:
tokens of a vocabulary, in rows of some length. Losses and gradients of both are compared before they are timed in turn.
Memory is what a step needs beyond the model, each in a process of its own.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import torch
from torch import Tensor

from lagwise.models import LagwiseConfig, LagwiseForCausalLM
from lagwise.process import keep_freed_memory
from lagwise.training import load_recipe
from lagwise_papers.bench.harness import memory_of
from lagwise_papers.bench.timing import interleaved, save_results

CASES = ((8192, 4, 512), (8192, 1, 16384), (50304, 4, 512))  # vocabulary, rows, length


def model(vocabulary: int) -> LagwiseForCausalLM:
    torch.manual_seed(0)
    return LagwiseForCausalLM(LagwiseConfig(**{**load_recipe("tnn-lm").model, "vocab_size": vocabulary}))


def step(made: LagwiseForCausalLM, ids: Tensor, skip: bool) -> Callable[[], Tensor]:
    """A function that clears gradients, runs both passes, and returns the loss."""

    def run() -> Tensor:
        made.zero_grad()
        loss = made(ids, labels=ids, skip_logits=skip).loss
        loss.backward()
        return loss.detach()

    return run


def steps(vocabulary: int, rows: int, length: int, skip: bool) -> Iterator[Callable[[], Tensor]]:
    """A small step and the step to measure, for `memory_of`."""
    made = model(vocabulary)
    yield step(made, torch.arange(16)[None], skip)
    yield step(made, torch.randint(vocabulary, (rows, length)), skip)


def check(made: LagwiseForCausalLM, ids: Tensor) -> float:
    """The largest error relative to the largest value, of the loss and of all gradients; ValueError above 1e-4."""
    found = []
    for skip in (False, True):
        loss = step(made, ids, skip)()
        found.append([loss, *(p.grad.clone() for p in made.parameters() if p.grad is not None)])
    error = max(float((a - b).abs().max() / a.abs().max().clamp(min=1e-30)) for a, b in zip(*found, strict=True))
    if not error < 1e-4:
        raise ValueError(f"loss or gradients are off by {error:.1e}")
    return error


def main(given: argparse.Namespace) -> None:
    torch.set_num_threads(given.threads)
    found = []
    for vocabulary, rows, length in CASES:
        made, ids = model(vocabulary), torch.randint(vocabulary, (rows, length))
        error = check(made, ids)
        names = {"all logits": False, "in chunks": True}
        seconds = interleaved({n: step(made, ids, skip) for n, skip in names.items()}, repeats=given.repeats, warmup=1)
        memory = {n: memory_of(steps, vocabulary, rows, length, s, threads=given.threads) for n, s in names.items()}
        found.append({"vocabulary": vocabulary, "rows": rows, "length": length, "error": error})
        found[-1] |= {"seconds": seconds, "memory": memory}
        ratio = seconds["all logits"].median / seconds["in chunks"].median
        mb = {n: value / 2**20 for n, value in memory.items()}
        speed = f"{vocabulary:,} tokens, {rows} x {length:,}: {ratio:.2f} times as fast"
        print(f"{speed}; {mb['all logits']:,.0f} and {mb['in chunks']:,.0f} MiB", flush=True)
        save_results(given.out, " ".join(["python", *sys.argv]), {"rows": found})


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("out", type=Path, help="results file")
    parser.add_argument("--repeats", type=int, default=5, help="timed steps (5)")
    parser.add_argument("--threads", type=int, default=1, help="threads of torch (1)")
    keep_freed_memory()
    main(parser.parse_args())
