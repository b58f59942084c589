"""Trainings that several processes share: the batch, every sequence, or the weights; with the losses, figures and
weights of one process."""

from __future__ import annotations

import os
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch.distributed.checkpoint as dcp
from every_task import CASES, recipe
from processes import resume_quietly, run_together, train_until
from run_results import assert_equal_runs

from lagwise.files import read_json
from lagwise.models.loading import read_config
from lagwise.training import Recipe, resume, train
from lagwise.training.first_answer import read_first_answer
from lagwise.training.folder import checkpoints

# Two processes would need two GPUs.
pytestmark = [pytest.mark.cpu, pytest.mark.skipif(os.name != "posix", reason="needs fork")]


def sharded(recipe: Recipe) -> Recipe:
    recipe.training.shard = True
    recipe.training.clip, recipe.training.save_every = 0.5, 3
    return recipe


@pytest.mark.slow
@pytest.mark.sampled(4)
@pytest.mark.parametrize("name", ["language_modelling", "masked_language_modelling"])
@pytest.mark.parametrize("parallel", [1, 2])
def test_two_processes_share_a_batch_or_its_sequences(
    tiny_recipe: Recipe, tmp_path: Path, name: str, parallel: int
) -> None:
    """With accumulation, clipping, lengths that change, and validation windows that fill neither the batches of one
    process nor those of two."""
    options = tiny_recipe.training
    options.accumulate, options.clip, options.evaluate_tokens = 2, 0.5, 7 * tiny_recipe.data.length
    tiny_recipe.data.lengths = [16, 32]
    if name == "masked_language_modelling":
        tiny_recipe.task = {"name": name}
        tiny_recipe.model |= {"causal": False}
    one = train(tiny_recipe, tmp_path / "one", progress=False)
    options.sequence_parallel = parallel
    assert run_together(train_until, tiny_recipe, tmp_path / "two") == [0, 0]
    assert_equal_runs(tmp_path / "two", one)
    assert read_json(tmp_path / "two" / "run.json")["processes"] == 2


@pytest.mark.slow
def test_groups_of_processes_share_sequences(tiny_recipe: Recipe, tmp_path: Path) -> None:
    """Two groups of two share the batch, as one process would have it."""
    tiny_recipe.training.evaluate_tokens = 7 * tiny_recipe.data.length
    one = train(tiny_recipe, tmp_path / "one", progress=False)
    tiny_recipe.training.sequence_parallel = 2
    assert run_together(train_until, tiny_recipe, tmp_path / "four", count=4) == [0] * 4
    assert_equal_runs(tmp_path / "four", one)


@pytest.mark.slow
def test_two_processes_share_weights_and_resume(tiny_recipe: Recipe, tmp_path: Path) -> None:
    """With accumulation and clipping; resumed by two processes and by one."""
    sharded(tiny_recipe).training.accumulate = 2
    tiny_recipe.training.select = "best"
    one = train(tiny_recipe, tmp_path / "one", progress=False)
    assert run_together(train_until, tiny_recipe, tmp_path / "two") == [0, 0]
    assert_equal_runs(tmp_path / "two", one)
    run = tmp_path / "stopped"
    assert run_together(train_until, tiny_recipe, run, 4) == [0, 0]
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
    with pytest.raises(ValueError, match=r"checkpoint-3: shards/__1_0\.distcp is missing or damaged"):
        resume(tmp_path / "cut", progress=False)


@pytest.mark.slow
def test_weights_and_sequences_are_shared_at_once(tiny_recipe: Recipe, tmp_path: Path) -> None:
    one = train(sharded(tiny_recipe), tmp_path / "one", progress=False)
    tiny_recipe.training.sequence_parallel = 2
    assert run_together(train_until, tiny_recipe, tmp_path / "two", 4) == [0, 0]
    assert run_together(resume_quietly, tmp_path / "two") == [0, 0]
    assert_equal_runs(tmp_path / "two", one)


@pytest.mark.parametrize(
    ("options", "reason"),
    [
        ({"shard": True, "optimizer": "muon"}, "needs `optimizer=adamw`, got 'muon'"),
        ({"sequence_parallel": 2}, r"must divide the number of processes, got 2 for 1; start 2 processes"),
    ],
)
def test_what_cannot_be_shared_is_refused(
    tiny_recipe: Recipe, tmp_path: Path, options: dict[str, Any], reason: str
) -> None:
    vars(tiny_recipe.training).update(options)
    with pytest.raises(ValueError, match=reason):
        train(tiny_recipe, tmp_path / "run", progress=False)
    assert not (tmp_path / "run").exists()


def compare(name: str, folder: Path, *overrides: str, shard: bool) -> None:
    made = recipe(name, folder / "data", "training.accumulate=2", *overrides)
    one = train(made, folder / "one", progress=False)
    made.training.shard, made.training.accumulate = shard, 1
    assert run_together(train_until, made, folder / "two") == [0, 0]
    assert_equal_runs(folder / "two", one)
    ours, theirs = (getattr(read_config(run), "threshold", None) or 0.0 for run in (folder / "two", one))
    assert ours == pytest.approx(theirs, rel=1e-4)


def test_two_processes_train_as_one(tmp_path: Path) -> None:
    """Also where rows have different numbers of values, since some are missing."""
    compare("forecasts", tmp_path, shard=False)


@pytest.mark.slow
def test_a_first_answer_is_compared_on_all_rows(tmp_path: Path) -> None:
    texts = [f"{word} film {i}" for i in range(20) for word in ("good", "bad", "seen")]
    rows = [f"{text},{'no' if i % 7 < 2 else 'yes'}\n" for i, text in enumerate(texts)]  # which none answers perfectly
    (tmp_path / "rows.csv").write_text("text,label\n" + "".join(rows))
    source = f"data.source={tmp_path / 'rows.csv'}"
    compare("classes of text", tmp_path, source, "training.first_answer=compare", shard=False)
    one, two = (read_first_answer(tmp_path / name) or {} for name in ("one", "two"))
    assert two["trained"]["accuracy"] == one["trained"]["accuracy"]
    assert two["kept"] == one["kept"]


@pytest.mark.slow
@pytest.mark.parametrize("shard", [False, True])
@pytest.mark.parametrize("name", CASES)
def test_every_task(name: str, shard: bool, tmp_path: Path) -> None:
    compare(name, tmp_path, shard=shard)
