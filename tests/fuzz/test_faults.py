"""Kills, full disks and concurrent processes: a resumed run has the same losses and weights as an uninterrupted one.

Trainings run in processes forked from a server that has imported everything, so each takes about a second.
"""

from __future__ import annotations

import json
import multiprocessing
import os
import random
import resource
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


def work(recipe: Recipe, out: Path, cache: Path, answer: Path, largest: int | None = None) -> None:
    """Train in ``out``, or resume it, and write errors to ``answer``. Files cannot grow beyond ``largest``."""
    torch.set_num_threads(1)
    os.environ["LAGWISE_CACHE"] = str(cache)
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    error: BaseException | None = None
    try:
        if largest is not None:
            resource.setrlimit(resource.RLIMIT_FSIZE, (largest, limits[1]))
        finish(recipe, out)
    except Exception as raised:
        error = raised
    resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    answer.write_text(json.dumps([type(error).__name__, str(error)]))


def finish(recipe: Recipe, out: Path) -> Path:
    return resume(out, progress=False) if (out / RECIPE_FILE).is_file() else train(recipe, out, progress=False)


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


@pytest.mark.timeout(600)
def test_a_full_disk_at_every_file(server: Any, long_recipe: Recipe, whole: Path, tmp_path: Path) -> None:
    """The file size is limited to the largest size that occurs, the second largest, and so on."""
    sizes = sorted({f.stat().st_size for f in whole.rglob("*") if f.is_file() and f.stat().st_size > 100})
    for size in sizes:
        out, cache, answer = (tmp_path / f"{name}-{size}" for name in ("run", "cache", "answer"))
        process = server.Process(target=work, args=(long_recipe, out, cache, answer, size - 1))
        process.start()
        process.join()
        kind, message = json.loads(answer.read_text())
        if kind != "NoneType":  # what else writes files, such as the log for TensorBoard, may do without
            assert kind == "OSError", (size, kind, message)
            assert "\n" not in message
        assert not (out / "config.json").exists() or kind == "NoneType"
        os.environ["LAGWISE_CACHE"], usual = str(cache), os.environ["LAGWISE_CACHE"]
        finish(long_recipe, out)
        os.environ["LAGWISE_CACHE"] = usual
        check_same(out, whole)


@pytest.mark.timeout(300)
@pytest.mark.parametrize("begun", [False, True])
def test_concurrent_processes_in_one_folder(
    server: Any, long_recipe: Recipe, whole: Path, tmp_path: Path, begun: bool
) -> None:
    """Of several processes that train or resume in one folder, one does so, and the others raise an error with the
    reason."""
    out, cache = tmp_path / "run", tmp_path / "cache"
    if begun:
        shutil.copytree(whole, out)
        (out / "config.json").unlink()
        shutil.rmtree(sorted(out.glob("checkpoint-*"), key=lambda f: int(f.name.split("-")[1]))[-1])
    answers = [tmp_path / f"answer-{number}" for number in range(3)]
    rivals = [server.Process(target=work, args=(long_recipe, out, cache, answer)) for answer in answers]
    for process in rivals:
        process.start()
    for process in rivals:
        process.join()
    kinds = [json.loads(answer.read_text())[0] for answer in answers]
    assert kinds.count("NoneType") >= 1, [answer.read_text() for answer in answers]
    assert set(kinds) <= {"NoneType", "BlockingIOError", "FileExistsError"}
    check_same(out, whole)
