"""The benchmark of image classifiers compares models of equal size."""

from __future__ import annotations

from collections.abc import Callable
from types import ModuleType
from typing import Any

import pytest
import torch

from lagwise.models import LagwiseConfig, LagwiseForImageClassification
from lagwise.training import load_recipe


@pytest.fixture
def pictures(benchmark_script: Callable[[str], ModuleType]) -> Any:
    return benchmark_script("pictures")


def parameters(overrides: list[str]) -> int:
    fields = load_recipe("tnn-cifar", overrides).model
    with torch.device("meta"):
        model = LagwiseForImageClassification(LagwiseConfig(**fields, causal=False, num_labels=10))
    return sum(p.numel() for p in model.parameters())


def test_compared_models_have_equal_sizes(pictures: Any) -> None:
    sizes = [parameters(overrides) for data, overrides, _ in pictures.PLAN.values() if data == "cifar"]
    assert max(sizes) < 1.02 * min(sizes)
