"""Training steps of whole blocks at length 512, TNN against FD-TNN and SKI-TNN with kernel networks of the same depth.

    python benchmarks/block_steps.py OUT.json

Blocks are those of the recipes tnn-lm, fd-tnn-lm and ski-tnn-lm (256 channels), causal and two-sided, in float32, in
batches of 1, 4 and 8 sequences, timed in turn; ratios are to TNN in the same run.
"""

from __future__ import annotations

import copy
import sys
from pathlib import Path
from typing import Any

import torch
from tqdm.auto import tqdm

from lagwise.bench.harness import interleaved, save_results, training_step
from lagwise.blocks import BLOCKS
from lagwise.process import keep_freed_memory
from lagwise.tables import build
from lagwise.training import load_recipe

LENGTH, CHANNELS = 512, 256


def block(recipe: str, causal: bool, **kernel: Any) -> torch.nn.Module:
    spec = copy.deepcopy(load_recipe(recipe).model["block"])
    spec["token_mixer"]["kernel"].update(kernel)
    return build(BLOCKS, spec, CHANNELS, what="block", causal=causal)


def main(out: Path) -> None:
    torch.manual_seed(0)
    torch.set_num_threads(2)
    cases = [(causal, layers, batch) for causal in (True, False) for layers in (3, 6) for batch in (1, 4, 8)]
    rows = []
    print(
        "| direction | layers | batch | tnn ms | fd-tnn | fd-tnn, grid 256 | ski-tnn |\n|---|---|---|---|---|---|---|"
    )
    for causal, layers, batch in tqdm(cases):
        blocks = {
            "tnn": block("tnn-lm", causal, layers=layers),
            "fd-tnn": block("fd-tnn-lm", causal, layers=layers),
            "fd-tnn, grid 256": block("fd-tnn-lm", causal, layers=layers, grid=256),
            "ski-tnn": block("ski-tnn-lm", causal),
        }
        x = torch.randn(batch, LENGTH, CHANNELS)
        seconds = interleaved({name: training_step(each, x) for name, each in blocks.items()}, repeats=21)
        rows.append({"causal": causal, "layers": layers, "batch": batch, "seconds": seconds})
        base = seconds["tnn"].median
        ratios = " | ".join(f"{base / seconds[name].median:.2f}x" for name in list(blocks)[1:])
        print(f"| {'causal' if causal else 'two-sided'} | {layers} | {batch} | {base * 1e3:.1f} | {ratios} |")
    save_results(out, f"python benchmarks/block_steps.py {out}", {"rows": rows})


if __name__ == "__main__":
    keep_freed_memory()
    main(Path(sys.argv[1]))
