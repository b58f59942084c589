"""The check of Pathfinder's generator with a CNN."""

from __future__ import annotations

import math
import runpy
from pathlib import Path

import pytest
import torch

SCRIPT = runpy.run_path(str(Path(__file__).parents[2] / "benchmarks" / "pathfinder_cnn.py"))


@pytest.mark.parametrize("side", [32, 128])
def test_the_network_sees_the_whole_image(side: int) -> None:
    torch.manual_seed(0)
    model = SCRIPT["network"](side, 8).eval()
    image = torch.rand(1, 1, side, side, requires_grad=True)
    scores = model(image)
    assert scores.shape == (1, 2)
    scores[0, 0].backward()
    assert image.grad is not None
    for corner in (slice(4), slice(-4, None)):
        for other in (slice(4), slice(-4, None)):
            assert image.grad[0, 0, corner, other].any()


def test_training_reports_accuracies_and_ends_in_time() -> None:
    torch.manual_seed(0)
    labels = torch.arange(128) % 2
    images = (255 * labels[:, None, None, None]).expand(-1, 1, 32, 32).to(torch.uint8)
    model = SCRIPT["network"](32, 2)
    *_, curve = SCRIPT["trained"](model, images, labels, 1.0, (images[:10], labels[:10]))
    assert [len(curve), len(curve[-1])] == [1, 2]
    assert all(0 <= share <= 1 for _, share in curve)
    assert all(math.isfinite(p.sum().item()) for p in model.parameters())
    assert SCRIPT["accuracy"](torch.nn.Sequential(torch.nn.Flatten(), ByBrightness()), images, labels) == 1


class ByBrightness(torch.nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.stack([0.5 - x.mean(1), x.mean(1) - 0.5], dim=1)
