"""Images per second of TNN at DeiT's sizes against DeiT, in inference and training.

    python benchmarks/image_speed.py OUT.json [--recipe tnn-deit-tiny] [--peer deit_tiny_patch16_224] [--sides 224,448]

The recipe's model is compared with timm's at each image size, both with random weights, the same patches and no
stochastic depth. The recipe's model is first checked against dense Toeplitz matrices in float64 on a small image.
Models are timed in turn; results are medians with quartiles. A ratio above 1 means that the recipe's model is faster.
Needs timm (the extra `peers`).
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import timm  # type: ignore[missing-import]
import torch
import torch.nn.functional as F
from torch import nn

from lagwise.models import LagwiseConfig, LagwiseForImageClassification
from lagwise.process import keep_freed_memory, share_cores
from lagwise.training import load_recipe
from lagwise_papers.bench.timing import interleaved, save_results

_CHECKED_SIDE, _TOLERANCE, _CLASSES = 64, 1e-4, 1000


class Logits(nn.Module):
    """A lagwise model with timm's interface: images in, logits out."""

    def __init__(self, model: nn.Module):
        super().__init__()
        self.model = model

    def forward(self, pixels: torch.Tensor) -> torch.Tensor:
        return self.model(pixel_values=pixels).logits


def network(recipe_name: str) -> Logits:
    """The recipe's model; RuntimeError if it differs from dense matrices in float64."""
    fields: dict[str, Any] = {
        "causal": False,
        "num_labels": _CLASSES,
        **load_recipe(recipe_name).model,
        "stochastic_depth": 0.0,
    }
    torch.manual_seed(0)
    model = LagwiseForImageClassification(LagwiseConfig(**fields)).eval()
    block = fields["block"]
    dense_block = {**block, "token_mixer": {**block["token_mixer"], "engine": "dense"}}
    dense = LagwiseForImageClassification(LagwiseConfig(**{**fields, "block": dense_block})).eval()
    dense.load_state_dict(model.state_dict())
    pixels = torch.randn(1, 3, _CHECKED_SIDE, _CHECKED_SIDE)
    with torch.no_grad():
        exact = dense.double()(pixel_values=pixels.double()).logits
        error = float((model(pixel_values=pixels).logits - exact).abs().max() / exact.abs().max())
    if not error <= _TOLERANCE:
        raise RuntimeError(f"{recipe_name} is off by {error:.1e} of the largest value; wrong results are not timed")
    return Logits(model)


def forward(model: nn.Module, pixels: torch.Tensor) -> Callable[[], None]:
    def run() -> None:
        with torch.inference_mode():
            model.eval()(pixels)

    return run


def training_step(model: nn.Module, pixels: torch.Tensor) -> Callable[[], None]:
    """Forward and backward passes, without the optimizer step, which costs the same for both."""
    labels = torch.arange(len(pixels)) % _CLASSES

    def run() -> None:
        model.train().zero_grad()
        F.cross_entropy(model(pixels), labels).backward()

    return run


def main(out: Path, recipe: str, peer: str, sides: list[int], batch: int, repeats: int) -> None:
    ours, rows = network(recipe), []
    print(f"| side | {recipe}, forward, images per second | {peer} | ratio | training step | {peer} | ratio |")
    print("|---" * 7 + "|")
    for side in sides:
        models = {recipe: ours, peer: timm.create_model(peer, img_size=side, num_classes=_CLASSES)}
        pixels = torch.randn(batch, 3, side, side)
        cells = []
        for what, make in (("forward", forward), ("training step", training_step)):
            seconds = interleaved({name: make(model, pixels) for name, model in models.items()}, repeats=repeats)
            rows.append({"side": side, "batch": batch, "what": what, "seconds": seconds})
            speeds = [batch / seconds[name].median for name in models]
            cells += [f"{speeds[0]:.1f}", f"{speeds[1]:.1f}", f"{speeds[0] / speeds[1]:.2f}x"]
        print(f"| {side} | {' | '.join(cells)} |", flush=True)
        sizes = {name: sum(p.numel() for p in model.parameters()) for name, model in models.items()}
        save_results(
            out, " ".join(["python", *sys.argv]), {"timm": timm.__version__, "parameters": sizes, "rows": rows}
        )


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("out", type=Path, help="results file")
    parser.add_argument("--recipe", default="tnn-deit-tiny")
    parser.add_argument("--peer", default="deit_tiny_patch16_224", help="a model of timm")
    parser.add_argument("--sides", default="224,448", help="image sizes in pixels")
    parser.add_argument("--batch", type=int, default=8, help="batch size (8)")
    parser.add_argument("--repeats", type=int, default=9, help="timed passes of each model (9)")
    parser.add_argument("--threads", type=int, default=2, help="threads of torch (2)")
    given = parser.parse_args()
    keep_freed_memory()
    share_cores()
    torch.set_num_threads(given.threads)
    main(given.out, given.recipe, given.peer, [int(n) for n in given.sides.split(",")], given.batch, given.repeats)
