"""Keep the best model of a training by its validation metric, and stop when the metric no longer improves."""

from __future__ import annotations

import json
import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from transformers import TrainerCallback

from lagwise.files import saved_whole
from lagwise.models.loading import quiet
from lagwise.models.sharded import is_sharded, whole_state

BEST = "best"


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
