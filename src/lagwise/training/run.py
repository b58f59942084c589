"""Training a recipe into a run folder, and resuming it."""

from __future__ import annotations

import sys
import warnings
from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import replace
from pathlib import Path
from typing import Any

from accelerate import PartialState

from lagwise.files import (
    RECIPE_FILE,
    RUN_FILE,
    check_unused,
    locked,
    read_json,
    remove_partial,
    saved_whole,
    write_json,
)
from lagwise.models.loading import load_model_weights, quiet
from lagwise.tasks import Task, TaskData
from lagwise.tasks.labelled import constant_note
from lagwise.training.first_answer import (
    FILE,
    choose_model,
    fit_first_answer,
    is_perfect,
    read_first_answer,
    save_first_answer,
    take_first,
)
from lagwise.training.folder import (
    begin_run,
    check_begun,
    check_resumable,
    data_unchanged,
    load_run,
    make_task,
    newest_whole_checkpoint,
    read_metrics,
    rewind_metrics,
    step_of,
)
from lagwise.training.machine import describe, of_first_process, processes
from lagwise.training.model import own_fields, rooted, with_start
from lagwise.training.recipe import Recipe
from lagwise.training.setup import make_trainer, needs_first_answer, open_data, planned
from lagwise.training.trainer import BEST, LagwiseTrainer, saved_when_stopped


def train(recipe: Recipe, out: Path | str, *, progress: bool = True) -> Path:
    """Train a recipe, and write model, tokenizer, resolved recipe, metrics and checkpoints to ``out``.

    Data, lengths, names and the folder are checked before the first step. Under ``torchrun`` every process calls this
    function, and they share the batch.

    Args:
        recipe: What to train.
        out: The run folder.
        progress: Whether to show a progress bar.

    Returns:
        The run folder.

    Raises:
        FileExistsError: If ``out`` already holds a run.
        ValueError: If the recipe, the data and this machine do not fit together.
    """
    out, requested = Path(out), recipe.as_json()
    check_unused(out)
    recipe, data = planned(with_start(rooted(recipe)), progress)
    state = processes()
    # The key is taken before the Trainer makes the run's folder, which may lie in that of the data.
    about: dict[str, Any] = {"data": data.task.key() if state.is_main_process else "", "processes": state.num_processes}
    trainer = None if recipe.training.first_answer == "only" else make_trainer(recipe, data, out, progress)
    state.wait_for_everyone()  # all processes check the folder before any writes to it
    with _sole_trainer(out):
        if state.is_main_process:
            check_unused(out)  # another process may have trained there in the meantime
            if trainer is not None:
                model: Any = trainer.model_wrapped
                about["parameters"] = model.num_parameters()
            begin_run(recipe, out, {**about, "asked": requested, **describe()})
            try:
                _fit_first(recipe, data, out, progress)
            except ValueError:  # the recipe and the data do not fit, so there is nothing to resume
                (out / RECIPE_FILE).unlink()
                raise
        return _complete(trainer, recipe, data, out, progress)


def resume(out: Path | str, *, progress: bool = True) -> Path:
    """Resume a run from its newest complete checkpoint, or from the start if it had none yet.

    It continues exactly: with the same weights as if it had never stopped. (A stop by Ctrl-C adds a line to the log, at
    its step.) A finished run is left unchanged.

    Raises:
        FileNotFoundError: If ``out`` is not a run, or lacks a file.
        ValueError: If no checkpoint in it is complete, or its data have changed.
    """
    out = Path(out)
    check_resumable(out)
    recipe = load_run(out)
    with _sole_trainer(out):
        if (out / "config.json").is_file():  # written at the end of a training
            return out
        checkpoint = newest_whole_checkpoint(out)
        if not data_unchanged(out, recipe):
            raise ValueError(
                f"the data of {str(out)!r} ({recipe.data.source}) have changed since it began; start a new run"
            )
        data = open_data(make_task(recipe), progress)
        if processes().is_main_process and read_first_answer(out) is None:
            _fit_first(recipe, data, out, progress)
        if checkpoint:  # the run that it started from may no longer exist
            recipe = replace(recipe, model=own_fields(recipe))
        trainer = None if recipe.training.first_answer == "only" else make_trainer(recipe, data, out, progress)
        return _complete(trainer, recipe, data, out, progress, checkpoint)


def train_or_resume(recipe: Recipe, out: Path | str, *, progress: bool = True) -> Path:
    """Train a recipe into ``out``, or resume the run that the same call has begun there: one call for all starts of a
    program that may be stopped at any time. A finished run is left unchanged.

    Raises:
        ValueError: If the run in ``out`` was begun with another recipe; otherwise as `train` and `resume`.
    """
    out = Path(out)
    processes()
    if not of_first_process((out / RECIPE_FILE).is_file()):  # which writes the file, perhaps before others look
        return train(recipe, out, progress=progress)
    if (out / RUN_FILE).is_file() and (begun := read_json(out / RUN_FILE).get("asked")):  # not in runs of 0.2
        usual = Recipe().as_json()  # of options that the version that began the run did not have; others are gone
        own = {name: {**usual[name], **begun[name]} for name in ("data", "training")}
        check_begun(out, begun | {name: {key: own[name][key] for key in usual[name]} for name in own}, recipe.as_json())
    return resume(out, progress=progress)


def _fit_first(recipe: Recipe, data: TaskData, out: Path, progress: bool) -> None:
    """Fit the first answer and keep it in the run's folder, if the recipe asks for one."""
    if not needs_first_answer(recipe, data.task):
        return
    kind = recipe.training.first_answer
    model, about, held_out = fit_first_answer(data, recipe.training.seed)
    if kind == "only":
        write_json(out / RUN_FILE, {**read_json(out / RUN_FILE), "parameters": model.num_parameters()})
    enough = kind == "compare" and is_perfect(about)
    save_first_answer(model, about, held_out, data, out, alone=kind == "only" or enough, progress=progress)
    if enough and progress:
        print(
            "kept the first answer: no trained model can be better on these rows, so none is trained (with "
            "`first_answer` none, one is)",
            file=sys.stderr,
        )


def _complete(
    trainer: LagwiseTrainer | None,
    recipe: Recipe,
    data: TaskData,
    out: Path,
    progress: bool,
    checkpoint: Path | None = None,
) -> Path:
    """Train to the end, from a checkpoint if there is one, and keep the final model."""
    compared = recipe.training.first_answer == "compare" and PartialState().is_main_process
    about = read_first_answer(out) if compared else None
    if trainer is None or of_first_process(about is not None and is_perfect(about)):
        trainer = None
    elif checkpoint is not None and trainer.best.has_stopped(checkpoint):
        trainer._load_from_checkpoint(str(checkpoint))
    else:
        if trainer.is_world_process_zero():
            rewind_metrics(out, 0 if checkpoint is None else step_of(checkpoint))
        with quiet(), saved_when_stopped(trainer):
            trainer.train(resume_from_checkpoint=None if checkpoint is None else str(checkpoint))
    return finish(trainer, recipe, data, out, progress)


def finish(trainer: LagwiseTrainer | None, recipe: Recipe, data: TaskData, out: Path, progress: bool) -> Path:
    """Write the final model to the top of the run folder, config.json last: it marks the folder as a model. Without a
    trainer, it is the first answer. Print a line if one answer for all held-out rows is as good."""
    if PartialState().is_main_process:
        with quiet(), saved_whole(out, "the model", last="config.json") as partial:
            if trainer is None:
                take_first(out, partial)
            else:
                _save_trained(trainer, recipe, data, out, partial, progress)
        if trainer is None:
            write_json(out / FILE, {**read_json(out / FILE), "kept": True})
        else:
            trainer.best.remove()
            remove_partial(out)
        ending = outcome(out, recipe, data.task, read_metrics(out)) if progress else None
        constant, headline = data.constant_scores(), data.headline.name
        if ending and (note := constant_note(ending[1], constant, headline, "held-out rows")):
            print(note, file=sys.stderr)
    PartialState().wait_for_everyone()
    return out


def _save_trained(
    trainer: LagwiseTrainer, recipe: Recipe, data: TaskData, out: Path, partial: Path, progress: bool
) -> None:
    """Save the trained model, the best or last one, or what a comparison with the first answer chooses."""
    model: Any = trainer.accelerator.unwrap_model(trainer.model)
    model.split_sequences(None)
    model.save_pretrained(partial)
    if trainer.best.keep and not trainer.best.take(partial):
        warnings.warn(f"{str(out / BEST)!r} is missing: the run ends with its last model", stacklevel=2)
    if data.calibrates or read_first_answer(out) is not None:
        load_model_weights(model, partial)
        compare = recipe.training.first_answer == "compare"
        chosen = choose_model(model, trainer, data, out, compare=compare, progress=progress)
        if chosen is None:
            take_first(out, partial)
        elif chosen is not model:
            chosen.save_pretrained(partial)
        elif data.calibrates:
            model.config.save_pretrained(partial)
    data.save_preprocessing(partial, model.length_limit)


def outcome(
    run: Path, recipe: Recipe, task: Task, metrics: Sequence[Mapping[str, float]]
) -> tuple[str, dict[str, float]] | None:
    """Say which model a finished run ends with, and return its scores on validation data by name; None if the log has
    none."""
    about = read_first_answer(run) or {}
    if about.get("kept"):
        return "the first answer", about["scores"]
    if "share" in about:
        return f"the first answer and the trained layers (a share of {about['share']:.2f})", about["trained"]
    headline = task.logged_headline(metrics)
    scores = {int(line["step"]): line[name] for line in metrics if (name := f"eval_{headline.name}") in line}
    if not scores:
        return None
    best = max if headline.greater_is_better else min
    step = [*scores][-1] if recipe.training.select == "last" else best(scores, key=lambda each: scores[each])
    which = "the last" if recipe.training.select == "last" else f"the best of {max(int(m['step']) for m in metrics):,}"
    logged = [item for line in metrics if line["step"] == step for item in line.items()]
    values = {name.removeprefix("eval_"): value for name, value in logged if name.startswith("eval_")}
    return f"the model of step {step:,}, {which}", values


def _sole_trainer(out: Path) -> AbstractContextManager[None]:
    """Lock a run's folder, in the first process for all."""
    return locked(out, "training") if processes().is_main_process else nullcontext()
