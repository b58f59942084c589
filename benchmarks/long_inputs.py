"""Measure memory and time of long texts on one device: a forward pass, the same in pieces, and a training step.

    python benchmarks/long_inputs.py OUT.json [--recipes NAME ...] [--threads 1]

Models are those of all recipes of causal language models, with hidden size 64 and two layers (best-lm: its four blocks
once), on one text of bytes, in float32. ``whole`` is a forward pass without gradients; ``pieces`` the same in pieces of
65,536 tokens with a cache, whose last logits are compared with those of the whole; ``step`` a training step, and
``checkpointed`` one with gradient checkpointing. Seconds are of the CPU, and memory is what is needed beyond the model,
in a process for the forward passes and one for each step. Attention over the whole text takes time that grows with the
square of the length, so its texts are shorter. Results are saved after every measurement, and a further run goes on
from them.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from concurrent.futures.process import BrokenProcessPool
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from lagwise.models import LagwiseConfig, LagwiseForCausalLM
from lagwise.process import denormals_as_zero, share_cores
from lagwise.training import load_recipe
from lagwise_papers.bench.harness import in_new_process, process_bytes
from lagwise_papers.bench.timing import save_results

RECIPES = ("tnn-lm", "fd-tnn-lm", "ski-tnn-lm", "mega-lm", "megalodon-lm", "tcnca-lm", "best-lm")
ATTENTION = ("transformer-alibi-lm", "transformer-learned-lm")
LENGTHS, OF_ATTENTION = (131_072, 1_048_576), (8_192, 32_768)
CHUNK_TOKENS, COMPARED_LOGITS = 65_536, 64
WAYS = (("pieces", "whole"), ("step",), ("checkpointed",))  # those of a process, from the least memory to the most


def model(recipe: str, length: int) -> LagwiseForCausalLM:
    torch.manual_seed(0)
    fields: dict[str, Any] = {**load_recipe(recipe).model, "vocab_size": 258, "hidden_size": 64}
    if recipe in ATTENTION:
        fields["block"]["token_mixer"]["heads"] = 4  # which must divide 64
    fields["num_hidden_layers"] = 1 if fields["block"]["name"] == "chain" else 2
    if fields.get("max_position_embeddings"):
        fields["max_position_embeddings"] = length
    return LagwiseForCausalLM(LagwiseConfig(**fields))


@torch.no_grad()
def run_full(model: LagwiseForCausalLM, ids: Tensor) -> Tensor:
    return model.eval()(ids, logits_to_keep=COMPARED_LOGITS).logits


@torch.no_grad()
def run_in_chunks(model: LagwiseForCausalLM, ids: Tensor, size: int = CHUNK_TOKENS) -> Tensor:
    cache, logits = None, torch.empty(0)
    for chunk in ids.split(size, 1):
        out = model.eval()(chunk, past_key_values=cache, use_cache=True, logits_to_keep=COMPARED_LOGITS)
        cache, logits = out.past_key_values, out.logits
    return logits


def step(model: LagwiseForCausalLM, ids: Tensor) -> Tensor:
    model.train().zero_grad()
    loss = model(ids, labels=ids, skip_logits=True).loss
    loss.backward()
    return loss.detach()


@denormals_as_zero()
def measured(recipe: str, length: int, ways: tuple[str, ...], threads: int) -> dict[str, Any]:
    """Measure CPU seconds and bytes of each way, one after another, after each has run on a short text, which allocates
    the libraries' buffers. Of ways with the same logits also how much the last differ, relative to the largest."""
    torch.set_num_threads(threads)
    network, results, logits = model(recipe, length), {}, []
    if "checkpointed" in ways:
        network.gradient_checkpointing_enable()
    runs = {way: {"whole": run_full, "pieces": run_in_chunks}.get(way, step) for way in ways}
    for run in runs.values():
        run(network, torch.arange(256)[None])
    ids = torch.randint(256, (1, length), generator=torch.Generator().manual_seed(1))
    before = process_bytes("VmRSS")
    for way, run in runs.items():
        began = time.process_time()
        logits.append(run(network, ids))
        results[way] = {"seconds": time.process_time() - began, "memory": max(0, process_bytes("VmHWM") - before)}
    if len(logits) > 1:
        results[ways[-1]]["difference"] = ((logits[0] - logits[1]).abs().max() / logits[0].abs().max()).item()
    return results


def main(args: argparse.Namespace) -> None:
    results: dict[str, dict[str, dict[str, Any]]] = {}
    if args.out.is_file():
        results = json.loads(args.out.read_text())["results"]
    for recipe in args.recipes:
        for length in OF_ATTENTION if recipe in ATTENTION else LENGTHS:
            for ways in WAYS:
                row = results.setdefault(recipe, {}).setdefault(str(length), {})
                if ways[0] in row:
                    continue
                try:
                    row |= in_new_process(measured, recipe, length, ways, args.threads)
                except BrokenProcessPool:
                    row |= dict.fromkeys(ways)  # killed for its memory
                save_results(args.out, " ".join(["python", *sys.argv]), results)
                print(recipe, length, {way: row[way] for way in ways}, flush=True)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("out", type=Path, help="results file")
    parser.add_argument("--recipes", nargs="+", default=[*RECIPES, *ATTENTION], help="names of recipes (all)")
    parser.add_argument("--threads", type=int, default=1, help="threads of torch (1)")
    share_cores()
    main(parser.parse_args())
