"""Train a recipe into a run folder."""

from __future__ import annotations

import json
import shutil
import sys
import warnings
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
    is_unused,
    locked,
    read_json,
    remove_partial,
    saved_whole,
    write_json,
    write_whole,
)
from lagwise.models.conversion import CONVERSION_FILE
from lagwise.models.loading import default_device, load_model_weights, quiet
from lagwise.models.memory import check_step_memory
from lagwise.models.sharded import is_sharded, whole_state
from lagwise.process import group_size
from lagwise.tables import shown
from lagwise.tasks import Task, TaskData
from lagwise.training.averaging import AveragedWeights
from lagwise.training.best import BEST, BestModel
from lagwise.training.carrying import CarriedStates, check_carried
from lagwise.training.checkpoints import newest_whole_checkpoint, step_of
from lagwise.training.compilation import check_compiled, compile_model, could_be_graphs
from lagwise.training.first_answer import (
    FILE,
    fit_first_answer,
    needs_first_answer,
    read_first_answer,
    require_linear,
)
from lagwise.training.folder import (
    METRICS_FILE,
    TOKENIZER,
    data_unchanged,
    load_run,
    logged_lines,
    make_task,
)
from lagwise.training.hardware import bfloat16_is_fast, check_precision, check_tf32, describe, of_first_process
from lagwise.training.interruption import saved_when_stopped
from lagwise.training.kept_answer import keep_first_answer, kept_model, needs_no_training, take_first
from lagwise.training.launchers import check_restarts, check_sharing
from lagwise.training.model import build_model, check_model, config_for_data, with_start, without_start
from lagwise.training.new_folder import check_unused
from lagwise.training.optimizer import make_optimizer
from lagwise.training.pieces import SharedRows, Sharing, check_shared
from lagwise.training.recipe import MOST_STEPS, Recipe, TrainingOptions, rooted
from lagwise.training.reports import check_reports, reporters
from lagwise.training.sharding import check_shards, load_weights, shard
from lagwise.training.streaming import check_streaming, streamed_text
from lagwise.training.trainer import HostHint, LagwiseTrainer, Progress


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
    arguments, kind = _arguments(recipe, out), recipe.training.first_answer
    trainer = None if kind == "only" else _trainer(recipe, data, arguments, progress)
    state = PartialState()
    # The key is taken before the run's folder is made, which may lie in that of the data.
    identity = {"data": data.task.key() if state.is_main_process else "", "processes": arguments.world_size}
    state.wait_for_everyone()  # all processes check the folder before any writes to it
    with _sole_trainer(out, arguments):
        if state.is_main_process:
            check_unused(out)  # another process may have trained there in the meantime
            if trainer is not None:
                identity["parameters"] = _size(trainer.model_wrapped)
            _begin(recipe, out, {**identity, "asked": asked, **describe()})
            _fit_first(recipe, data, out, progress)
        if trainer is None or needs_no_training(out, kind):
            return _finish_with_first(out)
        with quiet(), saved_when_stopped(trainer):
            trainer.train()
        return _finish(trainer, data, out, kind, progress)


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
    arguments = _arguments(recipe, out)
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
            return _finish_with_first(out)
        trainer = _trainer(without_start(recipe) if checkpoint else recipe, data, arguments, progress)
        checkpoint = newest_whole_checkpoint(
            out, trainer.model, trainer.optimizer, trainer.average, trainer.carried, trainer.streamed
        )
        if checkpoint is not None and trainer.best.has_stopped(checkpoint):
            if recipe.training.shard:
                load_weights(trainer.model_wrapped, checkpoint)
            else:
                load_model_weights(trainer.model, checkpoint)
            return _finish(trainer, data, out, kind, progress)
        if trainer.is_world_process_zero():
            _rewind_metrics(out, 0 if checkpoint is None else step_of(checkpoint))
        with quiet(), saved_when_stopped(trainer):
            trainer.train(resume_from_checkpoint=None if checkpoint is None else str(checkpoint))
        return _finish(trainer, data, out, kind, progress)


def train_or_resume(recipe: Recipe, out: Path | str, *, progress: bool = True) -> Path:
    """Train a recipe into ``out``, or resume the run that the same call has begun there: one call for all starts of a
    program that may be stopped at any time. A finished run is left unchanged.

    Raises:
        ValueError: If the run in ``out`` was begun with another recipe; otherwise as `train` and `resume`.
    """
    out = Path(out)
    _processes()
    if not of_first_process((out / RECIPE_FILE).is_file()):  # which writes the file, perhaps before others look
        return train(recipe, out, progress=progress)
    if (out / RUN_FILE).is_file() and (begun := read_json(out / RUN_FILE).get("asked")):  # not in runs of 0.2
        usual = _plain(Recipe())  # of options that the version that began the run did not have
        _check_same(out, begun | {name: usual[name] | begun[name] for name in ("data", "training")}, _plain(recipe))
    return resume(out, progress=progress)


def _begin(recipe: Recipe, out: Path, identity: dict[str, Any]) -> None:
    """Write the recipe, which makes ``out`` a run that can be resumed, and what identifies the run."""
    shutil.rmtree(out / TOKENIZER, ignore_errors=True)
    with saved_whole(out, "the recipe", last=RECIPE_FILE) as partial:
        write_json(partial / RUN_FILE, identity)
        if folder := tokenizer_folder(recipe.data.tokenizer):  # it may no longer exist when the run is used
            copy_tokenizer(folder, partial / TOKENIZER)
        (partial / RECIPE_FILE).write_text(recipe.to_yaml(), encoding="utf-8")


def _fit_first(recipe: Recipe, data: TaskData, out: Path, progress: bool) -> None:
    """Fit the first answer and keep it in the run, if the recipe asks for one."""
    if not needs_first_answer(recipe, data.task):
        return
    kind, first = recipe.training.first_answer, fit_first_answer(data, recipe.training.seed)
    if kind == "only":
        write_json(out / RUN_FILE, {**read_json(out / RUN_FILE), "parameters": _size(first.model)})
    keep_first_answer(first, data, out, kind, progress=progress)


def _size(model: Any) -> int:
    """The number of a model's parameters."""
    return sum(each.numel() for each in model.parameters())


def _check_same(out: Path, begun: Any, asked: Any, key: str = "") -> None:
    """ValueError if a run was begun with other settings, naming the first that differs."""
    if isinstance(begun, dict) and isinstance(asked, dict):
        for name in {**begun, **asked}:
            _check_same(out, begun.get(name), asked.get(name), f"{key}.{name}" if key else name)
    elif begun != asked and key != "description":
        raise ValueError(
            f"the run in {str(out)!r} was begun with {key} {shown(begun)}, not {shown(asked)}: start it again with the "
            "settings of its first start, or choose another `out`"
        )


def _plain(recipe: Recipe) -> dict[str, Any]:
    """What a recipe trains, in values of JSON."""
    return {name: value for name, value in json.loads(json.dumps(asdict(recipe))).items() if name != "words"}


def _sole_trainer(out: Path, arguments: TrainingArguments) -> AbstractContextManager[None]:
    """The lock on a run, taken by the first process for all."""
    return locked(out, "training") if arguments.process_index == 0 else nullcontext()


def check_recipe(recipe: Recipe) -> Task:
    """The recipe's task, before its data are read, after all checks that need no data. A ValueError says what is
    wrong.

    >>> from lagwise.training import load_recipe
    >>> type(check_recipe(load_recipe("tnn-lm"))).__name__
    'LanguageModelling'
    """
    _check_batch(recipe)
    check_shards(recipe.training)
    check_compiled(recipe.training)
    check_reports(recipe.training.report_to)
    check_tf32(recipe.training.tf32)
    check_precision(recipe.training.precision)
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
    state = _processes()
    with state.main_process_first():
        data = task.open(progress=progress and state.is_main_process)
    if progress and state.is_main_process:
        for note in data.notes():
            print(note, file=sys.stderr)
    return data


def _processes() -> PartialState:
    """This process among those that train together. On a CPU each would take itself for the only one, unless it is said
    that it uses the CPU."""
    if group_size() > 1 and default_device().type == "cpu":
        return PartialState(cpu=True, backend="gloo")
    return PartialState()


def _resolved(recipe: Recipe, data: TaskData) -> Recipe:
    """The recipe with the values that task and data determine: its source, its task's options, and the number of
    steps."""
    options = recipe.training
    if options.epochs is not None:
        steps = max(1, round(options.epochs * data.steps_per_epoch(options.batch_size)), options.least_steps)
        if steps > MOST_STEPS:
            raise ValueError(f"training.epochs {options.epochs:g} are {steps:.1e} steps, of at most {MOST_STEPS:,}")
        evaluate_every = min(options.evaluate_every, -(-steps // 6))  # so that there are some to choose the best from
        options = replace(options, steps=steps, evaluate_every=evaluate_every)
    options = replace(options, warmup_steps=min(options.warmup_steps, options.steps // 10))
    return replace(recipe, task={**recipe.task, **data.resolved()}, data=data.task.data, training=options)


def _check_batch(recipe: Recipe) -> int:
    """The rows of a micro-batch of one process. ValueError if the batch cannot be divided this way."""
    options, world = recipe.training, group_size()
    groups, left = divmod(world, options.sequence_parallel)
    if left or not groups:
        raise ValueError(
            f"training.sequence_parallel must divide the number of processes, got {options.sequence_parallel} for "
            f"{world}: start 'torchrun --nproc-per-node {options.sequence_parallel} -m lagwise train ...'"
        )
    if options.batch_size % (groups * options.accumulate):
        raise ValueError(
            f"training.batch_size must be a multiple of processes"
            f"{' (groups of them)' if options.sequence_parallel > 1 else ''} times accumulate, got "
            f"{options.batch_size} for {groups} * {options.accumulate}"
        )
    return options.batch_size // (groups * options.accumulate)


def _arguments(recipe: Recipe, out: Path) -> TrainingArguments:
    options, micro_batch = recipe.training, _check_batch(recipe)
    world = group_size()
    valid_batch = micro_batch * recipe.data.length // (recipe.data.evaluate_length or recipe.data.length)
    _processes()
    bfloat16 = options.precision == "bfloat16"
    if options.precision == "auto":
        bfloat16 = of_first_process(bfloat16_is_fast())
    arguments = TrainingArguments(
        output_dir=str(out),
        max_steps=options.steps,
        per_device_train_batch_size=micro_batch,
        per_device_eval_batch_size=max(1, valid_batch),  # in the memory of a training batch
        gradient_accumulation_steps=options.accumulate,
        learning_rate=options.learning_rate,
        lr_scheduler_type=options.schedule,
        warmup_steps=options.warmup_steps,
        max_grad_norm=options.clip,
        dataloader_num_workers=options.workers,
        bf16=bfloat16,
        fp16=options.precision == "float16",
        tf32=options.tf32 or None,
        seed=options.seed,
        use_cpu=(on_cpu := default_device().type == "cpu"),
        ddp_backend="gloo" if world > 1 and on_cpu else None,
        ddp_find_unused_parameters=False,
        # the examples are already shuffled; a stream has no sampler
        train_sampling_strategy="random" if recipe.data.streaming else "sequential",
        ignore_data_skip=recipe.data.streaming,  # a stream goes on by itself
        logging_steps=options.log_every,
        logging_nan_inf_filter=False,
        eval_strategy="steps",
        eval_steps=options.evaluate_every,
        save_steps=options.save_every,
        report_to=reporters(options.report_to, out),
        disable_tqdm=True,
        remove_unused_columns=False,
    )
    _use_one_gpu(arguments)
    return arguments


def _use_one_gpu(arguments: TrainingArguments) -> None:
    """Let one process use one GPU: with several, the Trainer would copy the model to all of them at every step, and
    multiply the batch by their number."""
    if arguments.n_gpu > 1:
        warnings.warn(
            f"this process uses one of {arguments.n_gpu} GPUs; to train on all: torchrun --nproc-per-node "
            f"{arguments.n_gpu} -m lagwise train ...",
            stacklevel=2,
        )
        arguments._n_gpu = 1


def _trainer(recipe: Recipe, data: TaskData, arguments: TrainingArguments, progress: bool) -> LagwiseTrainer:
    options = recipe.training
    check_step_memory(
        data.task.model_class,
        config_for_data(recipe, data),
        arguments.per_device_train_batch_size,
        -(-data.longest_example() // options.sequence_parallel),
        checkpointing=options.gradient_checkpointing,
        float16=options.precision == "float16",
    )
    model: Any = build_model(recipe, data)
    if options.gradient_checkpointing:
        model.gradient_checkpointing_enable()
    out = Path(str(arguments.output_dir))
    average = AveragedWeights(model, options.average)
    metric = data.headline
    best = BestModel(out, metric.name, metric.greater_is_better, options.patience, options.select == "best")
    tokens_per_step = options.batch_size * data.tokens_per_example()
    streamed = streamed_text(recipe, data, arguments)
    training = _training_examples(data, options) if streamed is None else streamed.loader.stream
    validation: Any = data.validation_examples(options.evaluate_tokens)
    sharing = None
    if (count := options.sequence_parallel) > 1:
        sharing = Sharing(count, len(validation), arguments.per_device_eval_batch_size)
        if streamed is None:
            training = SharedRows(training, arguments.per_device_train_batch_size, count)
        validation = SharedRows(validation, arguments.per_device_eval_batch_size, count)
        model.split_sequences(sharing.group)
    if options.shard:
        shard(model)
    if options.compile:
        compile_model(model, options.compile)
    show = progress and arguments.process_index == 0
    callbacks: list[Any] = [average, best, Progress(data, tokens_per_step, show=show)]
    if show and could_be_graphs(options):
        callbacks.append(HostHint())
    return LagwiseTrainer(
        model=model,
        args=arguments,
        train_dataset=training,
        eval_dataset=validation,
        optimizers=(make_optimizer(model, options), None),
        callbacks=callbacks,
        processing_class=data.tokenizer,
        data=data,
        sharing=sharing,
        streamed=streamed,
        sharded=options.shard,
        compiled=options.compile,
        best=best,
        average=average,
        carried=CarriedStates(model, arguments.process_index) if options.carry_states > 1 else None,
        keep_checkpoints=options.keep_checkpoints,
    )


def _training_examples(data: TaskData, options: TrainingOptions) -> Any:
    size = (options.steps, options.batch_size, options.seed)
    if options.carry_states > 1:
        return data.carried_examples(*size, options.carry_states)
    return data.training_examples(*size)


def _finish(trainer: LagwiseTrainer, data: TaskData, out: Path, kind: str, progress: bool) -> Path:
    """Write the final model to the top of the run folder, config.json last: it marks the folder as a model."""
    model: Any = trainer.accelerator.unwrap_model(trainer.model)
    model.split_sequences(None)
    state = whole_state(model) if is_sharded(model) else None
    if trainer.is_world_process_zero():
        with quiet(), trainer.average.in_use(), saved_whole(out, "the model", last="config.json") as partial:
            model.save_pretrained(partial, state_dict=state)
            if trainer.best.keep and not trainer.best.take(partial):
                warnings.warn(f"{str(out / BEST)!r} is missing: the run ends with its last model", stacklevel=2)
            if data.calibrates or read_first_answer(out) is not None:
                if is_sharded(model):  # one process has only its part
                    model = data.task.model_class.from_pretrained(partial).to(model.device)
                else:
                    load_model_weights(model, partial)
                kept = kept_model(model, trainer, data, out, compare=kind == "compare", progress=progress)
                if kept is None:
                    take_first(out, partial)
                elif kept is not model:
                    kept.save_pretrained(partial)
                elif data.calibrates:
                    model.config.save_pretrained(partial)
            data.save_preprocessing(partial, model.length_limit)
        trainer.best.remove()
        remove_partial(out)
    trainer.accelerator.wait_for_everyone()
    return out


def _finish_with_first(out: Path) -> Path:
    """`_finish` for a run that trains nothing."""
    if PartialState().is_main_process:
        with saved_whole(out, "the model", last="config.json") as partial:
            take_first(out, partial)
        write_json(out / FILE, {**read_json(out / FILE), "kept": True})
    PartialState().wait_for_everyone()
    return out


def _rewind_metrics(out: Path, step: int) -> None:
    """Drop logged lines after the checkpoint, and the summary; training writes them again."""
    path = out / METRICS_FILE
    if not path.is_file():  # stopped before the first line
        return
    kept = [line for line in logged_lines(path) if line["step"] <= step and "train_loss" not in line]
    write_whole(path, "".join(json.dumps(line) + "\n" for line in kept))
