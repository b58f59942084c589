"""Recipes: the task, model, data and training of a run, in a YAML file that is checked key by key."""

from __future__ import annotations

import copy
import dataclasses
from collections.abc import Mapping, Sequence
from dataclasses import field
from importlib import resources
from typing import Annotated, Any

import yaml
from pydantic import Field

from lagwise.data.options import DataOptions, upgraded
from lagwise.data.tokenizers import tokenizer_folder
from lagwise.files import expanded
from lagwise.models.presets import GRID_PRESETS, PRESETS
from lagwise.schema import Count, Number, Share, Switch, Whole, checked, options
from lagwise.tables import known, option_names, shown
from lagwise.training.yaml_values import parsed

SCHEDULES = ("inverse_sqrt", "polynomial", "cosine", "linear", "constant_with_warmup")
PRECISIONS = ("auto", "float32", "bfloat16", "float16")
OPTIMIZERS = ("adamw", "muon")
REDUCE_OVERHEAD = "reduce-overhead"  # a mode of `torch.compile`
SELECTIONS = ("last", "best")
FIRST_ANSWERS = ("none", "compare", "only")
LINEAR = "linear"  # the word of a first answer alone, where other words name a model that is trained alone
DEFAULT_RECIPE = "best-lm"
MOST_STEPS = 10**8  # the length of each step is drawn beforehand
MOST_WORKERS = 128  # each is a process with hundreds of megabytes
_LAST_RATE = 1e-7  # where the polynomial schedule ends, as in transformers
_LONGEST = 2**20  # bytes of a recipe


@options
class TrainingOptions:
    """How to train."""

    steps: Annotated[Count, Field(le=MOST_STEPS)] = 1000
    """Optimiser steps."""
    epochs: Annotated[Number, Field(gt=0)] | None = None
    """Passes over the training data, instead of steps; may be a fraction."""
    least_steps: Annotated[Whole, Field(ge=0, le=MOST_STEPS)] = 0
    """Steps at least, where `epochs` of few rows are fewer. An override of `epochs` sets it to 0."""
    batch_size: Count = 8
    """Sequences per step, over all processes."""
    accumulate: Count = 1
    """Micro-batches per step, to save memory."""
    sequence_parallel: Count = 1
    """Processes that share every sequence, each with a piece of its tokens; 1: each process has whole sequences."""
    shard: Switch = False
    """Divide weights, gradients and optimiser states between the processes (FSDP2)."""
    optimizer: str = "adamw"
    """`adamw`, or `muon`: Muon for the matrices of linear layers and AdamW for the rest."""
    learning_rate: Annotated[Number, Field(gt=0)] = 4e-3
    """Peak learning rate."""
    schedule: str = "cosine"
    """After the warm-up: `inverse_sqrt`, `polynomial`, `cosine`, `linear` or `constant_with_warmup`."""
    warmup_steps: Annotated[Whole, Field(ge=0)] = 50
    """Steps from zero to the peak; at most a tenth of all steps."""
    weight_decay: Annotated[Number, Field(ge=0)] = 0.1
    """Decoupled, on matrices only."""
    beta1: Share = 0.9
    """Decay of AdamW's first moment."""
    beta2: Share = 0.98
    """Decay of AdamW's second moment."""
    epsilon: Annotated[Number, Field(gt=0)] = 1e-8
    """Of AdamW."""
    clip: Annotated[Number, Field(ge=0)] = 1.0
    """Largest gradient norm; 0 for none."""
    precision: str = "auto"
    """`auto` (bfloat16 where products in it are faster, otherwise float32), `float32`, `bfloat16`, or `float16` with
    scaled gradients, for NVIDIA GPUs without bfloat16."""
    tf32: Switch = False
    """Round the factors of float32 products to 10 bits (TF32), on NVIDIA GPUs since Ampere, where they are then several
    times as fast. Fourier transforms stay in float32."""
    compile: bool | str = False
    """Compile the training step with `torch.compile`, which takes seconds to a minute for each of the first two lengths
    of rows. Worth it on GPUs, for many steps. With `reduce-overhead` also launch it as CUDA graphs, one for each length
    of rows, on one NVIDIA GPU and without `accumulate`. Evaluations are not compiled."""
    gradient_checkpointing: Switch = False
    """Recompute blocks in the backward pass, to save memory."""
    average: Share = 0.0
    """Decay of a moving average of the weights, which is then evaluated and kept; 0 for none."""
    carry_states: Annotated[Whole, Field(ge=0)] = 0
    """Number of steps over which each row of a batch reads one text, each from the state that the step before has left,
    from the beginning of a document to its end; gradients reach back to the start of a piece of `data.length` tokens,
    or of one drawn from `data.lengths`. Of language models whose state does not grow with the text. Many steps read
    fewer different texts. 0 and 1 carry none."""
    workers: Annotated[Whole, Field(ge=0, le=MOST_WORKERS)] = 0
    """Processes that prepare batches, such as augmented images; 0 prepares them between the steps."""
    seed: Annotated[Whole, Field(ge=0, lt=2**32)] = 0
    """Of weights and of the order of the data."""
    log_every: Count = 10
    """Steps between lines of the log."""
    report_to: str = "tensorboard"
    """Programs that follow the training, separated by commas: `tensorboard` (if installed), `wandb`, `mlflow` and the
    others of transformers; `none` for none."""
    evaluate_every: Count = 200
    """Steps between evaluations; with `epochs` at most a sixth of all steps."""
    save_every: Count = 200
    """Steps between checkpoints."""
    evaluate_tokens: Count = 65536
    """Tokens of the validation text to use."""
    keep_checkpoints: Count = 2
    """Number of newest checkpoints to keep."""
    select: str = "last"
    """The model that a run ends with: the `last`, or the `best` on validation data by the task's own metric."""
    first_answer: str = "none"
    """A linear model of fixed features, fitted in seconds: `compare` fits it first and ends with it unless the trained
    model is better on held-out rows; `only` trains nothing else (`model=linear`)."""
    patience: Annotated[Whole, Field(ge=0)] = 0
    """Stop after this many evaluations without a better one; 0 never does."""


@options
class Recipe:
    """What to train, on what and how."""

    description: str = ""
    """One line."""
    task: dict[str, Any] = field(default_factory=lambda: {"name": "language_modelling"})
    """A name from `lagwise.tasks.TASKS`, and its options."""
    model: dict[str, Any] = field(default_factory=dict)
    """Fields of `LagwiseConfig`, and perhaps init_from."""
    words: dict[str, Any] = field(default_factory=dict)
    """Fields of `LagwiseConfig` for a kind of model, by its word: what `model=WORD` sets beside the preset."""
    data: DataOptions = field(default_factory=DataOptions)
    """What to train and evaluate on."""
    training: TrainingOptions = field(default_factory=TrainingOptions)
    """How to train."""

    def to_yaml(self) -> str:
        """The recipe as a file that `load_recipe` reads as the same recipe, with any overrides."""
        values = dataclasses.asdict(self)
        if not self.words:
            del values["words"]
        return yaml.safe_dump(values, sort_keys=False)


def recipe_names() -> list[str]:
    """Names of the recipes that come with lagwise.

    >>> "tnn-lm" in recipe_names()
    True
    """
    folder = resources.files("lagwise") / "recipes"
    return sorted(f.name.removesuffix(".yaml") for f in folder.iterdir() if f.name.endswith(".yaml"))


def load_recipe(name: str = DEFAULT_RECIPE, overrides: Sequence[str] = ()) -> Recipe:
    """A recipe by name or YAML file, with ``section.key=value`` overrides applied.

    ``model=linear`` trains no model, but fits the first answer alone (``training.first_answer=only``). Two overrides
    replace the recipe's model, except for its dropout: ``model=WORD``, its block by a word of
    `lagwise.models.presets`, for images in two dimensions and with the recipe's expansions, for a chain by as many
    layers as it has blocks, and with the fields that the recipe's section ``words`` has for it, such as published
    sizes, and trains it without a first answer (``training.first_answer=none``); and ``model.init_from=RUN``, all of it
    by the model of another run. They are applied first.

    ``NAME`` in ``model. ... .kernel.name=NAME``, and of another mixer or block, takes the place of the recipe's part,
    whose options stay where the new part has them too. Keys below ``model.block`` are checked when the model is built.

    Args:
        name: Name of a recipe or path of a YAML file.
        overrides: Each ``section.key=value``.

    Raises:
        ValueError: For an unknown key (with the nearest known one), a value of a wrong type, or a value out of range
            (docs/limits.md).

    >>> recipe = load_recipe("tnn-lm", ["training.steps=5", "model.hidden_size=64"])
    >>> recipe.training.steps, recipe.model["hidden_size"]
    (5, 64)
    """
    path = expanded(name)
    if path.suffix in (".yaml", ".yml"):
        if not path.is_file():
            raise FileNotFoundError(f"no recipe file {shown(name)}")
        if path.stat().st_size > _LONGEST:
            raise ValueError(f"recipe {name!r} has {path.stat().st_size} bytes; a recipe has at most {_LONGEST}")
        text = path.read_bytes()
    else:
        known(name, recipe_names(), "recipe")
        text = (resources.files("lagwise") / "recipes" / f"{name}.yaml").read_bytes()
    values = parsed(text, f"recipe {name!r}") or {}
    if not isinstance(values, dict):
        raise ValueError(f"recipe {name!r} must be a mapping with sections, got {shown(values)}")
    _mapping(values.get("model"), "model")
    for word, fields in _mapping(values.get("words"), "words").items():
        known(word, PRESETS, "word of a recipe")
        _mapping(_mapping(fields, f"words.{word}").get("block"), f"words.{word}.block")
    values = upgraded(values)
    _check_overrides(overrides)
    whole = [each for each in overrides if each.startswith(("model=", "model.init_from="))]
    rest = [each for each in overrides if each not in whole]
    for override in whole:
        _apply(values, override)
    for override in rest:
        _drop_options(values, override)
    for override in rest:
        _apply(values, override)
    recipe = checked(Recipe, values, "a recipe")
    _check(recipe)
    return recipe


def _check_overrides(overrides: Sequence[str]) -> None:
    """ValueError for overrides that contradict each other."""
    keys = [override.partition("=")[0] for override in overrides]
    for one, other, why in (
        ("model.init_from", "model", "a run that is started from brings its own kind of model"),
        ("model.init_from", "data.tokenizer", "a run that is started from brings its own tokenizer"),
        ("model.init_from", "data.vocab_size", "a run that is started from brings its own tokenizer"),
        ("training.steps", "training.epochs", "both set how long to train"),
    ):
        if one in keys and other in keys:
            raise ValueError(f"give either {one} or {other}: {why}")


def _apply(values: dict[str, Any], override: str) -> None:
    key, separator, text = override.partition("=")
    if key == "model" and separator:
        _use_preset(values, text)
        return
    if key == "model.init_from" and separator:
        values["model"] = _task_settings(values)
        values["data"] = {k: v for k, v in (values.get("data") or {}).items() if k not in ("tokenizer", "vocab_size")}
    if key == "training.steps" and isinstance(values.get("training"), dict):
        values["training"].pop("epochs", None)
    if key == "training.epochs" and isinstance(values.get("training"), dict):
        values["training"].pop("least_steps", None)
    sections = [f.name for f in dataclasses.fields(Recipe) if f.name != "words"]
    parts = key.split(".")
    if separator and len(parts) > 1:
        known(parts[0], sections, "section of a recipe")
    else:
        near = setting(key)
        hint = f"; did you mean {near}=...?" if near else f" (see 'lagwise recipes {DEFAULT_RECIPE}' for the keys)"
        raise ValueError(f"an override is written section.key=value, got {shown(override)}{hint}")
    _refuse_part_of_a_chain(values, parts)
    *path, last = parts
    if not isinstance(values, dict):
        raise ValueError(f"a recipe must be a mapping, got {shown(values)}")
    for part in path:
        if values.get(part) is None:  # a section without content
            values[part] = {}
        values = values[part]
        if not isinstance(values, dict):
            raise ValueError(f"in override {shown(override)}, {part!r} is a value, not a section")
    value = parsed(text, f"in override {shown(override)}, the value")
    if value is None and text.strip().lower() not in ("null", "~"):
        raise ValueError(f"override {shown(override)} has no value; write {key}=null for none")
    values[last] = value


def setting(name: str) -> str | None:
    """The key of a recipe that sets an option of the data, the training, a task or the model: ``training.steps`` for
    ``steps``. None if there is no such option."""
    if name == "model":
        return name
    for section, cls in _SECTIONS.items():
        if name in {each.name for each in dataclasses.fields(cls)}:
            return f"{section}.{name}"
    from lagwise.models.configuration import field_types  # which load PyTorch
    from lagwise.tasks import TASKS

    if any(name in option_names(task) for task in TASKS.values()):
        return f"task.{name}"
    return f"model.{name}" if name in (START, *field_types()) else None


def _refuse_part_of_a_chain(values: Any, parts: Sequence[str]) -> None:
    """ValueError for the part of a block where the model is a chain of several blocks."""
    model = values.get("model") if isinstance(values, dict) else None
    block = model.get("block") if isinstance(model, dict) else None
    if not isinstance(block, dict) or block.get("name") != "chain" or parts[:2] != ["model", "block"]:
        return
    if len(parts) > 2 and parts[2:] not in (["name"], ["blocks"]):
        raise ValueError(
            f"{'.'.join(parts)} cannot be set, because the layers of this recipe differ (block 'chain'); take a "
            "recipe of equal layers, such as tnn-lm, or another model, such as model=tnn"
        )


def _mapping(value: Any, what: str) -> dict[str, Any]:
    """A mapping that a recipe may leave out."""
    if value is not None and not isinstance(value, dict):
        raise ValueError(f"{what} in a recipe must be a mapping, got {shown(value)}")
    return value or {}


def _use_preset(values: dict[str, Any], word: str) -> None:
    """Merge the fields of a word into the recipe's model, then what the recipe keeps, then what its ``words`` set."""
    known(word, [*PRESETS, LINEAR], "model")
    values["training"] = {**(values.get("training") or {}), "first_answer": "only" if word == LINEAR else "none"}
    if word == LINEAR:
        return
    old = values.get("model") or {}
    inputs = old.get("inputs")
    of_images = (inputs.get("name") if isinstance(inputs, dict) else inputs) == "patches"
    preset = copy.deepcopy((PRESETS | GRID_PRESETS if of_images else PRESETS)[word])
    own = (values.get("words") or {}).get(word) or {}
    plain = {name: value for name, value in old.items() if name != "norm"}
    kept = _task_settings(values, preset["block"] if of_images else {})
    values["model"] = merged(plain, preset, kept, _depth(old), own)


def merged(given: Mapping[str, Any], *others: Mapping[str, Any]) -> dict[str, Any]:
    """Fields of a model, or options of a part, with others in their place. A part that these name replaces the given
    one; of another part, only the options that these set."""
    result = dict(given)
    for name, value in ((name, value) for other in others for name, value in other.items()):
        before = result.get(name)
        inner = isinstance(value, dict) and "name" not in value and isinstance(before, dict)
        result[name] = merged(before, value) if inner else value
    return result


def _drop_options(values: Any, override: str) -> None:
    """Where an override gives a part of the model another name, remove the options that the new part does not have."""
    key, _, name = override.partition("=")
    *path, last = key.split(".")
    if last != "name" or path[:1] != ["model"]:
        return
    from lagwise.blocks import BLOCKS
    from lagwise.blocks.channel import CHANNEL_MIXERS
    from lagwise.kernels import KERNELS
    from lagwise.mixers import MIXERS

    mixers = dict.fromkeys(("token_mixer", "memory"), MIXERS)
    parts = {"block": BLOCKS, "channel_mixer": CHANNEL_MIXERS, "kernel": KERNELS, **mixers}
    new = parts.get(path[-1], {}).get(name)
    for step in path:
        values = values.get(step) if isinstance(values, dict) else None
    if new is not None and isinstance(values, dict):
        for option in values.keys() - {"name", *option_names(new)}:
            del values[option]


def _depth(model: Mapping[str, Any]) -> dict[str, Any]:
    """As many layers as a model has, of which a chain's block has several."""
    block, repeated = model.get("block"), model.get("num_hidden_layers")
    blocks = block.get("blocks") if isinstance(block, dict) and block.get("name") == "chain" else None
    return (
        {"num_hidden_layers": repeated * len(blocks)} if isinstance(blocks, list) and isinstance(repeated, int) else {}
    )


def _task_settings(values: Mapping[str, Any], widths: Mapping[str, Any] | None = None) -> dict[str, Any]:
    """Dropout, pooling and the layers of the classifier of a recipe's model, which belong to the training and the task:
    another model is trained with them too. widths: a block whose mixers keep the expansion of the recipe's mixers of
    the same name."""
    model = values.get("model") or {}
    names = ("embedding_dropout", "classifier_dropout", "classifier_hidden_size", "pooling")
    kept: dict[str, Any] = {name: value for name, value in model.items() if name in names}
    block: Any = model["block"] if isinstance(model.get("block"), dict) else {}
    same = {name: block[name] for name in ("dropout",) if name in block}  # every block has a dropout
    for part, mixer in (widths or {}).items():
        before = block.get(part)
        if isinstance(mixer, dict) and isinstance(before, dict) and mixer["name"] == before.get("name"):
            same[part] = {name: before[name] for name in ("expansion",) if name in before}
    return kept | ({"block": same} if same else {})


def _check(recipe: Recipe) -> None:
    data, training = recipe.data, recipe.training
    if recipe.task.get("name") is None:
        raise ValueError(f"task must be a mapping with a 'name', got {recipe.task!r}")
    known(training.schedule, SCHEDULES, "schedule")
    known(training.optimizer, OPTIMIZERS, "optimizer")
    known(training.select, SELECTIONS, "training.select")
    known(training.first_answer, FIRST_ANSWERS, "training.first_answer")
    known(training.precision, PRECISIONS, "precision")
    known(training.compile, (False, True, REDUCE_OVERHEAD), "training.compile")
    for key, value in (("source", data.source), ("tokenizer", data.tokenizer)):
        if value is not None and not value.strip():
            raise ValueError(f"data.{key} must not be empty")
    _check_lengths(data)
    if training.schedule == "polynomial" and training.learning_rate <= _LAST_RATE:
        raise ValueError(
            f"training.learning_rate must be over {_LAST_RATE:g}, with which the polynomial schedule ends, got "
            f"{training.learning_rate:g}"
        )
    if training.batch_size % training.accumulate:
        raise ValueError(
            f"training.accumulate must divide training.batch_size, got {training.accumulate} and {training.batch_size}"
        )


def _check_lengths(data: DataOptions) -> None:
    if data.lengths is None:
        return
    if not data.lengths:
        raise ValueError("data.lengths must be integers of at least 2, got []")
    if data.length != max(data.lengths):
        raise ValueError(f"data.length must be the largest of data.lengths {data.lengths}, got {data.length}")


_SECTIONS = {"data": DataOptions, "training": TrainingOptions}
START = "init_from"  # the key of a model that names a run to start from
_OTHER_DATA = ("noise",)  # options of tasks that name data beside data.source


def rooted(recipe: Recipe) -> Recipe:
    """The recipe with absolute local paths, so that a run is valid from any folder."""
    source, folder = recipe.data.source, tokenizer_folder(recipe.data.tokenizer)
    paths: dict[str, Any] = {} if folder is None else {"tokenizer": str(folder.resolve())}
    if source and source != "stdlib":
        paths["source"] = _whole_path(source)
    return dataclasses.replace(
        recipe, task=_rooted_options(recipe.task), data=dataclasses.replace(recipe.data, **paths)
    )


def _rooted_options(options: Mapping[str, Any]) -> dict[str, Any]:
    found = {name: _whole_path(value) if name in _OTHER_DATA else value for name, value in options.items()}
    return {name: _rooted_options(value) if isinstance(value, dict) else value for name, value in found.items()}


def _whole_path(name: Any) -> Any:
    """The absolute path of a local file or folder; other names, such as of hubs, as they are."""
    return str(expanded(name).resolve()) if isinstance(name, str) and expanded(name).exists() else name
