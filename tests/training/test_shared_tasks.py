"""Every task, trained by two processes: with whole weights, and with divided ones, the losses and weights of one."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import pytest
from processes import run_together
from run_results import assert_equal_runs

sys.path.insert(0, str(Path(__file__).parent.parent / "tasks"))
from every_task import CASES, recipe

from lagwise.training import Recipe, train

pytestmark = pytest.mark.skipif(os.name != "posix", reason="needs fork")


def train_quietly(recipe: Recipe, out: Path) -> None:
    train(recipe, out, progress=False)


def compare(name: str, folder: Path, *, shard: bool) -> None:
    made = recipe(name, folder / "data", "training.accumulate=2")
    one = train(made, folder / "one", progress=False)
    made.training.shard, made.training.accumulate = shard, 1
    assert run_together(train_quietly, made, folder / "two") == [0, 0]
    assert_equal_runs(folder / "two", one)


def test_two_processes_train_as_one(tmp_path: Path) -> None:
    """Also where rows have different numbers of values, since some are missing."""
    compare("forecasts", tmp_path, shard=False)


@pytest.mark.slow
@pytest.mark.parametrize("shard", [False, True])
@pytest.mark.parametrize("name", CASES)
def test_every_task(name: str, shard: bool, tmp_path: Path) -> None:
    compare(name, tmp_path, shard=shard)
