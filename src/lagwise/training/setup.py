"""What a training needs before its first step: checks of the recipe, its data, and the Trainer."""

from __future__ import annotations

import os
import sys
import warnings
from dataclasses import replace
from pathlib import Path
from typing import Any

from transformers import TrainingArguments
from transformers.integrations import get_available_reporting_integrations

from lagwise.models.loading import default_device
from lagwise.models.memory import check_step_memory
from lagwise.process import group_size
from lagwise.tables import shown
from lagwise.tasks import Task, TaskData
from lagwise.training.compilation import check_compiled, compile_model
from lagwise.training.first_answer import require_linear
from lagwise.training.folder import make_task
from lagwise.training.hardware import bfloat16_is_fast, check_precision
from lagwise.training.model import build_model, check_model, config_for_data
from lagwise.training.optimizer import make_optimizer
from lagwise.training.processes import (
    SharedRows,
    Sharing,
    check_restarts,
    check_shared,
    check_sharing,
    micro_batch_size,
    of_first_process,
    processes,
)
from lagwise.training.recipe import MAX_STEPS, Recipe
from lagwise.training.sharding import check_shards, shard
from lagwise.training.trainer import BestModel, LagwiseTrainer, Progress


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
    if needs_first_answer(recipe, task):
        require_linear(task)
    if kind != "only":
        check_shared(task, recipe.training.sequence_parallel)
        check_model(recipe, task)
    return task


def needs_first_answer(recipe: Recipe, task: Task) -> bool:
    """Whether a training begins with a first answer."""
    return recipe.training.first_answer != "none" or task.wide


def open_data(task: Task, progress: bool) -> TaskData:
    """Read the data, the first process before the others, and print notes about them."""
    state = processes()
    with state.main_process_first():
        data = task.open(progress=progress and state.is_main_process)
    if progress and state.is_main_process:
        for note in data.notes():
            print(note, file=sys.stderr)
    return data


def completed(recipe: Recipe, data: TaskData) -> tuple[Recipe, TaskData]:
    """Fill in the values of a recipe that task and data determine, its source, its task's options and the number of
    steps; and return the data of the completed task."""
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
    task = {**recipe.task, **data.resolved()}
    found = replace(recipe, task=task, data=data.task.data, training=options)
    return found, data if task == recipe.task else open_data(make_task(found), progress=False)


def training_arguments(recipe: Recipe, out: Path) -> TrainingArguments:
    options, micro_batch = recipe.training, micro_batch_size(recipe)
    world = group_size()
    valid_batch = micro_batch * recipe.data.length // (recipe.data.evaluate_length or recipe.data.length)
    processes()
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
        train_sampling_strategy="sequential",  # the examples are already shuffled
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
    """Restrict the process to one GPU: with several, the Trainer would copy the model to all of them at every step, and
    multiply the batch by their number."""
    if arguments.n_gpu > 1:
        warnings.warn(
            f"this process uses one of {arguments.n_gpu} GPUs; to train on all, start a process for each: torchrun "
            f"--nproc-per-node {arguments.n_gpu}",
            stacklevel=2,
        )
        arguments._n_gpu = 1


def make_trainer(recipe: Recipe, data: TaskData, arguments: TrainingArguments, progress: bool) -> LagwiseTrainer:
    options = recipe.training
    sizes = data.sizes(options.batch_size)
    check_step_memory(
        data.task.head,
        config_for_data(recipe, data),
        arguments.per_device_train_batch_size,
        -(-sizes.longest // options.sequence_parallel),
        checkpointing=options.gradient_checkpointing,
        float16=options.precision == "float16",
    )
    model: Any = build_model(recipe, data)
    if options.gradient_checkpointing:
        model.gradient_checkpointing_enable()
    out = Path(str(arguments.output_dir))
    metric = data.headline
    best = BestModel(out, metric.name, metric.greater_is_better, options.patience, options.select == "best")
    training: Any = data.training_examples(options.steps, options.batch_size, options.seed)
    validation: Any = data.validation_examples(options.evaluate_tokens)
    sharing = None
    if (count := options.sequence_parallel) > 1:
        sharing = Sharing(count, len(validation), arguments.per_device_eval_batch_size)
        training = SharedRows(training, arguments.per_device_train_batch_size, count)
        validation = SharedRows(validation, arguments.per_device_eval_batch_size, count)
        model.split_sequences(sharing.group)
    if options.shard:
        shard(model)
    if options.compile:
        compile_model(model, options.compile)
    show = progress and arguments.process_index == 0
    callbacks: list[Any] = [best, Progress(data, options.batch_size * sizes.tokens, sizes.unit, show=show)]
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
        options=options,
        best=best,
    )


def check_reports(names: str) -> list[str]:
    """Split the option ``report_to`` into names for the Trainer. ValueError for one that is unknown or not
    installed."""
    found = [name.strip() for name in names.split(",") if name.strip() not in ("", "none")]
    available = get_available_reporting_integrations()
    for name in found:
        if name not in available and name != "tensorboard":  # which every recipe names, whether it is there or not
            raise ValueError(
                f"`report_to` {shown(name)} is unknown, or its package is not installed; available: "
                f"{', '.join(['none', *available])}"
            )
    return [name for name in found if name in available]


def reporters(names: str, out: Path) -> list[str]:
    """Return the names of `check_reports`, and tell TensorBoard's callback where to write."""
    found = check_reports(names)
    if "tensorboard" in found:
        os.environ["TENSORBOARD_LOGGING_DIR"] = str(out / "tensorboard")
    return found
