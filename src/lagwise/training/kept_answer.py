"""Which model a run ends with: its first answer, or the one that it has trained."""

from __future__ import annotations

import json
import shutil
import sys
from pathlib import Path
from typing import Any

from accelerate import PartialState
from torch.utils.data import DataLoader

from lagwise.files import read_json, write_whole
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
from lagwise.training.trainer import LagwiseTrainer


def keep_first_answer(first: FirstAnswer, data: TaskData, out: Path, kind: str, *, progress: bool) -> None:
    """Save a first answer, log its score at step 0, or all of them if no model will be trained, and print it."""
    save_first_answer(first, data, out)
    about, scores = first.about, first.about["scores"]
    line = {"step": 0, "first_answer": scores[data.headline.name], "seconds": about["seconds"]}
    if kind == "only" or is_perfect(about):
        line |= {f"eval_{name}": value for name, value in scores.items()}
    with open(out / METRICS_FILE, "a", encoding="utf-8") as file:
        file.write(json.dumps(line) + "\n")
    if progress:
        print(
            f"first answer ({about['features']} features): {data.headline.label} {line['first_answer']:.3f} of "
            f"{counted(about['rows'], 'held-out row')}, in {about['seconds']:.1f} seconds",
            file=sys.stderr,
        )
        if kind != "only" and is_perfect(about):
            print(
                "kept the first answer: no trained model can be better on these rows, so none is trained; "
                "training.first_answer=none trains one",
                file=sys.stderr,
            )


def needs_no_training(out: Path) -> bool:
    """Whether the run has a first answer that no trained model can be better than."""
    about = read_first_answer(out) if PartialState().is_main_process else None
    return of_first_process(about is not None and is_perfect(about))


def is_kept(model: Any, trainer: LagwiseTrainer, data: TaskData, out: Path, progress: bool) -> bool:
    """Whether the trained model is better than the first answer on the held-out rows, or there is no first answer; what
    is kept is noted and printed. The model's configuration is set by these rows (`TaskData.calibrated`)."""
    rows: Any = trainer.eval_dataset  # all of them: the Trainer's batches are those of one process
    size = trainer.args.per_device_eval_batch_size
    batches = DataLoader(rows, batch_size=size, collate_fn=data.collate_evaluation)
    logits, labels = held_out(data, model.eval(), batches)
    trained = data.calibrated(model, logits, labels)
    if read_first_answer(out) is None:
        return True
    kept = is_better(data, trained, held_out_of(out), labels)
    about = {**read_json(out / FILE), "trained": data.metrics(float("nan"), trained, labels), "kept": not kept}
    write_whole(out / FILE, json.dumps(about, indent=1) + "\n")
    if progress:
        print(choice_sentence(about, data.headline.label), file=sys.stderr)
    return kept


def take_first(out: Path, partial: Path) -> None:
    """Copy the first answer's model in the place of the one that is being saved."""
    shutil.rmtree(partial)
    shutil.copytree(out / FOLDER, partial, ignore=shutil.ignore_patterns("held_out*"))
