"""Trainings of several processes: the figures of one, one checkpoint, one voice."""

from __future__ import annotations

import copy
import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
import torch
from processes import run_together, stop_at
from run_results import losses, weights
from transformers import TrainingArguments

from lagwise.process import Stopped
from lagwise.training import Recipe, read_metrics, resume, train, train_or_resume
from lagwise.training.folder import checkpoints
from lagwise.training.setup import training_arguments
from lagwise.training.trainer import LagwiseTrainer

pytestmark = pytest.mark.skipif(os.name != "posix", reason="needs fork and signals")


def stopped_in_one(recipe: Recipe, out: Path, number: signal.Signals) -> None:
    """Only the second process gets the signal, several times, as launchers send it."""
    if os.environ["RANK"] == "1":
        step = LagwiseTrainer.training_step

        def asked(self: LagwiseTrainer, *args: Any, **kwargs: Any) -> Any:
            if self.state.global_step == 3:
                signal.raise_signal(number)
                signal.raise_signal(number)
            return step(self, *args, **kwargs)

        setattr(LagwiseTrainer, "training_step", asked)  # noqa: B010 (its type is another)
    signal.signal(number, signal.SIG_DFL)
    try:
        train(recipe, out, progress=False)
    except Stopped as stop:
        sys.exit(100 + stop.number)


@pytest.mark.slow
@pytest.mark.sampled(2)
@pytest.mark.cpu  # two processes would need two GPUs
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_to_one_process_stops_all_after_a_checkpoint(
    tiny_recipe: Recipe, tiny_run: Path, tmp_path: Path, number: signal.Signals
) -> None:
    run = tmp_path / "run"
    assert run_together(stopped_in_one, tiny_recipe, run, number) == [100 + number] * 2
    assert [each.name for each in checkpoints(run)] == ["checkpoint-3", "checkpoint-4"]
    resumed = weights(resume(run, progress=False))
    for name, weight in weights(tiny_run).items():
        torch.testing.assert_close(resumed[name], weight, atol=1e-6, rtol=1e-5)


def test_one_command_begins_and_resumes(
    tiny_recipe: Recipe, tiny_run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = tmp_path / "run"
    stop_at(monkeypatch, 4, KeyboardInterrupt())
    with pytest.raises(KeyboardInterrupt):
        train_or_resume(tiny_recipe, run, progress=False)
    monkeypatch.undo()
    longer = copy.deepcopy(tiny_recipe)
    longer.training.steps = 7
    with pytest.raises(ValueError, match=r"was begun with training\.steps 6, not 7"):
        train_or_resume(longer, run, progress=False)
    about = json.loads((run / "run.json").read_text())
    del about["asked"]["training"]["tf32"]  # as a version without this option would have begun the run
    (run / "run.json").write_text(json.dumps(about))
    train_or_resume(tiny_recipe, run, progress=False)
    lines = (run / "metrics.jsonl").read_text()
    assert losses(run) == losses(tiny_run)
    train_or_resume(tiny_recipe, run, progress=False)  # finished
    assert (run / "metrics.jsonl").read_text() == lines


def test_one_process_uses_one_gpu(tiny_recipe: Recipe, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def four(arguments: TrainingArguments) -> torch.device:
        arguments._n_gpu = 4
        return torch.device("cpu")

    monkeypatch.setattr(TrainingArguments, "_setup_devices", property(four))
    with pytest.warns(UserWarning, match=r"one of 4 GPUs; .*: torchrun --nproc-per-node 4"):
        arguments = training_arguments(tiny_recipe, tmp_path)
    assert (arguments.n_gpu, arguments.train_batch_size) == (1, arguments.per_device_train_batch_size)


def torchrun(*arguments: str, restarts: int = 0) -> subprocess.Popen[str]:
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]
    command += ["--max-restarts", str(restarts), "-m", "lagwise", *arguments]
    # Otherwise processes that are started again may find the addresses of those before (see docs/cluster.md).
    given = {**os.environ, "TORCH_DISABLE_SHARE_RDZV_TCP_STORE": "1" if restarts else "0"}
    return subprocess.Popen(command, env=given, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


def children(process: int) -> list[int]:
    """The processes that a process has started."""
    return [int(child) for child in Path(f"/proc/{process}/task/{process}/children").read_text().split()]


def wait_for(condition: Any, process: subprocess.Popen[str]) -> None:
    while not condition():
        assert process.poll() is None, process.communicate()
        time.sleep(0.05)


@pytest.fixture
def long_recipe(tiny_recipe: Recipe, tmp_path: Path) -> Path:
    tiny_recipe.training.steps, tiny_recipe.training.save_every = 300, 20
    tiny_recipe.training.log_every, tiny_recipe.training.evaluate_every = 10, 1000
    path = tmp_path / "recipe.yaml"
    path.write_text(tiny_recipe.to_yaml())
    return path


@pytest.mark.slow
@pytest.mark.skipif(sys.platform != "linux", reason="finds processes in /proc")
def test_torchrun_restarts_and_resumes(long_recipe: Path, tmp_path: Path) -> None:
    """A process is killed, and torchrun starts both again; the second time, the launcher gets SIGTERM."""
    whole, run = tmp_path / "whole", tmp_path / "run"
    command = ["train", "--recipe", str(long_recipe), "--resume", "auto", "--out"]
    process = torchrun(*command, str(whole))
    said, warned = process.communicate(timeout=300)
    assert process.returncode == 0, warned
    assert said.count("Trained: ") == 1
    process = torchrun(*command, str(run), restarts=1)
    wait_for(lambda: checkpoints(run), process)
    os.kill(children(process.pid)[1], signal.SIGKILL)
    killed_at = max(int(each.name.split("-")[1]) for each in checkpoints(run))
    wait_for(lambda: int(checkpoints(run)[-1].name.split("-")[1]) > killed_at + 20, process)
    process.terminate()
    said, warned = process.communicate(timeout=300)
    assert process.returncode != 0
    assert warned.count("Stopping after this step.") == 1
    assert warned.count("Stopped. To resume: ") == 1
    assert not (run / "config.json").exists()
    stopped_at = int(checkpoints(run)[-1].name.split("-")[1])
    process = torchrun(*command, str(run))
    said, warned = process.communicate(timeout=300)
    assert process.returncode == 0, warned
    assert read_metrics(run)[-1]["step"] == 300
    shared = {step: loss for step, loss in losses(whole).items() if step % 10 == 0 and step > stopped_at + 10}
    assert shared
    assert {step: losses(run)[step] for step in shared} == shared
    assert all(torch.equal(weight, weights(run)[name]) for name, weight in weights(whole).items())
