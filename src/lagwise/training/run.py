"""Train a recipe into a run folder."""

from __future__ import annotations

import json
import os
from contextlib import AbstractContextManager, nullcontext
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from transformers import TrainingArguments, default_data_collator, set_seed

from lagwise.data import RECALL, AssociativeRecall, Data, ScheduledExamples, content_key, open_source, prepare
from lagwise.files import is_unused, locked, remove_partial, saved_whole, write_whole
from lagwise.kernels import LagKernel
from lagwise.models import LagwiseConfig, LagwiseForCausalLM
from lagwise.models.conversion import CONVERSION_FILE
from lagwise.models.loading import quiet
from lagwise.tables import known
from lagwise.training.checkpoints import newest_whole_checkpoint, step_of
from lagwise.training.hardware import bfloat16_is_fast, describe
from lagwise.training.recipe import DataOptions, Recipe, load_recipe
from lagwise.training.trainer import METRICS_FILE, LagwiseTrainer, Progress, parameter_groups

RECIPE_FILE = "recipe.yaml"
RUN_FILE = "run.json"


def train(recipe: Recipe, out: Path, *, progress: bool = True, data: Data | None = None) -> Path:
    """Train a recipe and leave model, tokenizer, resolved recipe, metrics and checkpoints in ``out``.

    Everything that can be wrong is found before the first step: data, lengths, names, the folder. FileExistsError if
    ``out`` holds a run already. Under ``torchrun`` every process calls this; the batch is shared among them.
    """
    _check_unused(out)
    recipe = _rooted(recipe)
    arguments = _arguments(recipe, out)
    check_model(recipe)
    data = data or _prepare(recipe, arguments, progress)
    trainer = _trainer(recipe, data, arguments, progress)
    trainer.accelerator.wait_for_everyone()  # nobody may find the folder filled before having looked
    with _sole_trainer(out, arguments):
        if trainer.is_world_process_zero():
            _check_unused(out)  # another process may have trained in it in the meantime
            identity = {
                "data": data.identity,
                "parameters": sum(p.numel() for p in trainer.model_wrapped.parameters()),
                "processes": arguments.world_size,
            }
            with saved_whole(out, "the recipe", last=RECIPE_FILE) as partial:
                (partial / RUN_FILE).write_text(json.dumps({**identity, **describe()}, indent=1) + "\n")
                (partial / RECIPE_FILE).write_text(recipe.to_yaml())
        with quiet():
            trainer.train()
        return _finish(trainer, data, out)


def resume(out: Path, *, progress: bool = True) -> Path:
    """Go on with a run from its newest whole checkpoint (or from the start, if it had none yet), exactly: the same
    losses as if it had never stopped. A finished run is left as it is.

    FileNotFoundError if ``out`` is no run; ValueError if no checkpoint in it is whole or its data have changed.
    """
    if not (out / RECIPE_FILE).is_file():
        raise FileNotFoundError(f"{str(out)!r} is not a run to resume: it has no {RECIPE_FILE}")
    if (out / CONVERSION_FILE).is_file():
        raise ValueError(f"{str(out)!r} is a conversion, not a run to resume; resume the run that it was made of")
    recipe = load_recipe(str(out / RECIPE_FILE))
    arguments = _arguments(recipe, out)
    with _sole_trainer(out, arguments):
        checkpoint = newest_whole_checkpoint(out)
        if checkpoint and step_of(checkpoint) >= recipe.training.steps and (out / "config.json").is_file():
            return out
        if not data_unchanged(out, recipe):
            raise ValueError(
                f"the data of {str(out)!r} ({recipe.data.source}) have changed since it began; start a new run"
            )
        data = _prepare(recipe, arguments, progress)
        trainer = _trainer(recipe, data, arguments, progress)
        checkpoint = newest_whole_checkpoint(out, trainer.model, trainer.optimizer)
        if trainer.is_world_process_zero():
            _rewind_metrics(out, 0 if checkpoint is None else step_of(checkpoint))
        with quiet():
            trainer.train(resume_from_checkpoint=None if checkpoint is None else str(checkpoint))
        return _finish(trainer, data, out)


def data_unchanged(out: Path, recipe: Recipe) -> bool:
    """Whether a run's data are still what they were when the run began: text by its hash; nothing is encoded."""
    options = recipe.data
    key = (
        AssociativeRecall(options.vocab_size).identity
        if options.source == RECALL
        else content_key(open_source(options.source), options.tokenizer, options.vocab_size)
    )
    return key == json.loads((out / RUN_FILE).read_text())["data"]


def open_data(options: DataOptions, *, progress: bool = True) -> Data:
    """The task that the options name, or their text, encoded. Errors as `AssociativeRecall` and `prepare`."""
    if options.source == RECALL:
        return AssociativeRecall(options.vocab_size, loss=options.loss)
    return prepare(options.source, options.tokenizer, vocab_size=options.vocab_size, progress=progress)


def build_model(recipe: Recipe, data: Data) -> LagwiseForCausalLM:
    """The recipe's model, freshly initialised, with the tokenizer's vocabulary. ValueError if they do not fit."""
    tokenizer = data.tokenizer
    config = _model_config(recipe, len(tokenizer))
    if config.vocab_size < len(tokenizer):
        raise ValueError(f"model.vocab_size {config.vocab_size} is less than the tokenizer's {len(tokenizer)}")
    for kind in ("bos", "eos", "pad"):
        setattr(config, f"{kind}_token_id", getattr(tokenizer, f"{kind}_token_id"))
    set_seed(recipe.training.seed)
    return LagwiseForCausalLM(config)


def check_model(recipe: Recipe) -> None:
    """Build the recipe's model without memory. ValueError for an unknown field, a value out of range, or a training
    length that the model or one of its kernels cannot serve."""
    config = _model_config(recipe, recipe.data.vocab_size)
    limit = config.max_position_embeddings
    with torch.device("meta"):
        model = LagwiseForCausalLM(config)
    for key, length in (("length", recipe.data.length), ("evaluate_length", recipe.data.evaluate_length or 0)):
        if limit is not None and length > limit:
            raise ValueError(f"data.{key} {length} is over model.max_position_embeddings {limit}")
        for kernel in model.modules():
            if isinstance(kernel, LagKernel) and (kernel.max_length or length) < length:
                raise ValueError(f"data.{key} {length} is over the kernel's max_length {kernel.max_length}")


def _model_config(recipe: Recipe, vocab_size: int) -> LagwiseConfig:
    allowed = [name for name in LagwiseConfig.__annotations__ if not name.startswith("_")]
    for name in recipe.model:
        known(name, allowed, "key in model")
    fields: dict[str, Any] = {"vocab_size": vocab_size, **recipe.model}
    return LagwiseConfig(**fields)


def _check_unused(out: Path) -> None:
    # A lone run.json is what a process leaves that dies before it has written the recipe.
    if not is_unused(out, RUN_FILE):
        raise FileExistsError(
            f"{str(out)!r} is not empty: resume it with --resume, or choose another folder with --out"
        )


def _sole_trainer(out: Path, arguments: TrainingArguments) -> AbstractContextManager[None]:
    """The lock on a run, taken by the first process for all."""
    return locked(out, "training") if arguments.process_index == 0 else nullcontext()


def _rooted(recipe: Recipe) -> Recipe:
    """The recipe with local paths made absolute, so that a run is understood from any folder."""
    options = recipe.data
    paths: dict[str, Any] = {
        name: str(Path(value).expanduser().resolve())
        for name, value in (("source", options.source), ("tokenizer", options.tokenizer))
        if Path(value).expanduser().exists() and value not in ("stdlib", RECALL, "bytes", "bpe")
    }
    return replace(recipe, data=replace(options, **paths))


def _prepare(recipe: Recipe, arguments: TrainingArguments, progress: bool) -> Data:
    first = arguments.process_index == 0
    with arguments.main_process_first(desc="tokenizing"):
        return open_data(recipe.data, progress=progress and first)


def _arguments(recipe: Recipe, out: Path) -> TrainingArguments:
    options = recipe.training
    world = int(os.environ.get("WORLD_SIZE", "1"))
    if options.batch_size % (world * options.accumulate):
        raise ValueError(
            f"training.batch_size must be a multiple of processes times accumulate, got {options.batch_size} for "
            f"{world} * {options.accumulate}"
        )
    micro_batch = options.batch_size // (world * options.accumulate)
    valid_batch = micro_batch * recipe.data.length // (recipe.data.evaluate_length or recipe.data.length)
    bfloat16 = options.precision == "bfloat16" or (options.precision == "auto" and bfloat16_is_fast())
    return TrainingArguments(
        output_dir=str(out),
        max_steps=options.steps,
        per_device_train_batch_size=micro_batch,
        per_device_eval_batch_size=max(1, valid_batch),  # in the memory of a training batch
        gradient_accumulation_steps=options.accumulate,
        learning_rate=options.learning_rate,
        lr_scheduler_type=options.schedule,
        warmup_steps=options.warmup_steps,
        max_grad_norm=options.clip,
        bf16=bfloat16,
        seed=options.seed,
        use_cpu=not torch.cuda.is_available(),
        ddp_backend="gloo" if world > 1 and not torch.cuda.is_available() else None,
        ddp_find_unused_parameters=False,
        train_sampling_strategy="sequential",  # the examples come shuffled
        logging_steps=options.log_every,
        logging_nan_inf_filter=False,
        eval_strategy="steps",
        eval_steps=options.evaluate_every,
        save_steps=options.save_every,
        report_to=_tensorboard(out),
        disable_tqdm=True,
        remove_unused_columns=False,
    )


def _trainer(recipe: Recipe, data: Data, arguments: TrainingArguments, progress: bool) -> LagwiseTrainer:
    options, length = recipe.training, recipe.data.length
    progress = progress and arguments.process_index == 0
    lengths = recipe.data.lengths or [length]
    examples = ScheduledExamples(data, lengths, options.batch_size, options.steps, options.seed)
    valid = data.validation_examples(recipe.data.evaluate_length or length, options.evaluate_tokens)
    model = build_model(recipe, data)
    if options.gradient_checkpointing:
        model.gradient_checkpointing_enable()
    tokens_per_step = options.batch_size * sum(lengths) / len(lengths)
    optimizer = torch.optim.AdamW(
        parameter_groups(model, options.weight_decay),
        lr=options.learning_rate,
        betas=(options.beta1, options.beta2),
        eps=options.epsilon,
        fused=True,
    )
    return LagwiseTrainer(
        model=model,
        args=arguments,
        train_dataset=examples,
        eval_dataset=valid,
        optimizers=(optimizer, None),
        callbacks=[Progress(tokens_per_step, show=progress)],
        processing_class=data.tokenizer,
        data_collator=default_data_collator,  # a step's examples are of one length: nothing to pad, no mask
        valid_bytes_per_token=data.bytes_per_token("valid"),
        keep_checkpoints=options.keep_checkpoints,
    )


def _tensorboard(out: Path) -> list[str]:
    try:
        import tensorboardX  # noqa: F401
    except ImportError:
        return []
    os.environ["TENSORBOARD_LOGGING_DIR"] = str(out / "tensorboard")
    return ["tensorboard"]


def _finish(trainer: LagwiseTrainer, data: Data, out: Path) -> Path:
    """Put the final model at the top of the run folder, config.json last: it is what makes the folder a model."""
    if trainer.is_world_process_zero():
        with quiet(), saved_whole(out, "the model", last="config.json") as partial:
            model: Any = trainer.accelerator.unwrap_model(trainer.model)
            model.save_pretrained(partial)
            data.tokenizer.save_pretrained(partial)
        remove_partial(out)
    trainer.accelerator.wait_for_everyone()
    return out


def _rewind_metrics(out: Path, step: int) -> None:
    """Drop logged lines beyond the checkpoint; training will write them again."""
    path = out / METRICS_FILE
    if not path.is_file():  # stopped before the first line
        return
    kept = [line for line in _logged(path) if line["step"] <= step]
    write_whole(path, "".join(json.dumps(line) + "\n" for line in kept))


def _logged(path: Path) -> list[dict[str, float]]:
    """The lines of a log, without the last if it was cut short."""
    lines = path.read_text().splitlines()
    result = []
    for number, line in enumerate(lines, 1):
        try:
            result.append(json.loads(line))
        except json.JSONDecodeError:
            if number < len(lines):
                raise
    return result


def read_metrics(run: Path) -> list[dict[str, float]]:
    """The logged lines of a run, in order. FileNotFoundError if it has none."""
    path = run / METRICS_FILE
    if not path.is_file():
        raise FileNotFoundError(f"{str(run)!r} has no {METRICS_FILE}: it is not a training run")
    return _logged(path)
