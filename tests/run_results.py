"""What a training left in its run folder."""

from __future__ import annotations

from pathlib import Path

import torch
from safetensors.torch import load_file

from lagwise.training import read_metrics


def losses(run: Path) -> dict[float, float]:
    return {line["step"]: line["loss"] for line in read_metrics(run) if "loss" in line}


def weights(run: Path) -> dict[str, torch.Tensor]:
    return load_file(run / "model.safetensors")
