"""Recipes: the task, model, data and training of a run, in a YAML file that is checked key by key."""

from __future__ import annotations

import copy
import dataclasses
import itertools
import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import field
from importlib import resources
from importlib.resources.abc import Traversable
from typing import Annotated, Any

import yaml
from pydantic import Field

from lagwise.data.options import AUTO, DataOptions, upgraded
from lagwise.files import expanded, one_line
from lagwise.models.presets import GRID_PRESETS, PRESETS
from lagwise.outside import Registry
from lagwise.tables import Count, Number, Share, Switch, Whole, checked, known, option_names, options, refuse, shown

_LENGTHS = ("training.steps", "training.epochs", "training.minutes")  # keys, each of which says how long to train
REDUCE_OVERHEAD = "reduce-overhead"  # a mode of `torch.compile`
_WORDS: dict[str, tuple[Any, ...]] = {  # values of options of the training
    "schedule": ("inverse_sqrt", "polynomial", "cosine", "linear", "constant_with_warmup"),
    "optimizer": ("adamw", "muon"),
    "select": ("last", "best"),
    "first_answer": ("none", "compare", "only"),
    "precision": ("auto", "float32", "bfloat16", "float16"),
    "compile": (AUTO, False, True, REDUCE_OVERHEAD),
}
LINEAR = "linear"  # the word for a first answer alone; other words name a model that is trained alone
DEFAULT_RECIPE = "best-lm"
MAX_STEPS = 10**8  # the lengths of all steps are drawn in advance
MAX_WORKERS = 128  # each is a process with hundreds of megabytes
_FINAL_RATE = 1e-7  # learning rate at the end of the polynomial schedule, as in transformers
_MAX_BYTES = 2**20  # of a recipe file
_MAX_NODES, _MAX_DEPTH = 10_000, 50  # values with aliases expanded, and levels of nesting
START = "init_from"  # the key of a model that names a run to start from
_REPLACING = ("model", f"model.{START}")  # keys of what replaces the model
_PACKAGES = Registry("package of recipes", None, "lagwise.recipes", {"lagwise": "lagwise"})


@options
class TrainingOptions:
    """The options of training."""

    steps: Annotated[Count, Field(le=MAX_STEPS)] = 1000
    """Optimiser steps."""
    minutes: Annotated[Number, Field(gt=0)] | None = None
    """Length of the training on this machine, instead of steps: as many steps as fit, by the time of the first, with
    five evaluations and checkpoints."""
    epochs: Annotated[Number, Field(gt=0)] | None = None
    """Passes over the training data, instead of steps; may be a fraction."""
    least_steps: Annotated[Whole, Field(ge=0, le=MAX_STEPS)] = 0
    """Steps at least, where `epochs` of few rows are fewer. An override of `epochs` sets it to 0."""
    batch_size: Count = 8
    """Sequences per step, over all processes."""
    accumulate: Count = 1
    """Micro-batches per step, to save memory."""
    sequence_parallel: Count = 1
    """Processes that share every sequence, each with a shard of its tokens; 1: each process has whole sequences."""
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
    """Term of AdamW's denominator, beside the root of the second moment."""
    clip: Annotated[Number, Field(ge=0)] = 1.0
    """Largest gradient norm; 0 for none."""
    precision: str = "auto"
    """`auto` (bfloat16 where products in it are faster, otherwise float32), `float32`, `bfloat16`, or `float16` with
    scaled gradients, for NVIDIA GPUs without bfloat16."""
    tf32: Switch = False
    """Round the factors of float32 products to 10 bits (TF32), on NVIDIA GPUs since Ampere, where they are then several
    times as fast. Fourier transforms stay in float32."""
    compile: bool | str = AUTO
    """Compile the training step with `torch.compile`, which takes seconds to a minute for each of the first two lengths
    of rows. With `reduce-overhead` also launch it as CUDA graphs, one for each length of rows, on one NVIDIA GPU and
    without `accumulate`. `auto` does that for at least 5,000 steps on running text of one length, and compiles nothing
    otherwise. Evaluations are not compiled."""
    gradient_checkpointing: Switch = False
    """Recompute blocks in the backward pass, to save memory."""
    workers: Annotated[Whole, Field(ge=0, le=MAX_WORKERS)] = 0
    """Processes that prepare batches, such as augmented images; 0 prepares them between the steps."""
    seed: Annotated[Whole, Field(ge=0, lt=2**32)] = 0
    """Seed of the weights and of the order of the data."""
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
    """Task, model, data and training of a run."""

    description: str = ""
    """One line."""
    task: dict[str, Any] = field(default_factory=lambda: {"name": "language_modelling"})
    """A name from `lagwise.tasks.TASKS`, and its options."""
    model: dict[str, Any] = field(default_factory=dict)
    """Fields of `LagwiseConfig`, and perhaps init_from."""
    words: dict[str, dict[str, Any]] = field(default_factory=dict)
    """Fields of `LagwiseConfig` for a kind of model, by its word: what `model=WORD` sets beside the preset."""
    data: DataOptions = field(default_factory=DataOptions)
    """Data to train and evaluate on."""
    training: TrainingOptions = field(default_factory=TrainingOptions)
    """How to train."""

    def to_yaml(self) -> str:
        """The recipe as a file that `load_recipe` reads as the same recipe, with any overrides."""
        values = {name: value for name, value in dataclasses.asdict(self).items() if value or name != "words"}
        return yaml.safe_dump(values, sort_keys=False)

    def as_json(self) -> dict[str, Any]:
        """The recipe as JSON values, without the fields of other models."""
        values = json.loads(json.dumps(dataclasses.asdict(self)))
        del values["words"]
        return values


def recipe_names() -> list[str]:
    """List the recipes that come with lagwise, and with packages that declare an entry point of the group
    ``lagwise.recipes``: a package with a folder ``recipes``.

    >>> "tnn-lm" in recipe_names()
    True
    """
    return sorted(_recipe_files())


def _recipe_files() -> dict[str, Traversable]:
    files = (file for package in _PACKAGES.values() for file in (resources.files(package) / "recipes").iterdir())
    return {file.name.removesuffix(".yaml"): file for file in files if file.name.endswith(".yaml")}


def load_recipe(name: str = DEFAULT_RECIPE, overrides: Sequence[str] = ()) -> Recipe:
    """Load a recipe by name or YAML file, and apply ``section.key=value`` overrides.

    There are two rules. A preset replaces the recipe's model, and is applied first; every other override sets a key.

    - ``model=WORD`` replaces the block by a preset of `lagwise.models.presets` and sets the fields that the recipe's
      section ``words`` has for it, such as published sizes. Dropout, pooling and, for images, expansions stay; a chain
      of blocks becomes as many layers. It trains without a first answer (``training.first_answer=none``).
      ``model=linear`` trains no model, but fits the first answer alone (``training.first_answer=only``).
    - ``model.init_from=RUN`` replaces the whole model by that of another run.

    A ``name`` below ``model`` sets another block, mixer or kernel: the options of the part before it are dropped if the
    new part does not have them. Keys below ``model.block`` are checked when the model is built.

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
        if path.stat().st_size > _MAX_BYTES:
            raise ValueError(f"recipe {name!r} has {path.stat().st_size} bytes; a recipe has at most {_MAX_BYTES}")
        text = path.read_bytes()
    else:
        files = _recipe_files()
        text = files[known(name, files, "recipe")].read_bytes()
    values = parsed(text, f"recipe {name!r}") or {}
    if not isinstance(values, dict):
        raise ValueError(f"recipe {name!r} must be a mapping with sections, got {shown(values)}")
    values = upgraded({section: each for section, each in values.items() if each is not None})
    checked(Recipe, values, "a recipe")  # before overrides, which need its sections
    for word in values.get("words", ()):
        known(word, PRESETS, "word of a recipe")
    _check_overrides(overrides)
    settings = [_split(each) for each in overrides]
    # first what replaces the model, then the names of its parts
    for key, text in sorted(settings, key=lambda each: (each[0] not in _REPLACING, not each[0].endswith(".name"))):
        if key == "model":
            _use_preset(values, text)
        else:
            _set(values, key, text)
    recipe = checked(Recipe, values, "a recipe")
    _check(recipe)
    return recipe


def _check_overrides(overrides: Sequence[str]) -> None:
    """Raise ValueError for overrides that contradict one another."""
    keys = [override.partition("=")[0] for override in overrides]
    for one, other, why in (
        ("model.init_from", "model", "a run that is started from brings its own kind of model"),
        ("model.init_from", "data.tokenizer", "a run that is started from brings its own tokenizer"),
        ("model.init_from", "data.vocab_size", "a run that is started from brings its own tokenizer"),
        *((one, other, "both set how long to train") for one, other in itertools.combinations(_LENGTHS, 2)),
    ):
        if one in keys and other in keys:
            raise ValueError(f"give either {one} or {other}: {why}")


def _split(override: str) -> tuple[str, str]:
    """Split an override into its key and the text of its value. ValueError for a key that is not ``section.key``."""
    key, separator, text = override.partition("=")
    section, _, rest = key.partition(".")
    if separator and key == "model":
        return key, text
    if separator and rest:
        sections = [each.name for each in dataclasses.fields(Recipe) if each.name != "words"]
        known(section, sections, "section of a recipe")
        return key, text
    near = setting(key)
    hint = f"; did you mean {near}=...?" if near else f" (see 'lagwise recipes {DEFAULT_RECIPE}' for the keys)"
    raise ValueError(f"an override is written section.key=value, got {shown(override)}{hint}")


def _set(values: dict[str, Any], key: str, text: str) -> None:
    """Set a key of a recipe, and remove what the new value excludes."""
    if key in _REPLACING:
        values["model"] = _task_settings(values)
        values["data"] = {k: v for k, v in values.get("data", {}).items() if k not in ("tokenizer", "vocab_size")}
    excluded = ("epochs", "minutes", "least_steps" if key == "training.epochs" else "") if key in _LENGTHS else ()
    *path, last = key.split(".")
    _refuse_part_of_a_chain(values, key)
    override, section = f"{key}={text}", values
    for part in path:
        if section.get(part) is None:  # a section without content
            section[part] = {}
        section = section[part]
        if not isinstance(section, dict):
            raise ValueError(f"in override {shown(override)}, {part!r} is a value, not a section")
    value = parsed(text, f"in override {shown(override)}, the value")
    if value is None and text.strip().lower() not in ("null", "~"):
        raise ValueError(f"override {shown(override)} has no value; write {key}=null for none")
    for other in excluded:
        section.pop(other, None)
    section[last] = value
    if last == "name" and path[0] == "model":
        _drop_options(section, path[-1], value)


def setting(name: str) -> str | None:
    """Return the key of a recipe that sets an option, such as ``training.steps`` for ``steps``; None if there is
    none."""
    if name in ("model", START):
        return "model" if name == "model" else f"model.{name}"
    for section, cls in (("data", DataOptions), ("training", TrainingOptions)):
        if name in {each.name for each in dataclasses.fields(cls)}:
            return f"{section}.{name}"
    from lagwise.models.configuration import field_types  # which load PyTorch
    from lagwise.tasks import TASKS

    if any(name in option_names(task) for task in TASKS.values()):
        return f"task.{name}"
    return f"model.{name}" if name in field_types() else None


def _refuse_part_of_a_chain(values: Mapping[str, Any], key: str) -> None:
    """Raise ValueError for a key below ``model.block`` if the model is a chain of several blocks."""
    block = values.get("model", {}).get("block")
    inner = key.removeprefix("model.block.")
    if isinstance(block, dict) and block.get("name") == "chain" and inner not in (key, "name", "blocks"):
        raise ValueError(
            f"{key} cannot be set, because the layers of this recipe differ (block 'chain'); take a recipe of equal "
            "layers, such as tnn-lm, or another model, such as model=tnn"
        )


def _use_preset(values: dict[str, Any], word: str) -> None:
    """Merge a preset into the recipe's model, then the settings that stay, then what the recipe's ``words`` set."""
    known(word, [*PRESETS, LINEAR], "model")
    values["training"] = {**values.get("training", {}), "first_answer": "only" if word == LINEAR else "none"}
    if word == LINEAR:
        return
    old = values.get("model", {})
    inputs = old.get("inputs")
    of_images = (inputs.get("name") if isinstance(inputs, dict) else inputs) == "patches"
    preset = copy.deepcopy((PRESETS | GRID_PRESETS if of_images else PRESETS)[word])
    own = values.get("words", {}).get(word, {})
    plain = {name: value for name, value in old.items() if name != "norm"}
    settings = _task_settings(values, preset["block"] if of_images else {})
    values["model"] = merged(plain, preset, settings, _depth(old), own)


def merged(first: Mapping[str, Any], *others: Mapping[str, Any]) -> dict[str, Any]:
    """Merge mappings of a model's fields, or a part's options, from left to right. A part with a ``name`` replaces the
    part before it; without one, its options are set in that part."""
    result = dict(first)
    for name, value in ((name, value) for other in others for name, value in other.items()):
        before = result.get(name)
        inner = isinstance(value, dict) and "name" not in value and isinstance(before, dict)
        result[name] = merged(before, value) if inner else value
    return result


def _drop_options(part: dict[str, Any], kind: str, name: Any) -> None:
    """Drop the options of a part of the model that a part of another name does not have."""
    from lagwise.blocks import BLOCKS, CHANNEL_MIXERS
    from lagwise.kernels import KERNELS
    from lagwise.mixers import MIXERS

    mixers = dict.fromkeys(("token_mixer", "memory"), MIXERS)
    new = {"block": BLOCKS, "channel_mixer": CHANNEL_MIXERS, "kernel": KERNELS, **mixers}.get(kind, {}).get(name)
    if new is not None:
        for option in part.keys() - {"name", *option_names(new)}:
            del part[option]


def _depth(model: Mapping[str, Any]) -> dict[str, Any]:
    """Return the number of layers of a model, counting each block of a chain."""
    block, repeated = model.get("block"), model.get("num_hidden_layers")
    blocks = block.get("blocks") if isinstance(block, dict) and block.get("name") == "chain" else None
    counted = isinstance(blocks, list) and isinstance(repeated, int)
    return {"num_hidden_layers": repeated * len(blocks)} if counted else {}


def _task_settings(values: Mapping[str, Any], widths: Mapping[str, Any] | None = None) -> dict[str, Any]:
    """The fields of a recipe's model that stay with another model: dropout, pooling and the classifier's layers.
    widths: a block whose mixers keep the expansion of the recipe's mixers of the same name."""
    model = values.get("model", {})
    names = ("embedding_dropout", "classifier_dropout", "classifier_hidden_size", "pooling")
    settings: dict[str, Any] = {name: value for name, value in model.items() if name in names}
    block: Any = model["block"] if isinstance(model.get("block"), dict) else {}
    same = {name: block[name] for name in ("dropout",) if name in block}  # every block has a dropout
    for part, mixer in (widths or {}).items():
        before = block.get(part)
        if isinstance(mixer, dict) and isinstance(before, dict) and mixer["name"] == before.get("name"):
            same[part] = {name: before[name] for name in ("expansion",) if name in before}
    return settings | ({"block": same} if same else {})


def _check(recipe: Recipe) -> None:
    data, training = recipe.data, recipe.training
    for name, words in _WORDS.items():
        known(getattr(training, name), words, f"training.{name}")
    refuse(
        (recipe.task.get("name") is None, f"task must be a mapping with a 'name', got {recipe.task!r}"),
        (data.source is not None and not data.source.strip(), "data.source must not be empty"),
        (not data.tokenizer.strip(), "data.tokenizer must not be empty"),
        (data.lengths == [], "data.lengths must be integers of at least 2, got []"),
        (
            data.lengths and data.length != max(data.lengths),
            f"data.length must be the largest of data.lengths {data.lengths}, got {data.length}",
        ),
        (
            training.schedule == "polynomial" and training.learning_rate <= _FINAL_RATE,
            f"training.learning_rate must be over {_FINAL_RATE:g}, with which the polynomial schedule ends, got "
            f"{training.learning_rate:g}",
        ),
        (
            training.batch_size % training.accumulate,
            f"training.accumulate must divide training.batch_size, got {training.accumulate} and {training.batch_size}",
        ),
    )


class _Loader(yaml.SafeLoader):
    """A YAML loader without octal numbers such as 010 (8) and sexagesimal numbers such as 1:30 (90)."""


_INTEGER = "tag:yaml.org,2002:int"
_Loader.yaml_implicit_resolvers = {
    first: [pair for pair in pairs if pair[0] != _INTEGER]
    for first, pairs in yaml.SafeLoader.yaml_implicit_resolvers.items()
}
_Loader.add_implicit_resolver(_INTEGER, re.compile(r"[-+]?(0|[1-9][0-9_]*)$"), list("-+0123456789"))


def parsed(text: bytes | str, subject: str) -> Any:
    """Parse YAML as plain values. ValueError unless it is valid and of moderate size after expanding aliases."""
    try:
        loader = _Loader(text)
        root = loader.get_single_node()
        _check_size(root)
        return None if root is None else loader.construct_document(root)
    except (yaml.YAMLError, ValueError, RecursionError, LookupError, TypeError, AttributeError) as error:
        raise ValueError(f"{subject} is not valid YAML: {one_line(error)}") from error


def _check_size(root: yaml.Node | None) -> None:
    """Raise ValueError for a large or deep document, or a key that occurs twice, of which YAML's readers drop one
    value. An alias counts as the node it refers to, because a few lines of aliases can expand to any size, or contain
    themselves."""
    waiting, count = [(root, 1)], 0
    while waiting:
        node, depth = waiting.pop()
        count += 1
        if count > _MAX_NODES or depth > _MAX_DEPTH:
            raise ValueError(f"it has over {_MAX_NODES} values, aliases written out, or is over {_MAX_DEPTH} deep")
        parts: list[yaml.Node] = list(node.value) if isinstance(node, yaml.SequenceNode) else []
        keys: dict[str, yaml.Node] = {}
        for key, value in node.value if isinstance(node, yaml.MappingNode) else ():
            if isinstance(key, yaml.ScalarNode) and keys.setdefault(key.value, key) is not key:
                raise ValueError(f"{key.value!r} occurs twice, again in line {key.start_mark.line + 1}")
            parts += [key, value]
        waiting += ((part, depth + 1) for part in parts)
