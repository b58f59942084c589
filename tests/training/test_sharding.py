"""Trainings whose weights are divided between processes: the losses and weights of one process."""

from __future__ import annotations

import os
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch.distributed.checkpoint as dcp
from processes import run_together
from run_results import assert_equal_runs

from lagwise.training import Recipe, resume, train
from lagwise.training.checkpoints import checkpoints
from lagwise.training.trainer import LagwiseTrainer

# Two processes would need two GPUs.
pytestmark = [pytest.mark.cpu, pytest.mark.skipif(os.name != "posix", reason="needs fork")]


def train_sharded(recipe: Recipe, out: Path, stop: int | None = None) -> None:
    """stop: the step at which the training is interrupted."""
    step = LagwiseTrainer.training_step

    def stopped(self: LagwiseTrainer, *args: Any, **kwargs: Any) -> Any:
        if self.state.global_step == stop:
            raise SystemExit(0)
        return step(self, *args, **kwargs)

    if stop is not None:
        setattr(LagwiseTrainer, "training_step", stopped)  # noqa: B010 (its type is another)
    train(recipe, out, progress=False)


def resume_quietly(out: Path) -> None:
    resume(out, progress=False)


def sharded(recipe: Recipe) -> Recipe:
    recipe.training.shard = True
    recipe.training.clip, recipe.training.save_every = 0.5, 3
    return recipe


@pytest.mark.slow
def test_two_processes_share_weights_and_resume(tiny_recipe: Recipe, tmp_path: Path) -> None:
    """With accumulation and clipping; resumed by two processes and by one."""
    sharded(tiny_recipe).training.accumulate = 2
    tiny_recipe.training.select = "best"
    one = train(tiny_recipe, tmp_path / "one", progress=False)
    assert run_together(train_sharded, tiny_recipe, tmp_path / "two") == [0, 0]
    assert_equal_runs(tmp_path / "two", one)
    run = tmp_path / "stopped"
    assert run_together(train_sharded, tiny_recipe, run, 4) == [0, 0]
    assert [each.name for each in checkpoints(run)] == ["checkpoint-3"]
    assert (run / "checkpoint-3" / "shards" / "__1_0.distcp").is_file()
    saved = dcp.FileSystemReader(run / "checkpoint-3" / "shards").read_metadata().state_dict_metadata
    assert "model.model.embed_tokens.weight" in saved
    assert "model.lm_head.weight" not in saved  # it is tied to the embeddings
    alone = shutil.copytree(run, tmp_path / "alone")
    cut = shutil.copytree(run, tmp_path / "cut") / "checkpoint-3" / "shards" / "__1_0.distcp"
    cut.write_bytes(cut.read_bytes()[:-100])
    assert run_together(resume_quietly, run) == [0, 0]
    assert_equal_runs(run, one)
    assert_equal_runs(resume(alone, progress=False), one)
    with pytest.raises(ValueError, match=r"checkpoint-3: shards/__1_0\.distcp is missing or cut short"):
        resume(tmp_path / "cut", progress=False)


@pytest.mark.slow
def test_weights_and_sequences_are_shared_at_once(tiny_recipe: Recipe, tmp_path: Path) -> None:
    one = train(sharded(tiny_recipe), tmp_path / "one", progress=False)
    tiny_recipe.training.sequence_parallel = 2
    assert run_together(train_sharded, tiny_recipe, tmp_path / "two", 4) == [0, 0]
    assert run_together(resume_quietly, tmp_path / "two") == [0, 0]
    assert_equal_runs(tmp_path / "two", one)


@pytest.mark.parametrize(
    ("option", "value", "reason"),
    [("optimizer", "muon", "needs `optimizer=adamw`, got 'muon'"), ("average", 0.9, "keeps no average")],
)
def test_what_needs_whole_weights_is_refused(
    tiny_recipe: Recipe, tmp_path: Path, option: str, value: Any, reason: str
) -> None:
    setattr(sharded(tiny_recipe).training, option, value)
    with pytest.raises(ValueError, match=reason):
        train(tiny_recipe, tmp_path / "run", progress=False)
    assert not (tmp_path / "run").exists()
