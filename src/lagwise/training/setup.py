"""What the Trainer needs: its arguments, the model, the examples and the callbacks of a recipe."""

from __future__ import annotations

import warnings
from pathlib import Path
from typing import Any

from accelerate import PartialState
from transformers import TrainingArguments

from lagwise.models.loading import default_device
from lagwise.models.memory import check_step_memory
from lagwise.process import group_size
from lagwise.tasks import TaskData
from lagwise.training.averaging import AveragedWeights
from lagwise.training.best import BestModel
from lagwise.training.carrying import CarriedStates
from lagwise.training.compilation import compile_model, could_be_graphs
from lagwise.training.hardware import bfloat16_is_fast, of_first_process
from lagwise.training.model import build_model, config_for_data
from lagwise.training.optimizer import make_optimizer
from lagwise.training.pieces import SharedRows, Sharing
from lagwise.training.recipe import Recipe, TrainingOptions
from lagwise.training.reports import reporters
from lagwise.training.sharding import shard
from lagwise.training.streaming import streamed_text
from lagwise.training.trainer import HostHint, LagwiseTrainer, Progress


def processes() -> PartialState:
    """This process among those that train together. On a CPU each would take itself for the only one, unless it is said
    that it uses the CPU."""
    if group_size() > 1 and default_device().type == "cpu":
        return PartialState(cpu=True, backend="gloo")
    return PartialState()


def micro_batch_size(recipe: Recipe) -> int:
    """The rows of a micro-batch of one process. ValueError if the batch cannot be divided this way."""
    options, world = recipe.training, group_size()
    groups, left = divmod(world, options.sequence_parallel)
    if left or not groups:
        raise ValueError(
            f"`sequence_parallel` must divide the number of processes, got {options.sequence_parallel} for "
            f"{world}: start 'torchrun --nproc-per-node {options.sequence_parallel} -m lagwise train ...'"
        )
    if options.batch_size % (groups * options.accumulate):
        raise ValueError(
            f"`batch_size` must be a multiple of processes"
            f"{' (groups of them)' if options.sequence_parallel > 1 else ''} times accumulate, got "
            f"{options.batch_size} for {groups} * {options.accumulate}"
        )
    return options.batch_size // (groups * options.accumulate)


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


def make_trainer(recipe: Recipe, data: TaskData, arguments: TrainingArguments, progress: bool) -> LagwiseTrainer:
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
