"""Arithmetic of the process, and the start of a program."""

from __future__ import annotations

import gc
import subprocess
import sys
from typing import Any

import pytest
import torch
from transformers import Trainer

from lagwise.process import denormals_as_zero, quick_imports
from lagwise.training.recipe import TrainingOptions
from lagwise.training.trainer import LagwiseTrainer


def tiny() -> float:
    return float(torch.full((8,), 1e-38).mul(0.1).sum())


@pytest.fixture(autouse=True)
def supported() -> None:
    if not torch.set_flush_denormal(False):
        pytest.skip("this processor cannot be set to write zeros")


def test_denormals_are_zero_within_it_only() -> None:
    assert tiny() > 0
    with denormals_as_zero():
        assert tiny() == 0
    assert tiny() > 0


def test_trainings_have_no_denormals(monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[float] = []

    def train(self: Any) -> None:
        seen.append(tiny())

    monkeypatch.setattr(Trainer, "train", train)
    trainer = LagwiseTrainer.__new__(LagwiseTrainer)
    trainer.model, trainer.options = torch.nn.Identity(), TrainingOptions()
    trainer.train()
    assert seen == [0]
    assert tiny() > 0


def test_imports_do_without_the_search_for_cycles() -> None:
    """At the start of a program. Later there may be garbage, which must not be kept."""
    code = "import gc; from lagwise.process import quick_imports as q\nwith q(): print(gc.isenabled())\n"
    code += "print(gc.isenabled(), gc.get_freeze_count() > 0)"
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert result.stdout.split() == ["False", "True", "True"]
    frozen = gc.get_freeze_count()
    with quick_imports():
        assert gc.isenabled()
    assert gc.get_freeze_count() <= frozen  # some may have been let go meanwhile, as by another thread
