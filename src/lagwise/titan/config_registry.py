"""Configurations of torchtitan by name, made of recipes."""

from __future__ import annotations

import functools
import math
from collections.abc import Sequence
from typing import Any

from torchtitan.components.checkpointer import CheckpointManager
from torchtitan.components.loss import CrossEntropyLoss
from torchtitan.components.metrics import MetricsProcessor
from torchtitan.config import CompileConfig, TrainingConfig
from torchtitan.config.configs import DebugConfig
from torchtitan.distributed.activation_checkpoint import FullAC
from torchtitan.protocols.model_spec import ModelSpec

from lagwise.data.options import AUTO, TRAINED_TOKENIZERS
from lagwise.process import group_size
from lagwise.titan.model import Adapter, ModelConfig, parallelize
from lagwise.titan.trainer import AdamW, FolderTokenizer, Schedule, TitanTrainer, TokenLoader
from lagwise.training.recipe import Recipe, load_recipe

_OF_ADAMW = ("learning_rate", "beta1", "beta2", "epsilon", "weight_decay")

#: Recipe and overrides of each configuration, by its family and its number of parameters.
CONFIGS: dict[str, tuple[str, tuple[str, ...]]] = {
    "tnn_2m": ("tnn-lm", ()),
    "tnn_48m": ("tnn-wikitext-103", ()),
    "fd_tnn_2m": ("fd-tnn-lm", ()),
    "fd_tnn_48m": ("tnn-wikitext-103", ("model.block.token_mixer.kernel={name: frequency, layers: 6, hidden: 64}",)),
    "mega_2m": ("mega-lm", ()),
    "mega_39m": ("mega-enwik8", ("data.lengths=null",)),
    "megalodon_2m": ("megalodon-lm", ()),
    "megalodon_200m": ("megalodon-200m", ()),
    "megalodon_1_3b": ("megalodon-1.3b", ()),
    "megalodon_7b": ("megalodon-7b", ()),
    "best_lm_14m": ("best-lm", ()),
}


def __getattr__(name: str) -> Any:
    if name not in CONFIGS:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return functools.partial(trainer_config, *CONFIGS[name])


def __dir__() -> list[str]:
    return [*CONFIGS, "folder"]


def folder() -> TitanTrainer.Config:
    """The model and the tokenizer of the folder ``hf_assets_path``, trained as the default recipe says."""
    config = trainer_config("best-lm")
    config.model_spec = _spec("folder", {})
    return config


def trainer_config(name: str, overrides: Sequence[str] = ()) -> TitanTrainer.Config:
    """Make the configuration that trains a recipe of language modelling as `lagwise.training.train` does, in bfloat16
    with kernels in float32 where the recipe leaves it open. Arguments as of `lagwise.training.load_recipe`. ValueError
    for what training by torchtitan does not have."""
    recipe = load_recipe(name, overrides)
    _check(recipe)
    options, data = recipe.training, recipe.data
    tokenizer = "bytes" if data.tokenizer == AUTO else data.tokenizer
    of_text = {"vocab_size": data.vocab_size} if tokenizer in TRAINED_TOKENIZERS else {}
    return TitanTrainer.Config(
        model_spec=_spec(name, {**of_text, **recipe.model}),
        hf_assets_path=".",
        tokenizer=FolderTokenizer(),
        dataloader=TokenLoader.Config(
            dataset=data.source or "stdlib", tokenizer_name=tokenizer, vocab_size=data.vocab_size, seed=options.seed
        ),
        optimizer=AdamW.Config(**{option: getattr(options, option) for option in _OF_ADAMW}),
        lr_scheduler=Schedule(schedule=options.schedule, warmup_steps=min(options.warmup_steps, options.steps // 10)),
        loss=CrossEntropyLoss.Config(),
        training=TrainingConfig(
            local_batch_size=max(1, options.batch_size // (group_size() * options.accumulate)),
            global_batch_size=options.batch_size,
            seq_len=data.length,
            max_norm=options.clip or math.inf,
            steps=options.steps,
            mixed_precision_param="float32" if options.precision == "float32" else "bfloat16",
            disable_cuda_graphs=True,  # layers look at their inputs, which a graph of the whole step cannot
        ),
        checkpoint=CheckpointManager.Config(interval=options.save_every),
        activation_checkpoint=FullAC.Config() if options.gradient_checkpointing else None,
        compile=CompileConfig(enable=options.compile not in (False, AUTO)),
        metrics=MetricsProcessor.Config(log_freq=options.log_every),
        debug=DebugConfig(seed=options.seed),
    )


def _spec(flavor: str, fields: dict[str, Any]) -> ModelSpec:
    return ModelSpec("lagwise", flavor, ModelConfig(fields=fields), parallelize, None, None, Adapter)


def _check(recipe: Recipe) -> None:
    """Raise ValueError for what torchtitan does not have."""
    if recipe.task["name"] != "language_modelling":
        raise ValueError(f"torchtitan trains language models, got the task {recipe.task['name']!r}")
    if recipe.data.lengths or recipe.training.precision == "float16":
        raise ValueError("training by torchtitan has no `lengths` and no `precision=float16`")
    usual = type(recipe.training)()
    for name in ("minutes", "epochs", "optimizer", "sequence_parallel", "select", "patience"):
        if (value := getattr(recipe.training, name)) != getattr(usual, name):
            raise ValueError(f"training by torchtitan has no `{name}`, got {value!r}")
