"""The end of a training: the model that the run is left with, and its scores on held-out rows."""

from __future__ import annotations

import sys
import warnings
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from accelerate import PartialState

from lagwise.files import read_json, remove_partial, saved_whole, write_json
from lagwise.models.loading import load_model_weights, quiet
from lagwise.models.sharded import is_sharded, whole_state
from lagwise.tasks import Task, TaskData
from lagwise.tasks.classification_results import constant_note
from lagwise.training.first_answer import FILE, joined_answer, kept_first_answer, read_first_answer
from lagwise.training.folder import final_model, read_metrics
from lagwise.training.kept_answer import kept_model, take_first
from lagwise.training.recipe import Recipe
from lagwise.training.trainer import BEST, LagwiseTrainer


def finish(trainer: LagwiseTrainer, recipe: Recipe, data: TaskData, out: Path, progress: bool) -> Path:
    """Write the final model to the top of the run folder, config.json last: it marks the folder as a model."""
    compare = recipe.training.first_answer == "compare"
    model: Any = trainer.accelerator.unwrap_model(trainer.model)
    model.split_sequences(None)
    state = whole_state(model) if is_sharded(model) else None
    if trainer.is_world_process_zero():
        with quiet(), saved_whole(out, "the model", last="config.json") as partial:
            model.save_pretrained(partial, state_dict=state)
            if trainer.best.keep and not trainer.best.take(partial):
                warnings.warn(f"{str(out / BEST)!r} is missing: the run ends with its last model", stacklevel=2)
            if data.calibrated or read_first_answer(out) is not None:
                if is_sharded(model):  # one process has only its part
                    model = data.task.head.from_pretrained(partial).to(model.device)
                else:
                    load_model_weights(model, partial)
                kept = kept_model(model, trainer, data, out, compare=compare, progress=progress)
                if kept is None:
                    take_first(out, partial)
                elif kept is not model:
                    kept.save_pretrained(partial)
                elif data.calibrated:
                    model.config.save_pretrained(partial)
            data.save_preprocessing(partial, model.length_limit)
        trainer.best.remove()
        remove_partial(out)
        _say_if_nothing_is_learned(recipe, data, out, progress)
    trainer.accelerator.wait_for_everyone()
    return out


def finish_with_first(recipe: Recipe, data: TaskData, out: Path, progress: bool) -> Path:
    """`finish` for a run that trains nothing."""
    if PartialState().is_main_process:
        with saved_whole(out, "the model", last="config.json") as partial:
            take_first(out, partial)
        write_json(out / FILE, {**read_json(out / FILE), "kept": True})
        _say_if_nothing_is_learned(recipe, data, out, progress)
    PartialState().wait_for_everyone()
    return out


def _say_if_nothing_is_learned(recipe: Recipe, data: TaskData, out: Path, progress: bool) -> None:
    """Print one line if one answer for all held-out rows is as good as the model that a run ends with."""
    found = outcome(out, recipe, data.task, read_metrics(out)) if progress else None
    if found is None:
        return
    if note := constant_note(found[1], data.constant_scores(), data.headline.name, "held-out rows"):
        print(note, file=sys.stderr)


def outcome(
    run: Path, recipe: Recipe, task: Task, metrics: Sequence[Mapping[str, float]]
) -> tuple[str, dict[str, float]] | None:
    """Say which model a run ends with, and return its scores by name; None if the log has no validation."""
    if answer := kept_first_answer(run):
        return "the first answer", answer["scores"]
    if answer := joined_answer(run):
        return "the first answer and the trained layers", answer["trained"]
    kept = final_model(recipe, task, metrics)
    if kept is None:
        return None
    last = max(int(line["step"]) for line in metrics)
    which = "the last" if recipe.training.select == "last" else f"the best of {last:,}"
    scores: dict[str, float] = {}
    for line in metrics:
        if line["step"] == kept[0]:
            scores |= {name.removeprefix("eval_"): value for name, value in line.items() if name.startswith("eval_")}
    return f"the model of step {kept[0]:,}, {which}", scores
