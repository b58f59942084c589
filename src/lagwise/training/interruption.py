"""Stopping a training without losing its last steps."""

from __future__ import annotations

import signal
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Any

from transformers import Trainer, TrainerCallback

_SIGNALS = (signal.SIGINT, signal.SIGTERM)
_DEFAULTS = (signal.SIG_DFL, signal.default_int_handler)


class _StopAfterStep(TrainerCallback):
    """Saves a checkpoint and ends the training after the step in which it was asked to."""

    asked = False

    def on_step_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        if self.asked:
            control.should_save = control.should_log = control.should_training_stop = True


@contextmanager
def saved_when_stopped(trainer: Trainer) -> Iterator[None]:
    """During the block, Ctrl-C or SIGTERM let the trainer complete its step and save a checkpoint before they raise
    KeyboardInterrupt. A second one stops at once.

    Does nothing where signals cannot be handled (in other threads), and with several processes, which would save at
    different steps.
    """
    if threading.current_thread() is not threading.main_thread() or trainer.args.world_size > 1:
        yield
        return
    stop = _StopAfterStep()
    # A handler that someone else has set, such as that of a notebook or a scheduler, stays.
    before = {number: signal.getsignal(number) for number in _SIGNALS if signal.getsignal(number) in _DEFAULTS}

    def handle(number: int, frame: FrameType | None) -> None:
        stop.asked = True
        for each in before:
            signal.signal(each, signal.default_int_handler)
        print("\nStopping after this step; again to stop at once.", file=sys.stderr, flush=True)

    trainer.add_callback(stop)
    try:
        for number in before:
            signal.signal(number, handle)
        yield
        if stop.asked and trainer.state.global_step < trainer.state.max_steps:
            raise KeyboardInterrupt
    finally:
        trainer.remove_callback(stop)
        for number, handler in before.items():
            signal.signal(number, handler)
