"""Stopping a training without losing its last steps."""

from __future__ import annotations

import signal
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Any

import torch
import torch.distributed as dist
from transformers import Trainer, TrainerCallback

from lagwise.process import Stopped, is_first

_SIGNALS = (signal.SIGINT, signal.SIGTERM)
_DEFAULTS = (signal.SIG_DFL, signal.default_int_handler)


class _StopAfterStep(TrainerCallback):
    """Callback that saves a checkpoint and ends the training after the step in which any process got a signal."""

    def __init__(self, processes: int):
        self.asked = 0  # the number of the signal
        # On the CPU, so that no process waits for its GPU.
        self.group = dist.new_group(backend="gloo") if processes > 1 else None

    def on_step_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        if self.group is not None:
            asked = torch.tensor(self.asked, device="cpu")
            dist.all_reduce(asked, dist.ReduceOp.MAX, self.group)
            self.asked = int(asked)
        if self.asked:
            control.should_save = control.should_log = control.should_training_stop = True


@contextmanager
def saved_when_stopped(trainer: Trainer) -> Iterator[None]:
    """On Ctrl-C or SIGTERM within the context, complete the step and save a checkpoint before `Stopped` is raised, in
    all processes if any of them gets the signal. A second signal to a single process stops it at once; the processes of
    a group may each get several, and their launcher ends those that do not stop in time.

    Has no effect where signals cannot be handled (in other threads).
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    stop = _StopAfterStep(trainer.args.world_size)
    # A handler that someone else has set, such as that of a notebook or a scheduler, stays.
    before = {number: signal.getsignal(number) for number in _SIGNALS if signal.getsignal(number) in _DEFAULTS}

    def handle(number: int, frame: FrameType | None) -> None:
        again = bool(stop.asked)
        stop.asked = number
        if stop.group is None:
            for each in before:
                signal.signal(each, signal.default_int_handler)
        if is_first() and not again:
            hint = "; again to stop at once" if stop.group is None else ""
            print(f"\nStopping after this step{hint}.", file=sys.stderr, flush=True)

    trainer.add_callback(stop)
    try:
        for number in before:
            signal.signal(number, handle)
        yield
        if stop.asked and trainer.state.global_step < trainer.state.max_steps:
            raise Stopped(stop.asked)
    finally:
        trainer.remove_callback(stop)
        for number, handler in before.items():
            signal.signal(number, handler)
