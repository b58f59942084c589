"""Trainings of several processes: the figures of one, one checkpoint, one voice."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from processes import run_together

from lagwise.training import Recipe, read_metrics, train

pytestmark = pytest.mark.skipif(os.name != "posix", reason="needs fork and signals")


def validation(run: Path) -> list[dict[str, float]]:
    shared = ("loss", "bits_per_byte", "perplexity", "masked_accuracy", "accuracy")
    names = [f"eval_{name}" for name in shared]
    return [{n: line[n] for n in names if n in line} for line in read_metrics(run) if "eval_loss" in line]


def train_quietly(recipe: Recipe, out: Path) -> None:
    train(recipe, out, progress=False)


@pytest.mark.parametrize("name", ["language_modelling", "masked_language_modelling"])
def test_validation_is_the_same_for_any_number_of_processes(tiny_recipe: Recipe, tmp_path: Path, name: str) -> None:
    """Of windows that fill neither the batches of one process nor those of two."""
    tiny_recipe.training.learning_rate = 1e-7
    tiny_recipe.training.steps = 3
    tiny_recipe.training.evaluate_tokens = 7 * tiny_recipe.data.length
    if name == "masked_language_modelling":
        tiny_recipe.task = {"name": name}
        tiny_recipe.model |= {"causal": False}
    one = train(tiny_recipe, tmp_path / "one", progress=False)
    assert run_together(train_quietly, tiny_recipe, tmp_path / "two") == [0, 0]
    expected = validation(one)
    assert expected
    for found, line in zip(validation(tmp_path / "two"), expected, strict=True):
        assert found == pytest.approx(line, rel=1e-6)
