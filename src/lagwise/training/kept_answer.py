"""Which model a run ends with: its first answer, or the one that it has trained."""

from __future__ import annotations

import json
import shutil
import sys
from pathlib import Path
from typing import Any

from accelerate import PartialState
from torch.utils.data import DataLoader

from lagwise.files import write_json
from lagwise.models.loading import load_model
from lagwise.models.wide import joined
from lagwise.tables import counted
from lagwise.tasks import TaskData
from lagwise.training.first_answer import (
    FILE,
    FOLDER,
    FirstAnswer,
    choice_sentence,
    held_out,
    held_out_of,
    is_better,
    is_perfect,
    read_first_answer,
    save_first_answer,
)
from lagwise.training.folder import METRICS_FILE
from lagwise.training.hardware import of_first_process
from lagwise.training.joining import best_share, loss_of, mixed
from lagwise.training.trainer import LagwiseTrainer


def keep_first_answer(first: FirstAnswer, data: TaskData, out: Path, kind: str, *, progress: bool) -> None:
    """Save a first answer, log its score at step 0, or all of them if no model will be trained, and print it."""
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
                "kept the first answer: no trained model can be better on these rows, so none is trained; "
                "`first_answer=none` trains one",
                file=sys.stderr,
            )


def needs_no_training(out: Path, kind: str) -> bool:
    """Whether the run has a first answer that no trained model can be better than, and compares them."""
    about = read_first_answer(out) if kind == "compare" and PartialState().is_main_process else None
    return of_first_process(about is not None and is_perfect(about))


def kept_model(model: Any, trainer: LagwiseTrainer, data: TaskData, out: Path, *, compare: bool, progress: bool) -> Any:
    """The model that a run ends with, in evaluation mode, and its configuration set by the held-out rows
    (`TaskData.calibrated`): the trained one, joined with the first answer where the task has it so (`Task.wide`); or
    None for the first answer, if they are compared and the other is no better. What is kept is noted and printed."""
    rows: Any = trainer.eval_dataset  # all of them: the Trainer's batches are those of one process
    size = trainer.args.per_device_eval_batch_size
    batches = DataLoader(rows, batch_size=size, collate_fn=data.collate_evaluation)
    logits, labels = held_out(data, model.eval(), batches)
    about = read_first_answer(out)
    if about is None:
        data.calibrated(model, logits, labels)
        return model
    first, before = load_model(out / FOLDER)[0], held_out_of(out)
    if data.task.wide:
        share = best_share(data, before, logits, labels)
        model, logits = joined(model, first, share), mixed(data, before, logits, share)
        about["share"] = round(share, 3)
    trained = data.calibrated(model, logits, labels)
    if data.task.wide:  # by the loss, as the share
        losses = [loss_of(data, each, labels) for each in (before, logits)]
        about["losses"], better = [round(each, 4) for each in losses], losses[1] < losses[0]
    else:
        better = is_better(data, trained, data.calibrated(first, before, labels), labels)
    kept = compare and not better
    about |= {"trained": data.metrics(float("nan"), trained, labels), "kept": kept}
    write_json(out / FILE, about)
    if progress:
        print(choice_sentence(about, data.headline.label, compared=compare), file=sys.stderr)
    return None if kept else model


def take_first(out: Path, partial: Path) -> None:
    """Copy the first answer's model in the place of the one that is being saved."""
    shutil.rmtree(partial)
    shutil.copytree(out / FOLDER, partial, ignore=shutil.ignore_patterns("held_out*"))
