"""Preparation of a training: checks of the recipe, its data, choices by these, by the machine and by the minutes, and
the Trainer."""

from __future__ import annotations

import importlib.util
import os
import sys
import time
import warnings
from collections.abc import Callable
from dataclasses import replace
from functools import cache, wraps
from pathlib import Path
from statistics import fmean
from tempfile import TemporaryDirectory
from typing import Any

import torch
from torch._functorch import config
from transformers import TrainerCallback, TrainingArguments
from transformers.integrations import get_available_reporting_integrations
from transformers.trainer_utils import SaveStrategy
from transformers.utils import is_torch_tf32_available

from lagwise.compiler import find_compiler, find_cxx, has_python_headers
from lagwise.data.options import AUTO
from lagwise.files import one_line
from lagwise.models.loading import default_device, quiet
from lagwise.process import group_size
from lagwise.tables import known, refuse
from lagwise.tasks import LanguageModelling, Task, TaskData
from lagwise.tasks.language_modelling import RunningText
from lagwise.training.first_answer import NO_FIRST_ANSWER
from lagwise.training.folder import make_task
from lagwise.training.machine import (
    bfloat16_is_fast,
    of_first_process,
    processes,
)
from lagwise.training.model import build_model, check_model
from lagwise.training.optimizer import make_optimizer
from lagwise.training.recipe import MAX_STEPS, REDUCE_OVERHEAD, Recipe, TrainingOptions
from lagwise.training.trainer import LagwiseTrainer

_MIN_GRAPH_STEPS = 5_000  # some minutes, of which compilation takes about one
_SLOW_STEPS, _TIMED_STEPS = 3, 9  # the first fill memory and caches
_EVALUATIONS = 5
_VOCABULARIES = {4096: 5_000_000, 1024: 1_600_000}  # of a BPE: bytes that a training reads at least, read as bytes
_MIN_TEXT_BYTES = 8_000_000


def check_recipe(recipe: Recipe) -> Task:
    """Check everything that needs no data, and return the recipe's task. A ValueError says what is wrong.

    >>> from lagwise.training import load_recipe
    >>> type(check_recipe(load_recipe("tnn-lm"))).__name__
    'LanguageModelling'
    """
    options, shared = recipe.training, recipe.training.sequence_parallel
    no_gpu = not torch.cuda.is_available()
    configured = os.environ.get("ACCELERATE_USE_PARALLELISM_CONFIG", "false").lower() == "true"
    sizes = {each: os.environ.get(f"PARALLELISM_CONFIG_{each.upper()}_SIZE", "1") for each in ("tp", "cp", "sp")}
    splits = [each for each, size in sizes.items() if configured and size != "1"]
    micro_batch_size(recipe)
    check_compiled(options)
    reporters(options.report_to)
    task = make_task(recipe)
    refuse(
        (
            options.precision == "float16" and no_gpu,
            "`precision=float16` needs an NVIDIA GPU, and none was found; leave it out, or take bfloat16",
        ),
        (
            options.tf32 and not is_torch_tf32_available(),
            "`tf32` needs an NVIDIA Ampere (or newer) GPU, and none was found; leave it out",
        ),
        (
            splits,
            "processes share the batch, but accelerate is to split sequences or weights between them; launch without "
            + " and ".join(f"--parallelism_config_{split}_size" for split in splits),
        ),
        (
            needs_first_answer(recipe, task) and task.linear_head is None,
            NO_FIRST_ANSWER.format(type(task).__name__),
        ),
        (
            shared > 1 and "sequence_parallel" not in task.supports,
            "`sequence_parallel` is for language modelling and masked language modelling, got task "
            f"{type(task).__name__}",
        ),
        (
            shared > min(task.lengths().values(), default=shared),
            f"`sequence_parallel` {shared} is more than `length`, {recipe.data.length} tokens",
        ),
    )
    if recipe.training.first_answer != "only":
        check_model(recipe, task)
    return task


def micro_batch_size(recipe: Recipe) -> int:
    """Divide the batch: the rows of one process's micro-batch. ValueError if it cannot be divided."""
    options, world = recipe.training, group_size()
    groups, left = divmod(world, options.sequence_parallel)
    rows, rest = divmod(options.batch_size, max(groups, 1) * options.accumulate)
    several = " (groups of them)" if options.sequence_parallel > 1 else ""
    refuse(
        (
            left or not groups,
            f"`sequence_parallel` must divide the number of processes, got {options.sequence_parallel} for "
            f"{world}; start {options.sequence_parallel} processes or a multiple, for example with torchrun",
        ),
        (
            rest,
            f"`batch_size` must be a multiple of processes{several} times `accumulate`, got {options.batch_size} for "
            f"{groups} * {options.accumulate}",
        ),
    )
    return rows


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
    """Fill in the values of a recipe that task and data determine: its task's options and the number of steps; and
    return the data of the completed task."""
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
    filled = replace(recipe, task=task, data=data.task.data, training=options)
    return filled, data if task == recipe.task else open_data(make_task(filled), progress=False)


def planned(recipe: Recipe, progress: bool) -> tuple[Recipe, TaskData]:
    """Open the data of a recipe, and fill in what they, this machine and its minutes determine.

    A language model whose tokenizer is `AUTO` reads bytes, or a BPE of a text of at least eight million bytes, with the
    most tokens that the training is long enough for (`_VOCABULARIES`): what is best at equal minutes on one thread
    (benchmarks/vocabularies.py). A short training sees too little of each token, and so does any of a short text.

    ValueError if the recipe, the data and this machine do not fit together, or the minutes are too few.
    """
    is_open = recipe.data.tokenizer == AUTO
    while True:
        recipe, data = completed(recipe, open_data(check_recipe(recipe), progress))
        options = recipe.training
        if options.minutes is not None and options.first_answer != "only":
            options = planned_for_minutes(recipe, data, progress)
            recipe = replace(recipe, training=options)
        if not (is_open and isinstance(data.task, LanguageModelling)):
            return recipe, data
        text: Any = data
        read = options.steps * options.batch_size * data.sizes(options.batch_size).tokens
        size = next((size for size, least in _VOCABULARIES.items() if read >= least), None)
        if size is None or len(text.text.splits["train"]) < _MIN_TEXT_BYTES:
            return recipe, data
        if progress:
            print(f"a training of this length reads a BPE of {size:,} tokens", file=sys.stderr)
        recipe, is_open = replace(recipe, data=replace(recipe.data, tokenizer="bpe", vocab_size=size)), False


def planned_for_minutes(recipe: Recipe, data: TaskData, progress: bool) -> TrainingOptions:
    """Replace the steps of a recipe by as many as fit into its minutes, with five evaluations and checkpoints, by the
    time of some steps and an evaluation of a model that is then thrown away."""
    options, minutes = recipe.training, recipe.training.minutes or 0.0
    seconds, evaluation = measured(recipe, data)
    left = 60 * minutes - _EVALUATIONS * evaluation
    if left < seconds:
        raise ValueError(
            f"`minutes` {minutes:g} are too few: a step takes {seconds:.2g} s here, and {_EVALUATIONS} evaluations "
            f"{_EVALUATIONS * evaluation:.2g} s; raise `minutes` or lower `evaluate_tokens`"
        )
    steps = min(MAX_STEPS, int(left / seconds))
    every = -(-steps // _EVALUATIONS)
    if progress:
        print(f"{minutes:g} minutes: {steps:,} steps of {seconds:.2g} s on this machine", file=sys.stderr)
    warmup = min(options.warmup_steps, steps // 10)
    return replace(options, steps=steps, warmup_steps=warmup, evaluate_every=every, save_every=every)


def measured(recipe: Recipe, data: TaskData, clock: Callable[[], float] = time.perf_counter) -> tuple[float, float]:
    """Measure the seconds of a step and of an evaluation by a clock; those of the first process in all."""
    count = _SLOW_STEPS + _TIMED_STEPS
    options = replace(recipe.training, steps=count, evaluate_every=count + 1, save_every=count + 1, report_to="none")
    recipe = replace(recipe, training=options)
    with TemporaryDirectory() as folder, quiet():
        trainer = make_trainer(recipe, data, Path(folder), progress=False)
        trainer.args.save_strategy = SaveStrategy.NO
        steps = _StepClock(clock)
        trainer.add_callback(steps)
        trainer.train()
        begun = clock()
        trainer.evaluate()
        evaluation = clock() - begun
    return of_first_process(fmean(steps.seconds[_SLOW_STEPS:])), of_first_process(evaluation)


class _StepClock(TrainerCallback):
    """Seconds from the end of a step to that of the next, which include reading the batch."""

    def __init__(self, clock: Callable[[], float]) -> None:
        self.seconds: list[float] = []
        self._clock, self._last = clock, clock()

    def on_step_end(self, *args: Any, **kwargs: Any) -> None:
        now = self._clock()
        self.seconds.append(now - self._last)
        self._last = now


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
    if arguments.n_gpu > 1:  # the Trainer would copy the model to all of them at every step
        warnings.warn(
            f"this process uses one of {arguments.n_gpu} GPUs; to train on all, start a process for each: torchrun "
            f"--nproc-per-node {arguments.n_gpu}",
            stacklevel=2,
        )
        arguments._n_gpu = 1
    return arguments


def make_trainer(recipe: Recipe, data: TaskData, out: Path, progress: bool) -> LagwiseTrainer:
    """Make the model of a recipe, with the data of its task, and the Trainer that writes into a run's folder."""
    arguments = training_arguments(recipe, out)
    one_length = isinstance(data.task, RunningText) and data.task.data.lengths is None
    options = replace(recipe.training, compile=chosen_compilation(recipe.training, one_length))
    show = progress and arguments.process_index == 0
    model: Any = build_model(recipe, data, arguments.per_device_train_batch_size)
    if options.gradient_checkpointing:
        model.gradient_checkpointing_enable()
    optimizer = make_optimizer(model, options)
    if options.compile:
        compile_model(model, options.compile)
        if show and options.compile != recipe.training.compile:
            print("steps are compiled, which takes a minute, and run as CUDA graphs", file=sys.stderr)
    return LagwiseTrainer(model, data, options, arguments, optimizer, show=show)


def reporters(names: str, out: Path | None = None) -> list[str]:
    """Split the option ``report_to`` into names for the Trainer, and tell TensorBoard's callback where to write."""
    requested = [name.strip() for name in names.split(",") if name.strip() not in ("", "none")]
    available = get_available_reporting_integrations()
    for name in requested:  # every recipe names tensorboard, whether it is there or not
        known(name, ["none", "tensorboard", *available], "`report_to` (or its package is not installed)")
    if out is not None and "tensorboard" in requested:
        os.environ["TENSORBOARD_LOGGING_DIR"] = str(out / "tensorboard")
        _outlive_failed_curves()
    return [name for name in requested if name in available]


@cache
def _outlive_failed_curves() -> None:
    """Make what tensorboardX cannot write a warning: otherwise its thread ends, and the training waits for it without
    end."""
    try:
        from tensorboardX.event_file_writer import EventsWriter
    except ImportError:
        return

    def warning(call: Callable[..., Any]) -> Callable[..., Any]:
        @wraps(call)
        def called(*args: Any) -> Any:
            try:
                return call(*args)
            except OSError as error:
                warnings.warn(f"TensorBoard's curves lack a part: {one_line(error)}", stacklevel=2)
                return None

        return called

    for name in ("write_event", "flush"):
        setattr(EventsWriter, name, warning(getattr(EventsWriter, name)))


# Compiled training steps, by `torch.compile`.


def chosen_compilation(options: TrainingOptions, one_length: bool) -> bool | str:
    """Decide how to compile a training step: as the options say, and where they leave it open, as CUDA graphs if these
    can serve and the training is long enough. one_length: whether all steps have it."""
    if options.compile != AUTO:
        return options.compile
    usual = one_length and options.steps >= _MIN_GRAPH_STEPS and group_size() == options.accumulate == 1
    plain = options.precision != "float16" and not options.gradient_checkpointing
    on_nvidia = default_device().type == "cuda" and torch.version.cuda is not None
    return REDUCE_OVERHEAD if usual and plain and on_nvidia and _lacking("cuda") is None else False


def check_compiled(options: TrainingOptions) -> None:
    """Raise ValueError for options that exclude compiled steps, or if this machine cannot compile."""
    if options.compile in (False, AUTO):
        return
    device, graphs, option = default_device().type, options.compile == REDUCE_OVERHEAD, f"`compile={REDUCE_OVERHEAD}`"
    lacking = _lacking(device)
    refuse(
        (lacking is not None, f"`compile` needs {lacking}; or leave it out"),
        (
            graphs and device != "cuda",
            f"{option} needs an NVIDIA GPU, which is not here; take `compile=true`, or leave it out",
        ),
        (  # which exchange gradients in the backward pass
            graphs and group_size() > 1,
            f"{option} is for one process, got {group_size()}; take `compile=true`",
        ),
        (  # the graph of a micro-batch would overwrite the gradients of the one before
            graphs and options.accumulate > 1,
            f"{option} does not go with `accumulate`, got {options.accumulate}; take `compile=true`, or a smaller "
            "`batch_size`",
        ),
    )


def compile_model(model: Any, how: bool | str = True) -> None:
    """Compile the layers of a model in place with `torch.compile`, or with a mode of it the whole model as one graph.
    Gradients have the precision of their operations, as without compilation: by default PyTorch traces backward passes
    under autocast, which would give half-precision gradients to kernels that disable autocast in their forward pass."""
    config.backward_pass_autocast = "off"
    if isinstance(how, str):
        model.compile(mode=how)
    else:
        for layer in model.base_model.layers:
            layer.compile()


def _lacking(device: str) -> str | None:
    """Describe what PyTorch's compiler needs for a device and does not find here; None if nothing is missing."""
    if device == "cuda":
        if importlib.util.find_spec("triton") is None:
            return "Triton, which is not installed: pip install triton"
        if find_compiler() is None:
            return "a C compiler, which is not here: install gcc or set CC"
    elif find_cxx() is None:
        return "a C++ compiler, which is not here: install g++ or set CXX"
    return None if has_python_headers() else "Python's headers, which are not here: install python3-dev"
