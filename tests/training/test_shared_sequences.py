"""Trainings in which processes share every sequence: the losses, figures and weights of one process."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest
import torch
from processes import run_together
from run_results import weights

from lagwise.training import Recipe, read_metrics, train

pytestmark = pytest.mark.skipif(os.name != "posix", reason="needs fork")


def train_shared(recipe: Recipe, out: Path, count: int) -> None:
    recipe.training.sequence_parallel = count
    train(recipe, out, progress=False)


def logged(run: Path) -> list[dict[str, Any]]:
    left = ("seconds", "train_runtime", "train_samples_per_second", "train_steps_per_second", "grad_norm", "total_flos")
    return [
        {n: v for n, v in line.items() if n not in left and "per_second" not in n and "runtime" not in n}
        for line in read_metrics(run)
    ]


def assert_equal_runs(found: Path, expected: Path) -> None:
    for line, other in zip(logged(found), logged(expected), strict=True):
        assert line == pytest.approx(other, rel=2e-5)
    for name, weight in weights(expected).items():
        torch.testing.assert_close(weights(found)[name], weight, atol=1e-5, rtol=1e-4)


@pytest.mark.parametrize("name", ["language_modelling", "masked_language_modelling"])
def test_two_processes_share_sequences(tiny_recipe: Recipe, tmp_path: Path, name: str) -> None:
    """With accumulation, clipping, and validation windows that do not fill the batches."""
    options = tiny_recipe.training
    options.accumulate, options.clip, options.evaluate_tokens = 2, 0.5, 7 * tiny_recipe.data.length
    if name == "masked_language_modelling":
        tiny_recipe.task = {"name": name}
        tiny_recipe.model |= {"causal": False}
    one = train(tiny_recipe, tmp_path / "one", progress=False)
    assert run_together(train_shared, tiny_recipe, tmp_path / "two", 2) == [0, 0]
    assert_equal_runs(tmp_path / "two", one)


@pytest.mark.slow
def test_groups_of_processes_share_sequences(tiny_recipe: Recipe, tmp_path: Path) -> None:
    """Two groups of two share the batch, as one process would have it."""
    tiny_recipe.training.evaluate_tokens = 7 * tiny_recipe.data.length
    one = train(tiny_recipe, tmp_path / "one", progress=False)
    assert run_together(train_shared, tiny_recipe, tmp_path / "four", 2, count=4) == [0] * 4
    assert_equal_runs(tmp_path / "four", one)


def test_sharing_is_refused_before_data_are_read(tiny_recipe: Recipe, tmp_path: Path) -> None:
    tiny_recipe.training.sequence_parallel = 2
    with pytest.raises(ValueError, match=r"must divide the number of processes, got 2 for 1.*--nproc-per-node 2"):
        train(tiny_recipe, tmp_path / "run", progress=False)
    assert not (tmp_path / "run").exists()
