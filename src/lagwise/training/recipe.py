"""Recipes: what to train, on what and how, in a YAML file that is checked key by key."""

from __future__ import annotations

import copy
import dataclasses
import math
import types
import typing
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from importlib import resources
from pathlib import Path
from typing import Any

import yaml

from lagwise.data.options import DataOptions
from lagwise.models.presets import PRESETS
from lagwise.tables import known

SCHEDULES = ("inverse_sqrt", "polynomial", "cosine", "linear", "constant_with_warmup")
PRECISIONS = ("auto", "float32", "bfloat16")
SELECTIONS = ("last", "best")
DEFAULT_RECIPE = "tnn-lm"


@dataclass
class TrainingOptions:
    """steps: optimiser steps.
    epochs: passes over the training data, in place of steps; may be a fraction.
    batch_size: sequences in a step, over all processes.
    accumulate: micro-batches that a step is cut into, to save memory.
    learning_rate: its peak.
    schedule: after the warm-up: inverse_sqrt, polynomial, cosine, linear or constant_with_warmup.
    warmup_steps: steps from zero to the peak.
    weight_decay: decoupled, on matrices only.
    beta1, beta2, epsilon: AdamW's.
    clip: largest gradient norm; 0 for none.
    precision: auto (bfloat16 where the hardware has it), float32 or bfloat16.
    gradient_checkpointing: recompute blocks in the backward pass, to save memory.
    seed: of weights and of the order of the data.
    log_every, evaluate_every, save_every: in steps.
    evaluate_tokens: tokens of the validation text to use.
    keep_checkpoints: the newest ones to keep.
    select: the model that a run ends with: the `last`, or the `best` on validation data by the task's own metric.
    patience: stop after so many evaluations without a better one; 0 never does."""

    steps: int = 1000
    epochs: float | None = None
    batch_size: int = 8
    accumulate: int = 1
    learning_rate: float = 4e-3
    schedule: str = "cosine"
    warmup_steps: int = 50
    weight_decay: float = 0.1
    beta1: float = 0.9
    beta2: float = 0.98
    epsilon: float = 1e-8
    clip: float = 1.0
    precision: str = "auto"
    gradient_checkpointing: bool = False
    seed: int = 0
    log_every: int = 10
    evaluate_every: int = 200
    save_every: int = 200
    evaluate_tokens: int = 65536
    keep_checkpoints: int = 2
    select: str = "last"
    patience: int = 0


@dataclass
class Recipe:
    """description: one line. task: a name from `lagwise.tasks.TASKS`, and its options. model: fields of
    `LagwiseConfig`, and perhaps init_from. data, training: see their options."""

    description: str = ""
    task: dict[str, Any] = field(default_factory=lambda: {"name": "language_modelling"})
    model: dict[str, Any] = field(default_factory=dict)
    data: DataOptions = field(default_factory=DataOptions)
    training: TrainingOptions = field(default_factory=TrainingOptions)

    def to_yaml(self) -> str:
        return yaml.safe_dump(dataclasses.asdict(self), sort_keys=False)


def recipe_names() -> list[str]:
    """Names of the recipes that come with lagwise."""
    folder = resources.files("lagwise") / "recipes"
    return sorted(f.name.removesuffix(".yaml") for f in folder.iterdir() if f.name.endswith(".yaml"))


def load_recipe(name: str = DEFAULT_RECIPE, overrides: Sequence[str] = ()) -> Recipe:
    """A recipe by name or YAML file, with ``section.key=value`` overrides applied.

    Two overrides replace what the recipe says of the model: ``model=WORD``, its block by a word of
    `lagwise.models.presets`; and ``model.init_from=RUN``, all of it by the model of another run. They apply first.

    ValueError names the unknown key (and the nearest known one), the value of a wrong type, or what is out of range.
    Keys below ``model.block`` are checked when the model is built.
    """
    path = Path(name)
    if path.suffix in (".yaml", ".yml"):
        if not path.is_file():
            raise FileNotFoundError(f"no recipe file {name!r}")
        text = path.read_text()
    else:
        known(name, recipe_names(), "recipe")
        text = (resources.files("lagwise") / "recipes" / f"{name}.yaml").read_text()
    try:
        values = yaml.safe_load(text) or {}
    except yaml.YAMLError as error:
        raise ValueError(f"recipe {name!r} is not valid YAML: {error}") from error
    if not isinstance(values, dict):
        raise ValueError(f"recipe {name!r} must be a mapping with sections, got {values!r:.60}")
    values = _upgraded(values)
    for override in sorted(overrides, key=lambda each: not each.startswith(("model=", "model.init_from="))):
        _apply(values, override)
    recipe = _fill(Recipe, values, "")
    _check(recipe)
    return recipe


def _upgraded(values: dict[str, Any]) -> dict[str, Any]:
    """A recipe of lagwise 0.1, which told the task by its data, in today's form."""
    data = values.get("data")
    if "task" in values or not isinstance(data, dict):
        return values
    loss = {"loss": data["loss"]} if "loss" in data else {}
    if data.get("source") == "associative-recall":
        kept = {key: value for key, value in data.items() if key not in ("loss", "source")}
        return {**values, "task": {"name": "associative_recall", **loss}, "data": kept}
    if "description" in values and "training" in values and "loss" in data:  # written into a run by 0.1
        return {**values, "data": {key: value for key, value in data.items() if key != "loss"}}
    return values


def _apply(values: dict[str, Any], override: str) -> None:
    key, separator, text = override.partition("=")
    if key == "model" and separator:
        preset = PRESETS[known(text, PRESETS, "model")]
        kept = {k: v for k, v in values.get("model", {}).items() if k not in ("name", "block", "norm")}
        values["model"] = {**kept, **copy.deepcopy(preset)}
        return
    if key == "model.init_from" and separator:
        values["model"] = {}
    sections = [f.name for f in dataclasses.fields(Recipe)]
    parts = key.split(".")
    if separator and len(parts) > 1:
        known(parts[0], sections, "section of a recipe")
    else:
        leaves = [f"{s}.{f.name}" for s, cls in _SECTIONS.items() for f in dataclasses.fields(cls)]
        near = next((leaf for leaf in leaves if leaf.endswith(f".{key}")), None)
        hint = f"; did you mean {near}=...?" if near else " (see 'lagwise recipes tnn-lm' for the keys)"
        raise ValueError(f"an override is written section.key=value, got {override!r}{hint}")
    *path, last = parts
    for part in path:
        values = values.setdefault(part, {})
        if not isinstance(values, dict):
            raise ValueError(f"in override {override!r}, {part!r} is a value, not a section")
    try:
        values[last] = yaml.safe_load(text)
    except yaml.YAMLError as error:
        raise ValueError(f"in override {override!r}, the value is not valid YAML: {error}") from error


def _fill(cls: type, values: Any, where: str) -> Any:
    """Build a dataclass from a mapping, refusing unknown keys and wrong types."""
    if not isinstance(values, Mapping):
        raise ValueError(f"{where or 'a recipe'} must be a mapping, got {values!r}")
    hints = typing.get_type_hints(cls)
    filled = {}
    for key, value in values.items():
        known(key, hints, f"key in {where}" if where else "section of a recipe")
        place = f"{where}.{key}" if where else key
        filled[key] = (
            _fill(hints[key], value, place)
            if dataclasses.is_dataclass(hints[key])
            else _typed(hints[key], value, place)
        )
    return cls(**filled)


def _typed(kind: Any, value: Any, where: str) -> Any:
    origin = typing.get_origin(kind)
    if origin in (types.UnionType, typing.Union):
        if value is None:
            return None
        kind = next(k for k in typing.get_args(kind) if k is not types.NoneType)
        origin = typing.get_origin(kind)
    if kind is float and isinstance(value, int | str) and not isinstance(value, bool):
        try:
            return float(value)  # YAML reads 1e-3 as text
        except ValueError:
            pass
    expected = origin or kind
    if not isinstance(value, expected) or (expected is int and isinstance(value, bool)):
        raise ValueError(f"{where} must be of type {expected.__name__}, got {value!r}")
    return value


def _check(recipe: Recipe) -> None:
    data, training = recipe.data, recipe.training
    if recipe.task.get("name") is None:
        raise ValueError(f"task must be a mapping with a 'name', got {recipe.task!r}")
    if training.epochs is not None and not 0 < training.epochs < math.inf:
        raise ValueError(f"training.epochs must be a positive number, got {training.epochs}")
    known(training.schedule, SCHEDULES, "schedule")
    known(training.select, SELECTIONS, "training.select")
    known(training.precision, PRECISIONS, "precision")
    positive = {
        "data.length": data.length,
        "data.vocab_size": data.vocab_size,
        **{
            f"training.{k}": getattr(training, k)
            for k in (
                *("steps", "batch_size", "accumulate", "learning_rate", "log_every", "evaluate_every"),
                *("save_every", "evaluate_tokens", "keep_checkpoints"),
            )
        },
    }
    for key, value in positive.items():
        if value <= 0:
            raise ValueError(f"{key} must be greater than 0, got {value}")
    for key in ("warmup_steps", "weight_decay", "clip", "patience"):
        if getattr(training, key) < 0:
            raise ValueError(f"training.{key} must be at least 0, got {getattr(training, key)}")
    for key in ("beta1", "beta2"):
        if not 0 <= getattr(training, key) < 1:
            raise ValueError(f"training.{key} must be in [0, 1), got {getattr(training, key)}")
    _check_lengths(data)
    if training.batch_size % training.accumulate:
        raise ValueError(
            f"training.accumulate must divide training.batch_size, got {training.accumulate} and {training.batch_size}"
        )


def _check_lengths(data: DataOptions) -> None:
    for key, value in (("length", data.length), ("evaluate_length", data.evaluate_length)):
        if value is not None and value < 2:
            raise ValueError(f"data.{key} must be at least 2 (there is nothing to predict in one token), got {value}")
    if data.lengths is None:
        return
    if not data.lengths or not all(type(n) is int and n >= 2 for n in data.lengths):
        raise ValueError(f"data.lengths must be whole numbers of at least 2, got {data.lengths}")
    if data.length != max(data.lengths):
        raise ValueError(f"data.length must be the largest of data.lengths {data.lengths}, got {data.length}")


_SECTIONS = {"data": DataOptions, "training": TrainingOptions}
