"""The benchmark of image classifiers compares models of equal size."""

from __future__ import annotations

import importlib
from pathlib import Path
from typing import Any

import pytest
import torch

from lagwise.models import LagwiseConfig, LagwiseForImageClassification
from lagwise.training import load_recipe


@pytest.fixture
def benchmark(monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.syspath_prepend(str(Path(__file__).parents[2] / "benchmarks"))
    return importlib.import_module("pictures")


def parameters(overrides: list[str]) -> int:
    fields = load_recipe("tnn-cifar", overrides).model
    with torch.device("meta"):
        model = LagwiseForImageClassification(LagwiseConfig(**fields, causal=False, num_labels=10))
    return sum(p.numel() for p in model.parameters())


def test_compared_models_have_equal_sizes(benchmark: Any) -> None:
    sizes = [parameters(overrides) for data, overrides, _ in benchmark.PLAN.values() if data == "cifar"]
    assert max(sizes) < 1.02 * min(sizes)
