"""Check the generator of Pathfinder: `python benchmarks/pathfinder_cnn.py [--side 32] [--minutes 60] [--out FILE]`.

A small two-dimensional CNN is trained on the generated set for a time and tested on its test part. It should reach
95 % on 32 x 32, while no statistic of single pixels or of the marks alone should (`tests/data/test_pathfinder.py`).
Training images are turned and mirrored at random, which changes no label. The learning rate follows a cosine over the
time, which is CPU time on one thread, so a busy machine affects the duration but not the result.
"""

from __future__ import annotations

import argparse
import math
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from lagwise.analysis.timing import save_results
from lagwise.data import pathfinder
from lagwise.data.image_files import open_images
from lagwise.data.images import decode
from lagwise.data.labelled_images import prepare_images
from lagwise.progress import progress_bar
from lagwise.training.hardware import bfloat16_is_fast

_BATCH, _PEAK, _WARMUP = 64, 2e-3, 0.05
_EVERY, _VALIDATION = 50_000, 2_000  # images between validations, and those of one


class Residual(nn.Module):
    """A residual block of two 3 x 3 convolutions; with a stride it halves the sides and widens the channels."""

    def __init__(self, channels: int, out: int, stride: int) -> None:
        super().__init__()
        self.body = nn.Sequential(
            nn.Conv2d(channels, out, 3, stride, 1, bias=False),
            nn.BatchNorm2d(out),
            nn.ReLU(),
            nn.Conv2d(out, out, 3, 1, 1, bias=False),
            nn.BatchNorm2d(out),
        )
        self.skip = nn.Identity() if stride == 1 else nn.Conv2d(channels, out, 1, stride, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        return torch.relu(self.skip(x) + self.body(x))


def network(side: int, width: int) -> nn.Sequential:
    """A residual network that halves the sides until they are 4: ``(batch, 1, side, side)`` to ``(batch, 2)``."""
    layers: list[nn.Module] = [nn.Conv2d(1, width, 3, 1, 1), Residual(width, width, 1)]
    for _ in range(int(math.log2(side // 4))):
        layers += [Residual(width, out := min(2 * width, 128), 2), Residual(out, out, 1)]
        width = out
    return nn.Sequential(*layers, nn.Flatten(), nn.Linear(16 * width, 2))


def images_of(rows: Any) -> tuple[Tensor, Tensor]:
    """Images ``(count, 1, side, side)`` of uint8, and their labels."""
    bar = progress_bar(rows["image"][:], desc="decoding", unit="image", show=True)
    images = np.stack([np.asarray(decode(data, 1, "a generated image")) for data in bar])
    return torch.from_numpy(images)[:, None], torch.tensor(rows["label"][:])


def logits(model: nn.Module, images: Tensor) -> Tensor:
    with torch.autocast("cpu", torch.bfloat16, enabled=bfloat16_is_fast()):
        return model(images.float() / 255).float()


@torch.no_grad()
def accuracy(model: nn.Module, images: Tensor, labels: Tensor) -> float:
    model.eval()
    guesses = torch.cat([logits(model, part).argmax(1) for part in images.split(256)])
    model.train()
    return (guesses == labels).double().mean().item()


def trained(
    model: nn.Module, images: Tensor, labels: Tensor, seconds: float, held: tuple[Tensor, Tensor]
) -> Iterator[list[tuple[int, float]]]:
    """Train for so many seconds of CPU time. Every `_EVERY` images and at the end, yields (images seen, accuracy on
    those held out) so far."""
    optimizer = torch.optim.AdamW(model.parameters(), weight_decay=0.01)
    begun, curve, seen = time.process_time(), [], 0
    while True:
        for rows in torch.randperm(len(labels)).split(_BATCH):
            done = min(1.0, (time.process_time() - begun) / seconds)
            rate = _PEAK * min(done / _WARMUP, (1 + math.cos(math.pi * done)) / 2)
            for group in optimizer.param_groups:
                group["lr"] = rate
            turned = torch.rot90(images[rows], int(torch.randint(4, ())), (2, 3))
            turned = turned.flip(3) if torch.rand(()) < 0.5 else turned
            loss = nn.functional.cross_entropy(logits(model, turned), labels[rows])
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            before, seen = seen, seen + len(rows)
            if done == 1 or seen // _EVERY > before // _EVERY:
                curve.append((seen, accuracy(model, *held)))
                print(f"{seen:,} images: loss {loss.item():.3f}, held-out accuracy {curve[-1][1]:.4f}", flush=True)
                yield curve
            if done == 1:
                return


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--side", type=int, default=32, choices=tuple(pathfinder.PARAMETERS), help="of images (32)")
    parser.add_argument("--pictures", type=int, help="size of the generated set (200,000), a tenth of it for tests")
    parser.add_argument("--minutes", type=float, default=60, help="of CPU time for training (60)")
    parser.add_argument("--width", type=int, default=32, help="channels at full resolution (32)")
    parser.add_argument("--out", type=Path, help="by default benchmarks/results/pathfinder-cnn-SIDE-cpu.json")
    given = parser.parse_args()
    torch.manual_seed(0)
    torch.set_num_threads(1)
    name = {32: "lra-pathfinder", 128: "lra-path-x"}[given.side] + (f":{given.pictures}" if given.pictures else "")
    data = prepare_images(open_images(name), channels=1)
    train, test = images_of(data.splits["train"]), images_of(data.splits["test"])
    held = images_of(data.splits["valid"][:_VALIDATION])
    model = network(given.side, given.width).to(memory_format=torch.channels_last)
    out = given.out or Path(f"benchmarks/results/pathfinder-cnn-{given.side}-cpu.json")
    about = {
        "side": given.side,
        "pictures": [len(train[1]), len(test[1])],
        "minutes": given.minutes,
        "parameters": sum(p.numel() for p in model.parameters()),
    }
    command = " ".join(["python", *sys.argv])
    for curve in trained(model, *train, 60 * given.minutes, held):
        save_results(out, command, {**about, "curve": curve})
    found = accuracy(model, *test)
    print(f"test accuracy {found:.4f}")
    save_results(out, command, {**about, "curve": curve, "accuracy": found})


if __name__ == "__main__":
    main()
