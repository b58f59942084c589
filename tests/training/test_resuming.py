"""A training that was killed after its first checkpoint goes on exactly: with the losses and weights of a whole one."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from run_results import losses, resume_from_first, weights
from safetensors.torch import load_file

from lagwise.training import Recipe, load_recipe, read_metrics, train
from lagwise.training.folder import checkpoints


def _lengths(recipe: Recipe) -> None:
    """Two micro-batches per step must agree on the step's length (TCNCA app. F)."""
    recipe.data.lengths, recipe.data.evaluate_length, recipe.training.accumulate = [8, 16, 32], 64, 2


def _muon(recipe: Recipe) -> None:
    recipe.training.optimizer, recipe.training.learning_rate = "muon", 0.02


def _enwik8(name: str) -> Callable[[Recipe], None]:
    """Segments have 2, 3 or 4 chunks, and an evaluation has chunks of twice the size."""

    def change(recipe: Recipe) -> None:
        memory = [] if name == "mega-enwik8" else ["model.block.memory.depth=2", "model.block.memory.dilation=2"]
        sizes = ["model.hidden_size=8", "model.num_hidden_layers=1", "model.block.query_size=4"]
        sizes += ["model.block.value_size=8", "model.block.chunk=8", "model.block.evaluation_chunk=16"]
        recipe.model = load_recipe(name, [*sizes, *memory]).model
        recipe.data = replace(recipe.data, length=32, lengths=[16, 24, 32], evaluate_length=48)

    return change


KINDS: dict[str, Callable[[Recipe], None]] = {
    "plain": lambda recipe: None,
    "lengths": _lengths,
    "muon": _muon,
    **{name: _enwik8(name) for name in ("mega-enwik8", "tcnca-enwik8")},
}
SLOW = ("lengths", "tcnca-enwik8")


@pytest.mark.parametrize("kind", [pytest.param(kind, marks=pytest.mark.slow if kind in SLOW else ()) for kind in KINDS])
def test_resuming_is_exact(kind: str, tiny_recipe: Recipe, tmp_path: Path) -> None:
    KINDS[kind](tiny_recipe)
    whole = train(tiny_recipe, tmp_path / "whole", progress=False)
    half = resume_from_first(train(tiny_recipe, tmp_path / "half", progress=False))
    assert losses(half) == losses(whole)
    for name, weight in weights(whole).items():
        torch.testing.assert_close(weights(half)[name], weight, rtol=0, atol=0)


def test_a_resumed_run_logs_the_same(tiny_recipe: Recipe, tmp_path: Path) -> None:
    """The lines and the summary's mean loss are equal, also if checkpoints are between two lines."""
    tiny_recipe.training.log_every = 2
    whole = train(tiny_recipe, tmp_path / "whole", progress=False)
    half = resume_from_first(train(tiny_recipe, tmp_path / "half", progress=False))
    assert [c.name for c in checkpoints(half)] == ["checkpoint-3", "checkpoint-6"]
    lines, resumed = read_metrics(whole), read_metrics(half)
    assert losses(half) == losses(whole)
    assert lines[-1]["train_loss"] == resumed[-1]["train_loss"]
    seconds = [line["seconds"] for line in resumed]
    assert seconds == sorted(seconds)
    assert seconds[0] > 0


@pytest.mark.slow
def test_other_processes_prepare_the_same_batches(tiny_recipe: Recipe, tmp_path: Path) -> None:
    alone = train(tiny_recipe, tmp_path / "alone", progress=False)
    tiny_recipe.training.workers = 2
    helped = train(tiny_recipe, tmp_path / "helped", progress=False)
    for name, value in load_file(alone / "model.safetensors").items():
        assert torch.equal(value, load_file(helped / "model.safetensors")[name]), name
