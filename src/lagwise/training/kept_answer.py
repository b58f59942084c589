"""The choice of the model that a run ends with: its first answer, the trained model, or a mixture of both."""

from __future__ import annotations

import json
import shutil
import sys
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import torch
from accelerate import PartialState
from torch.utils.data import DataLoader

from lagwise.files import write_json
from lagwise.models.classification import joined
from lagwise.models.loading import load_model
from lagwise.tables import counted
from lagwise.tasks import TaskData
from lagwise.training.first_answer import (
    FILE,
    FOLDER,
    FirstAnswer,
    calibrated,
    choice_sentence,
    held_out,
    held_out_of,
    is_better,
    is_perfect,
    read_first_answer,
    save_first_answer,
)
from lagwise.training.folder import METRICS_FILE
from lagwise.training.processes import of_first_process
from lagwise.training.trainer import LagwiseTrainer

_PRIOR_SHARE = 0.3  # mean and standard deviation of the prior of the share (docs/log.md)
_MAX_SHARE = 1.5


def keep_first_answer(first: FirstAnswer, data: TaskData, out: Path, kind: str, *, progress: bool) -> None:
    """Save a first answer, log its score at step 0 (all scores if no model will be trained), and print it."""
    save_first_answer(first, data, out)
    about, scores = first.about, first.about["scores"]
    line = {"step": 0, "first_answer": scores[data.headline.name], "seconds": about["seconds"]}
    if kind == "only" or (kind == "compare" and is_perfect(about)):
        line |= {f"eval_{name}": value for name, value in scores.items()}
    with open(out / METRICS_FILE, "a", encoding="utf-8") as file:
        file.write(json.dumps(line) + "\n")
    if progress:
        print(
            f"first answer ({about['features']} features): {data.headline.label} {line['first_answer']:.3f} of "
            f"{counted(about['rows'], 'held-out row')}, in {about['seconds']:.1f} seconds",
            file=sys.stderr,
        )
        if kind == "compare" and is_perfect(about):
            print(
                "kept the first answer: no trained model can be better on these rows, so none is trained (with "
                "`first_answer` none, one is)",
                file=sys.stderr,
            )


def needs_no_training(out: Path, kind: str) -> bool:
    """Whether the run compares a trained model with a first answer that makes no mistake, so that none can be
    better."""
    about = read_first_answer(out) if kind == "compare" and PartialState().is_main_process else None
    return of_first_process(about is not None and is_perfect(about))


def kept_model(model: Any, trainer: LagwiseTrainer, data: TaskData, out: Path, *, compare: bool, progress: bool) -> Any:
    """Choose the model that a run ends with, record the choice in the run's folder, and print it.

    Returns the trained model in evaluation mode, joined with the first answer if the task asks for it (`Task.wide`),
    and calibrated on the held-out rows (`TaskData.calibrated`); or None for the first answer, if both are compared and
    the trained model is no better.
    """
    rows: Any = trainer.eval_dataset  # the rows of all processes: the Trainer's batches are those of one process
    size = trainer.args.per_device_eval_batch_size
    batches = DataLoader(rows, batch_size=size, collate_fn=partial(data.collate, training=False))
    logits, labels = held_out(data, model.eval(), batches)
    about = read_first_answer(out)
    if about is None:
        calibrated(data, model, logits, labels)
        return model
    first, before = load_model(out / FOLDER)[0], held_out_of(out)
    if data.task.wide:
        share = best_share(data, before, logits, labels)
        model, logits = joined(model, first, share), mixed(data, before, logits, share)
        about["share"] = round(share, 3)
    trained = calibrated(data, model, logits, labels)
    if data.task.wide:  # choose by the loss, like the mixing share
        losses = [loss_of(data, each, labels) for each in (before, logits)]
        about["losses"], better = [round(each, 4) for each in losses], losses[1] < losses[0]
    else:
        better = is_better(data, trained, calibrated(data, first, before, labels), labels)
    kept = compare and not better
    about |= {"trained": data.metrics(float("nan"), trained, labels), "kept": kept}
    write_json(out / FILE, about)
    if progress:
        print(choice_sentence(about, data.headline.label, compared=compare), file=sys.stderr)
    return None if kept else model


def take_first(out: Path, partial: Path) -> None:
    """Replace the model that is being saved by the first answer's."""
    shutil.rmtree(partial)
    shutil.copytree(out / FOLDER, partial, ignore=shutil.ignore_patterns("held_out*"))


def best_share(data: Any, first: np.ndarray, layers: np.ndarray, labels: np.ndarray) -> float:
    """Find the share of the layers in `mixed` with the highest posterior, for rows that neither model was fitted to.

    The prior is normal with mean and standard deviation 0.3, so that a few rows change the share little. For numbers,
    the noise has the variance of the first answer's errors.

    Shapes: the outputs of both models, first and layers, ``(rows, outputs)``; labels ``(rows,)`` or ``(rows, labels)``.
    """
    from scipy.optimize import minimize_scalar

    weight = float(len(labels))
    if data.label_names is None:
        weight /= 2 * max(loss_of(data, first, labels), 1e-12)

    def surprise(share: float) -> float:
        return weight * loss_of(data, mixed(data, first, layers, share), labels) + ((share / _PRIOR_SHARE - 1) ** 2) / 2

    return float(minimize_scalar(surprise, bounds=(0, _MAX_SHARE), method="bounded").x)


def mixed(data: Any, first: np.ndarray, layers: np.ndarray, share: float) -> np.ndarray:
    """Mix two models' outputs as `lagwise.models.classification.joined` does: ``first + share * layers``, or of numbers
    their weighted mean."""
    return (1 - share) * first + share * layers if data.label_names is None else first + share * layers


def loss_of(data: Any, logits: np.ndarray, labels: np.ndarray) -> float:
    """Compute the training loss of logits, a mean over rows."""
    return float(data.loss(SimpleNamespace(logits=torch.from_numpy(logits)), torch.from_numpy(labels)))
