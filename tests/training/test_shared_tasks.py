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

from lagwise.models.loading import read_config
from lagwise.training import Recipe, train
from lagwise.training.first_answer import read_first_answer

# Two processes would need two GPUs.
pytestmark = [pytest.mark.cpu, pytest.mark.skipif(os.name != "posix", reason="needs fork")]


def train_quietly(recipe: Recipe, out: Path) -> None:
    train(recipe, out, progress=False)


def compare(name: str, folder: Path, *overrides: str, shard: bool) -> None:
    made = recipe(name, folder / "data", "training.accumulate=2", *overrides)
    one = train(made, folder / "one", progress=False)
    made.training.shard, made.training.accumulate = shard, 1
    assert run_together(train_quietly, made, folder / "two") == [0, 0]
    assert_equal_runs(folder / "two", one)
    assert _threshold(folder / "two") == pytest.approx(_threshold(one), rel=1e-4)


def _threshold(run: Path) -> float:
    return getattr(read_config(run), "threshold", None) or 0.0


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
