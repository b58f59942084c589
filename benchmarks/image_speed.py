"""Pictures a second of TNN at DeiT's sizes beside DeiT itself, forward and in training.

    python benchmarks/image_speed.py OUT.json [--recipe tnn-deit-tiny] [--peer deit_tiny_patch16_224] [--sides 224,448]

The model of the recipe against timm's, both with random weights, the same patches and no stochastic depth, at each
side of the pictures. The first is checked against dense Toeplitz matrices in float64 on a small picture. Timed in turn,
medians with quartiles; a ratio above 1 says how many times faster the recipe's model is. Needs timm.
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

from lagwise.bench.harness import interleaved, save_results
from lagwise.models import LagwiseConfig, LagwiseForImageClassification
from lagwise.process import keep_freed_memory, share_cores
from lagwise.training import load_recipe

_CHECKED_SIDE, _TOLERANCE, _CLASSES = 64, 1e-4, 1000


class Logits(nn.Module):
    """A model of lagwise as timm's are: a picture in, logits out."""

    def __init__(self, model: nn.Module):
        super().__init__()
        self.model = model

    def forward(self, pixels: torch.Tensor) -> torch.Tensor:
        return self.model(pixel_values=pixels).logits


def network(recipe_name: str) -> Logits:
    """The recipe's model. RuntimeError if it does not compute what dense matrices in float64 do."""
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
        raise RuntimeError(f"{recipe_name} is off by {error:.1e} of the largest value; a wrong result is not timed")
    return Logits(model)


def forward(model: nn.Module, pixels: torch.Tensor) -> Callable[[], None]:
    def run() -> None:
        with torch.inference_mode():
            model.eval()(pixels)

    return run


def training_step(model: nn.Module, pixels: torch.Tensor) -> Callable[[], None]:
    """Forward and backward, with the optimiser's work left out: it is the same for both."""
    labels = torch.arange(len(pixels)) % _CLASSES

    def run() -> None:
        model.train().zero_grad()
        F.cross_entropy(model(pixels), labels).backward()

    return run


def main(out: Path, recipe: str, peer: str, sides: list[int], batch: int, repeats: int) -> None:
    ours, rows = network(recipe), []
    print(f"| side | {recipe}, forward, pictures a second | {peer} | ratio | training step | {peer} | ratio |")
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
    parser.add_argument("out", type=Path, help="the results file")
    parser.add_argument("--recipe", default="tnn-deit-tiny")
    parser.add_argument("--peer", default="deit_tiny_patch16_224", help="a model of timm")
    parser.add_argument("--sides", default="224,448", help="of the pictures, in pixels")
    parser.add_argument("--batch", type=int, default=8, help="pictures at once (8)")
    parser.add_argument("--repeats", type=int, default=9, help="of each (9)")
    parser.add_argument("--threads", type=int, default=2, help="of torch (2)")
    given = parser.parse_args()
    keep_freed_memory()
    share_cores()
    torch.set_num_threads(given.threads)
    main(given.out, given.recipe, given.peer, [int(n) for n in given.sides.split(",")], given.batch, given.repeats)
