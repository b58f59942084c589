"""The Trainer of transformers, with checkpoints that are whole or absent, and a log that a person can read."""

from __future__ import annotations

import json
import math
import os
import shutil
import time
from pathlib import Path
from typing import Any

import numpy as np
from torch import nn
from transformers import EvalPrediction, Trainer, TrainerCallback
from transformers.trainer_callback import PrinterCallback

from lagwise.files import PARTIAL, first_line
from lagwise.progress import progress_bar
from lagwise.training.checkpoints import checkpoints

METRICS_FILE = "metrics.jsonl"


class LagwiseTrainer(Trainer):
    """Trainer whose checkpoints appear under their name only when complete, and whose evaluation speaks bits per byte,
    or of a task without text, the share of sequences whose last token is foretold.

    valid_bytes_per_token: text bytes behind one token of the validation set; None for a task.
    """

    def __init__(self, *args: Any, valid_bytes_per_token: float | None, keep_checkpoints: int, **kwargs: Any):
        super().__init__(*args, compute_metrics=None if valid_bytes_per_token else _accuracy, **kwargs)
        self.valid_bytes_per_token = valid_bytes_per_token
        self.keep_checkpoints = keep_checkpoints
        self._saving = False
        self.remove_callback(PrinterCallback)

    def log(self, logs: dict[str, float], *args: Any, **kwargs: Any) -> None:
        for name in ("loss", "eval_loss"):
            if name in logs and not math.isfinite(logs[name]):
                raise FloatingPointError(
                    f"{name} is {logs[name]} at step {self.state.global_step}: training has diverged. Try a smaller "
                    "training.learning_rate or training.precision=float32; saved checkpoints are intact"
                )
        if "eval_loss" in logs and self.valid_bytes_per_token:
            logs["eval_bits_per_byte"] = logs["eval_loss"] / math.log(2) / self.valid_bytes_per_token
        if "train_loss" in logs:
            logs["train_loss"] = _mean_loss(self.state.log_history)  # the Trainer's leaves out earlier processes
        super().log(logs, *args, **kwargs)
        if self.is_world_process_zero():
            with open(Path(str(self.args.output_dir), METRICS_FILE), "a") as f:
                f.write(json.dumps({"step": self.state.global_step, **logs}) + "\n")

    def prediction_step(self, *args: Any, **kwargs: Any) -> tuple[Any, Any, Any]:
        """Of whole logits only the token foretold for the end of each row is kept, and of labels the last."""
        loss, logits, labels = super().prediction_step(*args, **kwargs)
        if logits is None or labels is None:
            return loss, None, None
        return loss, logits[:, -2].argmax(dim=-1), labels[:, -1]

    def _get_output_dir(self, trial: Any) -> str:
        run = super()._get_output_dir(trial)
        return os.path.join(run, PARTIAL) if self._saving else run

    def _issue_warnings_after_load(self, load_result: Any) -> None:
        """Tied weights are saved once; that their second name is missing is no news."""
        tied = set(getattr(self.model, "_tied_weights_keys", None) or ())
        if not load_result.unexpected_keys and set(load_result.missing_keys) <= tied:
            model: Any = self.accelerator.unwrap_model(self.model)
            model.tie_weights()
        else:
            super()._issue_warnings_after_load(load_result)

    def _save_checkpoint(self, model: nn.Module, trial: Any) -> None:
        run = Path(super()._get_output_dir(trial))
        name = f"checkpoint-{self.state.global_step}"
        if self.args.should_save and not all(p.isfinite().all() for p in model.parameters()):
            raise FloatingPointError(
                f"a weight is not finite at step {self.state.global_step}: the earlier checkpoints are kept as they are"
            )
        self._saving = True
        try:
            super()._save_checkpoint(model, trial)
        except Exception as error:  # on a full disk each of the libraries that write raises a type of its own
            shutil.rmtree(run / PARTIAL, ignore_errors=True)
            raise OSError(
                f"cannot save {name} in {str(run)!r} ({first_line(error)}); earlier checkpoints are whole: free space, "
                f"then go on with 'lagwise train --resume {run}'"
            ) from error
        finally:
            self._saving = False
        self.accelerator.wait_for_everyone()
        if self.args.should_save:
            shutil.rmtree(run / name, ignore_errors=True)
            os.replace(run / PARTIAL / name, run / name)
            for old in checkpoints(run)[: -self.keep_checkpoints]:
                shutil.rmtree(old)
        self.accelerator.wait_for_everyone()


class Progress(TrainerCallback):
    """One bar for the whole training: loss, validation bits per byte or accuracy, and tokens per second."""

    def __init__(self, tokens_per_step: float, show: bool):
        self.tokens_per_step, self.show = tokens_per_step, show
        self.shown: dict[str, str] = {}

    def on_train_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        self.first, self.started = state.global_step, time.monotonic()
        self.bar = progress_bar(
            desc="training", total=state.max_steps, initial=state.global_step, unit="step", show=self.show
        )

    def on_step_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        self.bar.update(state.global_step - self.bar.n)
        if control.should_save:
            control.should_log = True  # the losses of a resumed run are then averaged over the same steps

    def on_log(self, args: Any, state: Any, control: Any, logs: dict[str, float] | None = None, **kwargs: Any) -> None:
        logs = logs or {}
        if "loss" in logs:
            self.shown["loss (nats)"] = f"{logs['loss']:.3f}"
            speed = (state.global_step - self.first) * self.tokens_per_step / (time.monotonic() - self.started)
            self.shown["tokens/s"] = f"{speed:,.0f}"
        if "eval_bits_per_byte" in logs:
            self.shown["valid bits/byte"] = f"{logs['eval_bits_per_byte']:.3f}"
        if "eval_accuracy" in logs:
            self.shown["valid accuracy"] = f"{logs['eval_accuracy']:.3f}"
        self.bar.set_postfix(self.shown, refresh=False)

    def on_train_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        self.bar.close()


def _mean_loss(history: list[dict[str, float]]) -> float:
    """Mean training loss of all steps, from lines that each hold the mean since the line before."""
    total, step = 0.0, 0.0
    for line in history:
        if "loss" in line:
            total, step = total + line["loss"] * (line["step"] - step), line["step"]
    return total / max(step, 1)


def _accuracy(outputs: EvalPrediction) -> dict[str, float]:
    return {"accuracy": float(np.mean(outputs.predictions == outputs.label_ids))}


def parameter_groups(model: nn.Module, weight_decay: float) -> list[dict[str, Any]]:
    """AdamW groups: matrices and taps decay; biases, norms, embeddings and what a module names ``undecayed`` do not.

    A module names them in its class, because a mark on a parameter is lost when the model is copied or loaded.
    """
    trained = [p for p in model.parameters() if p.requires_grad]
    spared = {id(getattr(m, name)) for m in model.modules() for name in getattr(m, "undecayed", ())}
    spared |= {id(m.weight) for m in model.modules() if isinstance(m, nn.Embedding)}
    decayed = [p for p in trained if p.dim() >= 2 and id(p) not in spared]
    chosen = {id(p) for p in decayed}
    rest = [p for p in trained if id(p) not in chosen]
    groups = [{"params": decayed, "weight_decay": weight_decay}, {"params": rest, "weight_decay": 0.0}]
    return [group for group in groups if group["params"]]
