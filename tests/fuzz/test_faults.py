"""Kills: a resumed run has the same losses and weights as an uninterrupted one.

Trainings run in processes forked from a server that has imported everything, so each takes about a second.
"""

from __future__ import annotations

import json
import multiprocessing
import os
import random
import shutil
import signal
import time
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file

from lagwise.files import RECIPE_FILE
from lagwise.training import Recipe, read_metrics, resume, train

pytestmark = [pytest.mark.slow, pytest.mark.skipif(os.name != "posix", reason="needs fork and signals")]
KILLS = 25


def work(recipe: Recipe, out: Path, cache: Path, answer: Path) -> None:
    """Train in ``out``, or resume it, and write errors to ``answer``."""
    torch.set_num_threads(1)
    os.environ["LAGWISE_CACHE"] = str(cache)
    error: BaseException | None = None
    try:
        if (out / RECIPE_FILE).is_file():
            resume(out, progress=False)
        else:
            train(recipe, out, progress=False)
    except Exception as raised:
        error = raised
    answer.write_text(json.dumps([type(error).__name__, str(error)]))


@pytest.fixture(scope="module")
def server() -> Any:
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["lagwise.training.run", "test_faults"])
    first = context.Process(target=len, args=("",))  # starts the server, which takes as long as its imports
    first.start()
    first.join()
    return context


@pytest.fixture
def long_recipe(tiny_recipe: Recipe) -> Recipe:
    tiny_recipe.training.steps, tiny_recipe.training.save_every = 12, 2
    tiny_recipe.training.log_every, tiny_recipe.training.evaluate_every = 3, 5
    return tiny_recipe


@pytest.fixture
def whole(long_recipe: Recipe, tmp_path: Path) -> Path:
    torch.set_num_threads(1)
    return train(long_recipe, tmp_path / "whole", progress=False)


def check_same(run: Path, whole: Path) -> None:
    kept = ("step", "loss", "eval_loss", "train_loss", "grad_norm", "learning_rate")
    lines, expected = (
        [{name: value for name, value in line.items() if name in kept} for line in read_metrics(each)]
        for each in (run, whole)
    )
    assert lines == expected
    for name, weight in load_file(whole / "model.safetensors").items():
        assert torch.equal(weight, load_file(run / "model.safetensors")[name]), name
    assert not list(run.glob(".saving*"))


@pytest.mark.timeout(600)
def test_kills_at_random_moments(server: Any, long_recipe: Recipe, whole: Path, tmp_path: Path) -> None:
    """Each run is killed repeatedly until it finishes: while it tokenizes, starts, trains, saves and ends."""
    chance, kills, number, usual = random.Random(0), 0, 0, 0.0
    while kills < KILLS:
        out, cache, answer = (tmp_path / f"{name}-{number}" for name in ("run", "cache", "answer"))
        while not answer.exists():
            started = time.monotonic()
            process = server.Process(target=work, args=(long_recipe, out, cache, answer))
            process.start()
            process.join(chance.uniform(0, 1.5 * usual) if number else None)  # the first shows how long it takes
            if process.is_alive():
                os.kill(process.pid, signal.SIGKILL)
                kills += 1
            process.join()
        usual = usual or time.monotonic() - started
        assert json.loads(answer.read_text())[0] == "NoneType", answer.read_text()
        check_same(out, whole)
        assert not list((cache / "tokens").glob(".saving*"))
        shutil.rmtree(out)
        number += 1
