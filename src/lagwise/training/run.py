"""Training a recipe into a run folder, and resuming it."""

from __future__ import annotations

import json
import shutil
import sys
from contextlib import AbstractContextManager, nullcontext
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

from accelerate import PartialState
from transformers import TrainingArguments

from lagwise.data.tokenizers import tokenizer_folder
from lagwise.data.tokens import copy_tokenizer
from lagwise.files import (
    RECIPE_FILE,
    RUN_FILE,
    TOKENIZER,
    check_unused,
    is_unused,
    locked,
    read_json,
    saved_whole,
    write_json,
    write_whole,
)
from lagwise.models.conversion import CONVERSION_FILE
from lagwise.models.loading import load_model_weights, quiet
from lagwise.tables import shown
from lagwise.tasks import Task, TaskData
from lagwise.training.carrying import check_carried
from lagwise.training.checkpoints import newest_whole_checkpoint, step_of
from lagwise.training.compilation import check_compiled
from lagwise.training.finishing import finish, finish_with_first
from lagwise.training.first_answer import fit_first_answer, needs_first_answer, read_first_answer, require_linear
from lagwise.training.folder import METRICS_FILE, data_unchanged, load_run, logged_lines, make_task
from lagwise.training.hardware import check_precision, describe
from lagwise.training.interruption import saved_when_stopped
from lagwise.training.kept_answer import keep_first_answer, needs_no_training
from lagwise.training.minutes import planned_for_minutes
from lagwise.training.model import check_model, own_fields, with_start
from lagwise.training.processes import (
    check_restarts,
    check_shared,
    check_sharing,
    micro_batch_size,
    of_first_process,
    processes,
)
from lagwise.training.recipe import MAX_STEPS, Recipe, rooted
from lagwise.training.setup import check_reports, make_trainer, training_arguments
from lagwise.training.sharding import check_shards, load_weights
from lagwise.training.streaming import check_streaming


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
    out, asked = Path(out), _plain(recipe)
    check_unused(out)
    recipe = with_start(rooted(recipe))
    data = _opened(check_recipe(recipe), progress)
    recipe, named = _resolved(recipe, data), recipe
    if recipe.task != named.task:
        data = _opened(make_task(recipe), progress=False)
    if recipe.training.minutes is not None and recipe.training.first_answer != "only":
        recipe = planned_for_minutes(recipe, data, progress)
    arguments, kind, state = training_arguments(recipe, out), recipe.training.first_answer, PartialState()
    # The key is taken before the Trainer makes the run's folder, which may lie in that of the data.
    identity = {"data": data.task.key() if state.is_main_process else "", "processes": arguments.world_size}
    trainer = None if kind == "only" else make_trainer(recipe, data, arguments, progress)
    state.wait_for_everyone()  # all processes check the folder before any writes to it
    with _sole_trainer(out, arguments):
        if state.is_main_process:
            check_unused(out)  # another process may have trained there in the meantime
            if trainer is not None:
                identity["parameters"] = _size(trainer.model_wrapped)
            _begin(recipe, out, {**identity, "asked": asked, **describe()})
            try:
                _fit_first(recipe, data, out, progress)
            except ValueError:  # the recipe and the data do not fit, so there is nothing to resume
                (out / RECIPE_FILE).unlink()
                raise
        if trainer is None or needs_no_training(out, kind):
            return finish_with_first(recipe, data, out, progress)
        with quiet(), saved_when_stopped(trainer):
            trainer.train()
        return finish(trainer, recipe, data, out, progress)


def resume(out: Path | str, *, progress: bool = True) -> Path:
    """Resume a run from its newest complete checkpoint, or from the start if it had none yet.

    It continues exactly: with the same weights as if it had never stopped. (A stop by Ctrl-C adds a line to the log, at
    its step.) A finished run is left unchanged.

    Raises:
        FileNotFoundError: If ``out`` is not a run, or lacks a file.
        ValueError: If no checkpoint in it is complete, or its data have changed.
    """
    out = Path(out)
    if not (out / RECIPE_FILE).is_file():
        began = out.is_dir() and is_unused(out, RUN_FILE, TOKENIZER)
        why = ", and nothing else: its training was stopped before it saved anything, so start it anew" if began else ""
        raise FileNotFoundError(f"{str(out)!r} is not a run to resume: it has no {RECIPE_FILE}{why}")
    if not (out / RUN_FILE).is_file():
        raise FileNotFoundError(f"{str(out)!r} cannot be resumed: it has no {RUN_FILE}, which identifies its data")
    if (out / CONVERSION_FILE).is_file():
        raise ValueError(f"{str(out)!r} is a conversion, not a run to resume; resume the run that it was made of")
    recipe = load_run(out)
    arguments = training_arguments(recipe, out)
    with _sole_trainer(out, arguments):
        if (out / "config.json").is_file():  # written at the end of a training
            return out
        checkpoint = newest_whole_checkpoint(out)
        if not data_unchanged(out, recipe):
            raise ValueError(
                f"the data of {str(out)!r} ({recipe.data.source}) have changed since it began; start a new run"
            )
        data = _opened(make_task(recipe), progress)
        kind = recipe.training.first_answer
        if arguments.process_index == 0 and read_first_answer(out) is None:
            _fit_first(recipe, data, out, progress)
        if kind == "only" or needs_no_training(out, kind):
            return finish_with_first(recipe, data, out, progress)
        if checkpoint:  # the run that it started from may no longer exist
            recipe = replace(recipe, model=own_fields(recipe))
        trainer = make_trainer(recipe, data, arguments, progress)
        checkpoint = newest_whole_checkpoint(
            out, trainer.model, trainer.optimizer, trainer.average, trainer.carried, trainer.streamed
        )
        if checkpoint is not None and trainer.best.has_stopped(checkpoint):
            if recipe.training.shard:
                load_weights(trainer.model_wrapped, checkpoint)
            else:
                load_model_weights(trainer.model, checkpoint)
            return finish(trainer, recipe, data, out, progress)
        if trainer.is_world_process_zero():
            _rewind_metrics(out, 0 if checkpoint is None else step_of(checkpoint))
        with quiet(), saved_when_stopped(trainer):
            trainer.train(resume_from_checkpoint=None if checkpoint is None else str(checkpoint))
        return finish(trainer, recipe, data, out, progress)


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
        usual = _plain(Recipe())  # of options that the version that began the run did not have
        _check_same(out, begun | {name: usual[name] | begun[name] for name in ("data", "training")}, _plain(recipe))
    return resume(out, progress=progress)


def _begin(recipe: Recipe, out: Path, identity: dict[str, Any]) -> None:
    """Write the recipe and the identity of a run, which make ``out`` a run that can be resumed."""
    shutil.rmtree(out / TOKENIZER, ignore_errors=True)
    with saved_whole(out, "the recipe", last=RECIPE_FILE) as partial:
        write_json(partial / RUN_FILE, identity)
        if folder := tokenizer_folder(recipe.data.tokenizer):  # it may no longer exist when the run is used
            copy_tokenizer(folder, partial / TOKENIZER)
        (partial / RECIPE_FILE).write_text(recipe.to_yaml(), encoding="utf-8")


def _fit_first(recipe: Recipe, data: TaskData, out: Path, progress: bool) -> None:
    """Fit the first answer and keep it in the run's folder, if the recipe asks for one."""
    if not needs_first_answer(recipe, data.task):
        return
    kind, first = recipe.training.first_answer, fit_first_answer(data, recipe.training.seed)
    if kind == "only":
        write_json(out / RUN_FILE, {**read_json(out / RUN_FILE), "parameters": _size(first.model)})
    keep_first_answer(first, data, out, kind, progress=progress)


def _size(model: Any) -> int:
    """Count a model's parameters."""
    return sum(each.numel() for each in model.parameters())


def _check_same(out: Path, begun: Any, asked: Any, key: str = "") -> None:
    """ValueError that names the first setting that differs from those with which a run was begun."""
    if isinstance(begun, dict) and isinstance(asked, dict):
        for name in {**begun, **asked}:
            _check_same(out, begun.get(name), asked.get(name), f"{key}.{name}" if key else name)
    elif begun != asked and key != "description":
        raise ValueError(
            f"the run in {str(out)!r} was begun with {key} {shown(begun)}, not {shown(asked)}: start it again with the "
            "settings of its first start, or choose another `out`"
        )


def _plain(recipe: Recipe) -> dict[str, Any]:
    """Convert a recipe to JSON values, without the fields of other models."""
    return {name: value for name, value in json.loads(json.dumps(asdict(recipe))).items() if name != "words"}


def _sole_trainer(out: Path, arguments: TrainingArguments) -> AbstractContextManager[None]:
    """Lock a run's folder, in the first process for all."""
    return locked(out, "training") if arguments.process_index == 0 else nullcontext()


def check_recipe(recipe: Recipe) -> Task:
    """Check everything that needs no data, and return the recipe's task. A ValueError says what is wrong.

    >>> from lagwise.training import load_recipe
    >>> type(check_recipe(load_recipe("tnn-lm"))).__name__
    'LanguageModelling'
    """
    micro_batch_size(recipe)
    check_shards(recipe.training)
    check_compiled(recipe.training)
    check_reports(recipe.training.report_to)
    check_precision(recipe.training)
    check_sharing()
    check_restarts()
    task, kind = make_task(recipe), recipe.training.first_answer
    check_streaming(recipe.data, recipe.training)
    check_carried(task, recipe.training)
    if needs_first_answer(recipe, task):
        require_linear(task)
    if kind != "only":
        check_shared(task, recipe.training.sequence_parallel)
        check_model(recipe, task)
    return task


def _opened(task: Task, progress: bool) -> TaskData:
    """Read the data, the first process before the others, and print notes about them."""
    state = processes()
    with state.main_process_first():
        data = task.open(progress=progress and state.is_main_process)
    if progress and state.is_main_process:
        for note in data.notes():
            print(note, file=sys.stderr)
    return data


def _resolved(recipe: Recipe, data: TaskData) -> Recipe:
    """Fill in the values of a recipe that task and data determine: its source, its task's options, and the number of
    steps."""
    options = recipe.training
    if options.epochs is not None:
        epoch = data.sizes(options.batch_size).steps_per_epoch
        if epoch is None:
            raise ValueError("`epochs` does not apply to data that are generated without end; give `steps`")
        steps = max(1, round(options.epochs * epoch), options.least_steps)
        if steps > MAX_STEPS:
            raise ValueError(f"`epochs` {options.epochs:g} are {steps:.1e} steps, of at most {MAX_STEPS:,}")
        evaluate_every = min(options.evaluate_every, -(-steps // 6))  # to have some to choose the best from
        options = replace(options, steps=steps, evaluate_every=evaluate_every)
    if options.minutes is None:  # or the steps are not known yet
        options = replace(options, warmup_steps=min(options.warmup_steps, options.steps // 10))
    return replace(recipe, task={**recipe.task, **data.resolved()}, data=data.task.data, training=options)


def _rewind_metrics(out: Path, step: int) -> None:
    """Drop the summary and the lines logged after a checkpoint's step: training writes them again."""
    path = out / METRICS_FILE
    if not path.is_file():  # stopped before the first line
        return
    kept = [line for line in logged_lines(path) if line["step"] <= step and "train_loss" not in line]
    write_whole(path, "".join(json.dumps(line) + "\n" for line in kept))
