"""Trainings that several processes share: the batch, or every sequence; with the losses, figures and weights of one
process."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from every_task import CASES, recipe
from processes import run_together, train_until
from run_results import assert_equal_runs

from lagwise.files import read_json
from lagwise.models.loading import read_config
from lagwise.training import Recipe, train
from lagwise.training.first_answer import read_first_answer

# Two processes would need two GPUs.
pytestmark = [pytest.mark.cpu, pytest.mark.skipif(os.name != "posix", reason="needs fork")]


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


def test_what_cannot_be_shared_is_refused(tiny_recipe: Recipe, tmp_path: Path) -> None:
    tiny_recipe.training.sequence_parallel = 2
    with pytest.raises(ValueError, match=r"must divide the number of processes, got 2 for 1; start 2 processes"):
        train(tiny_recipe, tmp_path / "run", progress=False)
    assert not (tmp_path / "run").exists()


def compare(name: str, folder: Path, *overrides: str) -> None:
    made = recipe(name, folder / "data", "training.accumulate=2", *overrides)
    one = train(made, folder / "one", progress=False)
    made.training.accumulate = 1
    assert run_together(train_until, made, folder / "two") == [0, 0]
    assert_equal_runs(folder / "two", one)
    ours, theirs = (getattr(read_config(run), "threshold", None) or 0.0 for run in (folder / "two", one))
    assert ours == pytest.approx(theirs, rel=1e-4)


def test_two_processes_train_as_one(tmp_path: Path) -> None:
    """Also where rows have different numbers of values, since some are missing."""
    compare("forecasts", tmp_path)


@pytest.mark.slow
def test_a_first_answer_is_compared_on_all_rows(tmp_path: Path) -> None:
    texts = [f"{word} film {i}" for i in range(20) for word in ("good", "bad", "seen")]
    rows = [f"{text},{'no' if i % 7 < 2 else 'yes'}\n" for i, text in enumerate(texts)]  # which none answers perfectly
    (tmp_path / "rows.csv").write_text("text,label\n" + "".join(rows))
    source = f"data.source={tmp_path / 'rows.csv'}"
    compare("classes of text", tmp_path, source, "training.first_answer=compare")
    one, two = (read_first_answer(tmp_path / name) or {} for name in ("one", "two"))
    assert two["trained"]["accuracy"] == one["trained"]["accuracy"]
    assert two["kept"] == one["kept"]


@pytest.mark.slow
@pytest.mark.parametrize("name", CASES)
def test_every_task(name: str, tmp_path: Path) -> None:
    compare(name, tmp_path)
