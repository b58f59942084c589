"""Trainings in which processes share every sequence: the losses, figures and weights of one process."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from processes import run_together
from run_results import assert_equal_runs

from lagwise.training import Recipe, train

# Two processes would need two GPUs.
pytestmark = [pytest.mark.cpu, pytest.mark.skipif(os.name != "posix", reason="needs fork")]


def train_shared(recipe: Recipe, out: Path, count: int) -> None:
    recipe.training.sequence_parallel = count
    train(recipe, out, progress=False)


@pytest.mark.sampled(2)
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
