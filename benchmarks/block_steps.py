"""Time training steps of whole blocks at length 512: TNN against FD-TNN and SKI-TNN with equally deep kernel networks.

    python benchmarks/block_steps.py OUT.json

Blocks are causal and two-sided, in float32, and of two sizes: that of the recipes (256 channels, as many in the GTU,
kernel networks of width 32) and that of the papers (512 channels, three times as many in the GTU, width 64). Ratios are
relative to TNN in the same run. "taps" has TNN's taps as parameters, so its kernel costs almost nothing; it bounds the
gain from faster kernels. "published" is a literal implementation of TNN's operator.
"""

from __future__ import annotations

import itertools
import sys
from pathlib import Path
from typing import Any

import torch
from torch import nn
from tqdm.auto import tqdm

from lagwise.blocks import BLOCKS
from lagwise.process import keep_freed_memory
from lagwise.tables import build
from lagwise_papers.bench.peers import LiteralTNO
from lagwise_papers.bench.timing import interleaved, save_results, training_step

LENGTH = 512
# channels, expansion of the GTU, width of the kernel network
SIZES = {"recipe": (256, 1, 32), "paper": (512, 3, 64)}


def block(size: str, causal: bool, kernel: dict[str, Any], engine: str = "auto") -> nn.Module:
    channels, expansion, _ = SIZES[size]
    mixer = {"name": "gtu", "expansion": expansion, "kernel": kernel, "engine": engine}
    spec = {"name": "prenorm", "token_mixer": mixer, "channel_mixer": {"name": "glu", "expansion": 1}}
    return build(BLOCKS, spec, channels, what="block", causal=causal)


def published(size: str, causal: bool, network: dict[str, int]) -> nn.Module:
    """The TNN block with the literal operator, which does not support a mask."""
    made = block(size, causal, {"name": "rpe", **network})
    operator = LiteralTNO(made.token_mixer.toeplitz.channels, causal=causal, **network)
    unmasked = operator.forward
    operator.forward = lambda x, mask=None: unmasked(x)
    made.token_mixer.toeplitz = operator
    return made


def blocks(size: str, causal: bool, layers: int) -> dict[str, nn.Module]:
    network = {"hidden": SIZES[size][2], "layers": layers}
    return {
        "tnn": block(size, causal, {"name": "rpe", **network}),
        "fd-tnn": block(size, causal, {"name": "frequency", **network}),
        "fd-tnn, grid 256": block(size, causal, {"name": "frequency", "grid": 256, **network}),
        "ski-tnn": block(size, causal, {"name": "warped"}, "ski"),
        "taps": block(size, causal, {"name": "free", "max_length": LENGTH}),
        "published": published(size, causal, network),
    }


def main(out: Path) -> None:
    torch.manual_seed(0)
    torch.set_num_threads(2)
    cases = list(itertools.product(SIZES, (True, False), (3, 6), (1, 4)))
    rows = []
    for size, causal, layers, batch in tqdm(cases):
        each = blocks(size, causal, layers)
        if not rows:
            tqdm.write(f"| block | direction | layers | batch | tnn ms | {' | '.join(list(each)[1:])} |")
            tqdm.write("|---" * (len(each) + 4) + "|")
        x = torch.randn(batch, LENGTH, SIZES[size][0])
        seconds = interleaved({name: training_step(made, x) for name, made in each.items()}, repeats=15)
        rows.append({"block": size, "causal": causal, "layers": layers, "batch": batch, "seconds": seconds})
        base = seconds["tnn"].median
        ratios = " | ".join(f"{base / seconds[name].median:.2f}x" for name in list(each)[1:])
        direction = "causal" if causal else "two-sided"
        tqdm.write(f"| {size} | {direction} | {layers} | {batch} | {base * 1e3:.1f} | {ratios} |")
    save_results(out, f"python benchmarks/block_steps.py {out}", {"rows": rows})


if __name__ == "__main__":
    keep_freed_memory()
    main(Path(sys.argv[1]))
