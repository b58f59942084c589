"""What a training left in its run folder."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

from lagwise.training import read_metrics, resume
from lagwise.training.folder import checkpoints


def losses(run: Path) -> dict[float, float]:
    return {line["step"]: line["loss"] for line in read_metrics(run) if "loss" in line}


def weights(run: Path) -> dict[str, torch.Tensor]:
    return load_file(run / "model.safetensors")


def logged(run: Path) -> list[dict[str, float]]:
    """The lines of the log, without how fast it was."""
    left = ("seconds", "train_runtime", "eval_runtime", "total_flos")
    lines = read_metrics(run)
    return [{n: v for n, v in line.items() if n not in left and "per_second" not in n} for line in lines]


def assert_equal_runs(found: Path, expected: Path) -> None:
    """The same losses, figures and weights, to rounding in float32."""
    for line, other in zip(logged(found), logged(expected), strict=True):
        assert line == pytest.approx(other, rel=1e-4)
    for name, weight in weights(expected).items():
        torch.testing.assert_close(weights(found)[name], weight, atol=1e-5, rtol=1e-4)


def assert_same_weights(found: Path, expected: Path) -> None:
    """The same weights, to the last bit."""
    for name, weight in weights(expected).items():
        assert torch.equal(weights(found)[name], weight), name


def resume_from_first(run: Path) -> Path:
    """Let a finished run go on from its first checkpoint, as if it had been killed before the second."""
    for file in ("model.safetensors", "config.json"):
        (run / file).unlink()
    for checkpoint in checkpoints(run)[1:]:
        shutil.rmtree(checkpoint)
    return resume(run, progress=False)
