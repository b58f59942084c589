"""The checkpoints of a run: which exist, which can be resumed exactly, and the best model so far."""

from __future__ import annotations

import json
import pickle
import random
import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors import SafetensorError
from transformers import TrainerCallback, TrainerState
from transformers.trainer_pt_utils import safe_globals

from lagwise.files import one_line, saved_whole
from lagwise.models.loading import check_weights, quiet
from lagwise.models.sharded import is_sharded, whole_state
from lagwise.training.sharding import SHARDS, check_saved_shards

BEST = "best"  # folder of the best model of a training
_DAMAGE = (OSError, ValueError, TypeError, KeyError, AttributeError, RuntimeError, EOFError, RecursionError)
_DAMAGE += (IndexError, SafetensorError, pickle.UnpicklingError)  # raised by readers of damaged files


def checkpoints(run: Path) -> list[Path]:
    """List the checkpoint folders of a run, oldest first."""
    found = (f for f in run.glob("checkpoint-*") if f.is_dir() and f.name.split("-")[1].isdecimal())
    return sorted(found, key=step_of)


def step_of(checkpoint: Path) -> int:
    """Return the step in a checkpoint's name."""
    return int(checkpoint.name.split("-")[1])


def newest_whole_checkpoint(run: Path, trainer: Any = None) -> Path | None:
    """Find the newest checkpoint that can be resumed; None if the run has none yet.

    All its files must be readable, and the optimiser, the schedule and the log must be of the step in its name. With a
    ``trainer``, the weights must have the keys and shapes of its model, and the optimiser state those of its optimizer.
    If there are checkpoints, but none can be resumed, a ValueError says what is wrong with each.
    """
    model, optimizer = (None, None) if trainer is None else (trainer.model, trainer.optimizer)
    complaints = []
    for folder in reversed(checkpoints(run)):
        try:
            sharded = (folder / SHARDS).is_dir()
            (check_saved_shards if sharded else check_weights)(folder, model)
            _check_state(folder)
            schedule = _load(folder / "scheduler.pt")
            saved = {"param_groups": []} if sharded else _load(folder / "optimizer.pt")
            if not sharded:
                _check_optimizer(saved, optimizer)
            if schedule["last_epoch"] != step_of(folder):
                raise ValueError("scheduler.pt is of another step")
            rates = zip(saved["param_groups"], schedule["_last_lr"], strict=False)
            if any(group["lr"] != rate for group, rate in rates):
                raise ValueError("optimizer.pt is of another step than scheduler.pt")
            _check_random_states(folder)
            return folder
        except _DAMAGE as error:
            complaints.append(f"{folder.name}: {one_line(error)}")
    if not complaints:
        return None
    raise ValueError(f"no checkpoint to resume in {str(run)!r}: " + "; ".join(complaints))


def _load(path: Path, device: str = "meta") -> Any:
    """Load a file of `torch.save`; on the meta device only keys, shapes and plain values are read."""
    try:
        with safe_globals():
            return torch.load(path, map_location=device, weights_only=True)
    except _DAMAGE as error:
        raise ValueError(f"{path.name} is missing or damaged ({one_line(error)})") from error


def _check_state(folder: Path) -> None:
    """Raise unless trainer_state.json is valid and belongs to the step in the folder's name."""
    try:
        state = TrainerState.load_from_json(str(folder / "trainer_state.json"))
    except _DAMAGE as error:
        raise ValueError(f"trainer_state.json is missing or damaged ({one_line(error)})") from error
    for name, usual in vars(TrainerState()).items():
        value = getattr(state, name)
        kinds = (int, float) if type(usual) in (int, float) else type(usual)
        if usual is not None and (not isinstance(value, kinds) or (isinstance(value, bool) != isinstance(usual, bool))):
            raise ValueError(f"trainer_state.json has {name} {str(value)[:40]!r}")
    if not all(isinstance(line, dict) for line in state.log_history):
        raise ValueError("trainer_state.json has a damaged log_history")
    if min(state.logging_steps, state.eval_steps, state.save_steps) < 1:
        raise ValueError("trainer_state.json has an interval below 1")
    if state.global_step != step_of(folder):
        raise ValueError(f"trainer_state.json is of step {state.global_step}")


def _check_optimizer(saved: Any, optimizer: torch.optim.Optimizer | None) -> None:
    """Raise unless ``optimizer`` can continue from a saved optimiser state: `torch.optim.AdamW` does not check shapes,
    and its fused kernel writes beyond moments that are too small."""
    groups, moments = saved["param_groups"], saved["state"]
    if optimizer is None:
        return
    own = optimizer.state_dict()["param_groups"]
    if [group["params"] for group in groups] != [group["params"] for group in own]:
        raise ValueError("optimizer.pt has other parameter groups than this model")
    for group, mine in zip(groups, own, strict=True):
        for name in group.keys() & mine.keys() - {"lr"}:
            if group[name] != mine[name]:
                raise ValueError(f"optimizer.pt has {name} {str(group[name])[:40]}, the recipe {mine[name]}")
        if group.get("initial_lr", mine["lr"]) != mine["lr"]:
            raise ValueError(f"optimizer.pt has learning rate {str(group['initial_lr'])[:40]}, the recipe {mine['lr']}")
        if not isinstance(group["lr"], float):
            raise ValueError(f"optimizer.pt has learning rate {str(group['lr'])[:40]!r}")
    moments_of = [
        (parameter, ("momentum_buffer",) if "momentum" in group else ("exp_avg", "exp_avg_sq"))
        for group in optimizer.param_groups
        for parameter in group["params"]
    ]
    if set(moments) != set(range(len(moments_of))):
        raise ValueError("optimizer.pt lacks the state of some parameters, or has too many")
    for number, (parameter, names) in enumerate(moments_of):
        shapes = {"step": torch.Size(), **dict.fromkeys(names, parameter.shape)}
        found = {name: value.shape for name, value in moments[number].items() if value.is_floating_point()}
        if found != shapes:
            raise ValueError(f"optimizer.pt has moments of other shapes than the weights (parameter {number})")


def _check_random_states(folder: Path) -> None:
    """Raise unless there are states of random generators, each valid for its generator."""
    files = sorted(folder.glob("rng_state*.pth"))
    if not files:
        raise ValueError("no rng_state.pth")
    for file in files:
        states = _load(file, "cpu")
        try:
            random.Random().setstate(states["python"])
            np.random.RandomState().set_state(states["numpy"])
            torch.Generator().set_state(states["cpu"])
        except _DAMAGE as error:
            raise ValueError(f"{file.name} is damaged ({one_line(error)})") from error


class BestModel(TrainerCallback):
    """Callback that keeps the weights of the best evaluation in ``RUN/best``, and stops the training after ``patience``
    evaluations without a better one (0: never). The best evaluation is determined from the log alone, so that a resumed
    run decides the same."""

    def __init__(self, run: Path, metric: str, greater_is_better: bool, patience: int, keep: bool):
        self.folder, self.metric = run / BEST, f"eval_{metric}"
        self.sign = 1 if greater_is_better else -1
        self.patience, self.keep = patience, keep

    def on_step_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        if state.global_step >= state.max_steps and args.eval_strategy != "no":  # the last model is evaluated too
            control.should_evaluate = True

    def on_evaluate(self, args: Any, state: Any, control: Any, model: Any = None, **kwargs: Any) -> None:
        values = [self.sign * line[self.metric] for line in state.log_history if self.metric in line]
        if not values:  # a model without a loss
            return
        since = evaluations_since_best(values)
        if self.keep and since == 0:
            model = getattr(model, "module", model)
            weights = whole_state(model) if is_sharded(model) else None
            if state.is_world_process_zero:
                with quiet(), saved_whole(self.folder, "the best model so far", last="config.json") as partial:
                    model.save_pretrained(partial, state_dict=weights)
        if self.patience and since >= self.patience:
            control.should_training_stop = True
            control.should_save = True

    def has_stopped(self, checkpoint: Path) -> bool:
        """Whether the training that wrote a checkpoint had stopped there because the metric no longer improved."""
        history = json.loads((checkpoint / "trainer_state.json").read_text(encoding="utf-8"))["log_history"]
        values = [self.sign * line[self.metric] for line in history if self.metric in line]
        return bool(self.patience and values) and evaluations_since_best(values) >= self.patience

    def take(self, partial: Path) -> bool:
        """Copy the best weights into a folder that is being saved. Returns whether there are any."""
        if not (self.keep and (self.folder / "config.json").is_file()):
            return False
        shutil.copyfile(self.folder / "model.safetensors", partial / "model.safetensors")
        return True

    def remove(self) -> None:
        """Remove the copy, once it is the run's final model."""
        shutil.rmtree(self.folder, ignore_errors=True)


def evaluations_since_best(values: Sequence[float]) -> int:
    """Return the number of values after the first maximum."""
    return len(values) - 1 - max(range(len(values)), key=lambda i: (values[i], -i))
