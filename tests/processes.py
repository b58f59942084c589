"""Several processes that train together, as torchrun would start them. They are forked from a server that has imported
everything, so that they start at once."""

from __future__ import annotations

import gc
import multiprocessing
import os
import socket
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from lagwise.training import Recipe, train
from lagwise.training.trainer import LagwiseTrainer


def run_together(work: Callable[..., None], *args: Any, count: int = 2) -> list[int | None]:
    """Call a function of a module in every process, and return their exit codes."""
    if 0 < torch.cuda.device_count() < count:
        pytest.skip(f"{count} processes train on {count} GPUs each for itself, and there are fewer")
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["lagwise.training.run", "lagwise.training.trainer", "lagwise.models"])
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    processes = [context.Process(target=_begin, args=(rank, count, port, work, args)) for rank in range(count)]
    for process in processes:
        process.start()
    for process in processes:
        process.join()
    return [process.exitcode for process in processes]


def _begin(rank: int, count: int, port: int, work: Callable[..., None], args: tuple[Any, ...]) -> None:
    places = {"RANK": rank, "LOCAL_RANK": rank, "WORLD_SIZE": count, "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port}
    os.environ.update({name: str(value) for name, value in places.items()})
    torch.set_num_threads(1)
    gc.freeze()  # as in conftest.py
    work(*args)


def train_until(recipe: Recipe, out: Path, step: int | None = None) -> None:
    """Train without progress; end the process before the step after this one."""
    with pytest.MonkeyPatch.context() as patch:
        stop_at(patch, step, SystemExit(0))
        train(recipe, out, progress=False)


def stop_at(patch: pytest.MonkeyPatch, step: int | None, error: BaseException) -> None:
    """Let trainings raise an error before the step after this one."""
    train_step = LagwiseTrainer.training_step

    def stopped(self: LagwiseTrainer, *args: Any, **kwargs: Any) -> Any:
        if self.state.global_step == step:
            raise error
        return train_step(self, *args, **kwargs)

    patch.setattr(LagwiseTrainer, "training_step", stopped)
