"""Time training steps of whole blocks: MEGA against TCNCA, which differs only in its memory.

    python benchmarks/mega_steps.py OUT.json

Blocks are those of the recipes mega-lm and tcnca-lm (256 channels, 8 x 512 tokens) and of mega-enwik8 and tcnca-enwik8
(512 channels, one sequence of 8192 tokens in chunks of 2048). MEGA computes its average by scan and by FFT. TCNCA is
also timed with the cheapest stack that `lagwise bench tcn` finds for the length. Steps are in float32 and timed in
turn. A ratio above 1 means that TCNCA is faster.
"""

from __future__ import annotations

import copy
import sys
from pathlib import Path
from typing import Any

import torch

from lagwise.blocks import BLOCKS
from lagwise.process import keep_freed_memory
from lagwise.tables import build
from lagwise.training import load_recipe
from lagwise_papers.bench.harness import forward_pass
from lagwise_papers.bench.tcn_shapes import choose_tcn
from lagwise_papers.bench.timing import interleaved, save_results, training_step

CASES = {"lm": (256, 8, 512), "enwik8": (512, 1, 8192)}  # channels, batch, length


def block(recipe: str, channels: int, **memory: Any) -> torch.nn.Module:
    spec = copy.deepcopy(load_recipe(recipe).model["block"])
    spec["memory"].update(memory)
    return build(BLOCKS, spec, channels, what="block").eval()  # without dropout


def main(out: Path) -> None:
    torch.manual_seed(0)
    torch.set_num_threads(2)
    rows = []
    print("| recipe | faster | than | forward | backward | step |\n|---|---|---|---|---|---|")
    for case, (channels, batch, length) in CASES.items():
        cheapest = choose_tcn(length, channels=channels, tokens=batch * length)[0].shape
        blocks = {
            "mega": block(f"mega-{case}", channels),
            "mega, average by fft": block(f"mega-{case}", channels, engine="fft"),
            "tcnca": block(f"tcnca-{case}", channels),
            "tcnca, cheapest stack": block(f"tcnca-{case}", channels, **cheapest._asdict()),
        }
        x = torch.randn(batch, length, channels)
        forward = interleaved({name: forward_pass(each, x) for name, each in blocks.items()}, repeats=9)
        step = interleaved({name: training_step(each, x) for name, each in blocks.items()}, repeats=9)
        rows.append({"case": case, "cheapest": cheapest._asdict(), "forward": forward, "step": step})
        seconds = {n: (forward[n].median, step[n].median - forward[n].median, step[n].median) for n in blocks}
        for base in list(blocks)[:2]:
            for name in list(blocks)[2:]:
                ratios = (f"{a / b:.2f}x" for a, b in zip(seconds[base], seconds[name], strict=True))
                print(f"| {case} | {name} | {base} | " + " | ".join(ratios) + " |", flush=True)
    save_results(out, f"python benchmarks/mega_steps.py {out}", {"rows": rows})


if __name__ == "__main__":
    keep_freed_memory()
    main(Path(sys.argv[1]))
