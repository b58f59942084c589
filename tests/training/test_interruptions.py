"""Stops, kills, full disks and damaged files: what a training loses, and how it goes on."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from run_results import weights

from lagwise.training import Recipe, read_metrics, resume, train
from lagwise.training.folder import checkpoints, newest_whole_checkpoint
from lagwise.training.trainer import LagwiseTrainer


def test_a_damaged_checkpoint_is_skipped(tiny_run: Path) -> None:
    first, last = checkpoints(tiny_run)
    cut = (last / "model.safetensors").read_bytes()[:-50]
    (last / "model.safetensors").write_bytes(cut)
    assert newest_whole_checkpoint(tiny_run) == first
    (first / "optimizer.pt").write_bytes(b"no zip")
    with pytest.raises(
        ValueError,
        match=r"no checkpoint .*: model\.saf.* damaged; checkpoint-3: optimizer\.pt is missing or damaged",
    ):
        newest_whole_checkpoint(tiny_run)


@pytest.fixture
def python_handles_ctrl_c() -> Iterator[None]:
    """Where the tests run in the background of a shell, Python has no handler of SIGINT."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


@pytest.mark.usefixtures("python_handles_ctrl_c")
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_stop_saves_the_last_step(
    tiny_recipe: Recipe, tiny_run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, number: signal.Signals
) -> None:
    step = LagwiseTrainer.training_step
    before = signal.getsignal(number)

    def asked(self: LagwiseTrainer, *args: Any, **kwargs: Any) -> Any:
        if self.state.global_step == 3:
            signal.raise_signal(number)
        return step(self, *args, **kwargs)

    monkeypatch.setattr(LagwiseTrainer, "training_step", asked)
    with pytest.raises(KeyboardInterrupt):
        train(tiny_recipe, tmp_path / "run", progress=False)
    assert signal.getsignal(number) is before
    assert [c.name for c in checkpoints(tmp_path / "run")][-1] == "checkpoint-4"
    monkeypatch.undo()
    resumed = weights(resume(tmp_path / "run", progress=False))
    assert all(torch.equal(weight, resumed[name]) for name, weight in weights(tiny_run).items())


@pytest.mark.usefixtures("python_handles_ctrl_c")
def test_a_second_stop_is_immediate(tiny_recipe: Recipe, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def asked_twice(self: LagwiseTrainer, *args: Any, **kwargs: Any) -> Any:
        signal.raise_signal(signal.SIGINT)
        signal.raise_signal(signal.SIGINT)
        pytest.fail("the second signal was ignored")

    monkeypatch.setattr(LagwiseTrainer, "training_step", asked_twice)
    with pytest.raises(KeyboardInterrupt):
        train(tiny_recipe, tmp_path / "run", progress=False)
    assert not checkpoints(tmp_path / "run")


def test_a_truncated_log_is_read_up_to_its_last_complete_line(tmp_path: Path) -> None:
    (tmp_path / "metrics.jsonl").write_text('{"step": 6, "loss": 2.5}\n{"step": 7, "lo')
    assert read_metrics(tmp_path) == [{"step": 6, "loss": 2.5}]
