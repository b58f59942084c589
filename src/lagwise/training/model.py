"""The model of a recipe, built for its task."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from safetensors import safe_open
from transformers import PreTrainedModel, set_seed

from lagwise.data.tokenizers import tokenizer_folder
from lagwise.files import expanded
from lagwise.kernels import LagKernel
from lagwise.models import LagwiseConfig
from lagwise.models.configuration import field_types
from lagwise.models.loading import check_weights, read_config
from lagwise.models.memory import check_memory, check_step_memory
from lagwise.models.sharded import require_shards
from lagwise.tables import known
from lagwise.tasks import Task, TaskData
from lagwise.training.recipe import START, Recipe, merged

_FIELDS_OF_THE_DATA = ("label_mean", "label_std", "outputs", "threshold", "wide")
_OTHER_DATA = ("noise",)  # options of tasks that name data beside data.source
_BACKBONE_PREFIX = "model."  # of the backbone's weights in every head


def check_model(recipe: Recipe, task: Task) -> None:
    """Build the recipe's model without memory. ValueError for an unknown field, a value out of range, more parameters
    than the machine can train, or a training length that the model or one of its kernels does not support."""
    for name in _FIELDS_OF_THE_DATA:
        if name in recipe.model:
            raise ValueError(f"`{name}` follows from the data; leave it out")
    config = model_config(recipe, task, {"vocab_size": recipe.data.vocab_size})
    check_memory(task.head, config, training=True)
    task.check_config(config)
    limit = config.length_limit
    with torch.device("meta"):
        model: Any = task.head(config)
    if recipe.training.sequence_parallel > 1:
        require_shards(model)
    for option, length in task.lengths().items():
        if limit is not None and length > limit:
            raise ValueError(f"{option} {length} is over the model's max_position_embeddings {limit}")
        for kernel in model.modules():
            if isinstance(kernel, LagKernel) and (kernel.max_length or length) < length:
                raise ValueError(f"{option} {length} is over the kernel's max_length {kernel.max_length}")


def build_model(recipe: Recipe, data: TaskData, rows: int | None = None) -> PreTrainedModel:
    """Build the recipe's model for the data of a task, by its `config_for_data`, freshly initialised or with the
    backbone of the run that ``init_from`` names. ValueError if they do not fit, or if training ``rows`` together needs
    more memory than there is."""
    options, config = recipe.training, config_for_data(recipe, data)
    data.task.check_config(config)
    if rows is not None:
        longest = -(-data.sizes(options.batch_size).longest // options.sequence_parallel)
        half = options.precision == "float16"
        check_step_memory(
            data.task.head, config, rows, longest, checkpointing=options.gradient_checkpointing, float16=half
        )
    set_seed(options.seed)
    model: Any = data.task.head(config)
    data.check_model(model)
    if START in recipe.model:
        _take_backbone(model, Path(recipe.model[START]))
    return model


def config_for_data(recipe: Recipe, data: TaskData) -> LagwiseConfig:
    """Build the configuration for the data of a task. ValueError if the model has fewer tokens than the tokenizer."""
    fields = data.fields()
    size, tokens = (each.get("vocab_size", 0) for each in (recipe.model, fields))
    if isinstance(size, int) and 0 < size < tokens:
        hint = "; a run without a mask token cannot start one with masked tokens" if START in recipe.model else ""
        raise ValueError(f"the model's vocab_size {size} is less than the tokenizer's {tokens}{hint}")
    return model_config(recipe, data.task, fields)


def model_config(recipe: Recipe, task: Task, fields: dict[str, Any]) -> LagwiseConfig:
    """Build the configuration from the fields of the recipe, which take precedence, and those of the task and the data.
    ValueError for unknown fields."""
    own, others = own_fields(recipe), {**task.fields(), **fields}
    for name in own:
        known(name, field_types(), "key in model")
    merged: dict[str, Any] = {**others, **own}
    of_data = others.get("inputs")
    if isinstance(of_data, dict):
        if merged.get("causal", True):  # a row's own scale depends on its later samples
            of_data = {name: value for name, value in of_data.items() if name != "by_row"}
        inputs = own.get("inputs", of_data)
        if isinstance(inputs, dict) and inputs.get("name") == of_data["name"]:
            merged["inputs"] = {**of_data, **inputs}
    return LagwiseConfig(**merged)


def own_fields(recipe: Recipe) -> dict[str, Any]:
    """Return the fields of `LagwiseConfig` that a recipe gives."""
    return {name: value for name, value in recipe.model.items() if name != START}


def rooted(recipe: Recipe) -> Recipe:
    """Make local paths of a recipe absolute, so that its run is valid from any folder."""

    def whole(name: Any) -> Any:  # of an existing file or folder; other names, such as those of hubs, are unchanged
        return str(expanded(name).resolve()) if isinstance(name, str) and expanded(name).exists() else name

    data, folder = recipe.data, tokenizer_folder(recipe.data.tokenizer)
    source = data.source if data.source == "stdlib" else whole(data.source)
    tokenizer = data.tokenizer if folder is None else whole(data.tokenizer)
    task = {name: whole(value) if name in _OTHER_DATA else value for name, value in recipe.task.items()}
    model = {name: whole(value) if name == START else value for name, value in recipe.model.items()}
    return replace(recipe, task=task, model=model, data=replace(data, source=source, tokenizer=tokenizer))


def with_start(recipe: Recipe) -> Recipe:
    """Complete a recipe that starts from another run (`rooted`): that model's fields where the recipe sets none (for a
    block without a name, its options), and its tokenizer. Fields that describe that model's data are not taken, and of
    series their stride only if the recipe leaves it open."""
    if START not in recipe.model:
        return recipe
    folder = Path(str(recipe.model[START]))
    if not (folder / "config.json").is_file():
        raise FileNotFoundError(f"`init_from` must be the folder of a trained run, got {str(folder)!r}")
    check_weights(folder)
    saved = read_config(folder).to_dict()
    others = {name for name in saved if name in _FIELDS_OF_THE_DATA or name.endswith("_token_id")}
    fields = {name: saved[name] for name in field_types() if name in saved and name not in others}
    if isinstance(fields.get("inputs"), dict) and fields["inputs"].get("name") == "values":
        fields["inputs"] = {"name": "values"}
    options = recipe.data
    if (folder / "tokenizer_config.json").is_file():
        options = replace(options, tokenizer=str(folder))
    task, inputs = recipe.task, saved.get("inputs")
    if "stride" in task and task["stride"] is None and isinstance(inputs, dict) and "stride" in inputs:
        task = {**task, "stride": inputs["stride"]}
    own = dict(recipe.model)
    if isinstance(own.get("block"), dict) and "name" not in own["block"]:
        own["block"] = merged(fields["block"], own["block"])
    return replace(recipe, task=task, model={**fields, **own}, data=options)


def _take_backbone(model: PreTrainedModel, folder: Path) -> None:
    """Load the weights of another run's backbone. ValueError if a weight is missing or has another shape."""
    backbone = model.base_model
    own = {name: tuple(value.shape) for name, value in backbone.state_dict().items()}
    with safe_open(folder / "model.safetensors", "pt") as file:
        names = [name for name in file.keys() if name.startswith(_BACKBONE_PREFIX)]  # noqa: SIM118 (not a mapping)
        weights = {name.removeprefix(_BACKBONE_PREFIX): file.get_tensor(name) for name in names}
    wrong = sorted(name for name in own if name not in weights or tuple(weights[name].shape) != own[name])
    wrong += sorted(weights.keys() - own.keys())
    if wrong:
        architecture = json.loads((folder / "config.json").read_text(encoding="utf-8")).get("architectures", ["?"])[0]
        raise ValueError(
            f"`init_from` {str(folder)!r} ({architecture}) has no weights that fit {len(wrong)} parts of this "
            f"model, such as {wrong[0]}; leave the model, and of series the stride and the features, as they are there"
        )
    backbone.load_state_dict(weights, strict=False)
