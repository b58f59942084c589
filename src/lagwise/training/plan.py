"""How much memory a training takes on every device, before there is one."""

from __future__ import annotations

import copy
from typing import Any

import torch
from torch import Tensor, nn

from lagwise.models import LagwiseConfig
from lagwise.models.memory import parameter_count
from lagwise.training.folder import make_task
from lagwise.training.hardware import bfloat16_is_fast
from lagwise.training.model import model_config
from lagwise.training.recipe import Recipe

_MEASURED = 4096  # tokens at most, and half as many: beyond, what a layer keeps is taken to grow in proportion


def memory_plan(recipe: Recipe, processes: int) -> list[tuple[str, int]]:
    """The bytes that one of so many processes needs, by what they are for; the sum comes last.

    What a layer keeps for the backward pass is measured, in layers of the recipe's widths on some tokens, and taken to
    grow with their number as between the measurements. What operations need while they run is not counted.

    Args:
        recipe: What to train. Its data are not read.
        processes: How many there will be.

    Raises:
        ValueError: If they cannot divide the batch or the sequences.
    """
    options, task = recipe.training, make_task(recipe)
    groups, left = divmod(processes, options.sequence_parallel)
    if left or not groups or options.batch_size % (groups * options.accumulate):
        raise ValueError(
            f"training.batch_size {options.batch_size} cannot be divided between {processes} processes with "
            f"training.sequence_parallel {options.sequence_parallel} and training.accumulate {options.accumulate}"
        )
    config = model_config(recipe, task, {"vocab_size": recipe.data.vocab_size})
    if config.input_name != "tokens":
        raise ValueError(f"a plan is for models of tokens, got inputs={config.inputs!r}")
    rows = options.batch_size // (groups * options.accumulate)
    tokens = -(-recipe.data.length // options.sequence_parallel)
    layers, parameters = config.num_hidden_layers, parameter_count(task.model_class, config)
    held = -(-parameters // processes) if options.shard else parameters
    plan = [("weights", 4 * held), ("gradients", 4 * held), ("optimiser", 8 * held)]
    if options.average:
        plan.append(("average", 4 * held))
    if options.shard:  # the layer that runs, the next one, and what is outside of layers
        layer = parameters - parameter_count(task.model_class, _with_layers(config, layers - 1)) if layers > 1 else 0
        plan.append(("gathered weights", 4 * (parameters - layer * max(0, layers - 2))))
    low = options.precision in ("bfloat16", "float16") or (options.precision == "auto" and bfloat16_is_fast())
    one, two = (_activation_bytes(task.model_class(_with_layers(config, n)), tokens, low) for n in (1, 2))
    each, rest = two - one, max(0, 2 * one - two)
    if options.gradient_checkpointing:  # the inputs of all blocks, and what one keeps
        links = len((config.block or {}).get("blocks", [None]))
        each, rest = links * 4 * config.hidden_size * tokens, rest + each // links
    plan.append(("activations", rows * (layers * each + rest)))
    return [*plan, ("together", sum(size for _, size in plan))]


def _activation_bytes(model: nn.Module, tokens: int, low: bool) -> int:
    """`_measured_bytes`, without running more than `_MEASURED` tokens."""
    few = min(tokens, _MEASURED)
    most = _measured_bytes(model, few, low)
    if tokens == few:
        return most
    return most + (tokens - few) * (most - _measured_bytes(model, few // 2, low)) // (few - few // 2)


def _measured_bytes(model: nn.Module, tokens: int, low: bool) -> int:
    """Bytes of tensors, other than weights, that one row of tokens keeps for the backward pass."""
    own = {p.untyped_storage().data_ptr() for p in model.parameters()}
    sizes: dict[int, int] = {}
    held: list[Any] = []

    def keep(tensor: Tensor) -> Tensor:
        storage = tensor.untyped_storage()
        if storage.data_ptr() not in own:
            sizes[storage.data_ptr()] = storage.nbytes()
            held.append(storage)  # so that no other tensor gets its place
        return tensor

    ids = torch.zeros(1, tokens, dtype=torch.long)
    with (
        torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor),
        torch.autocast("cpu", dtype=torch.bfloat16, enabled=low),
    ):
        model.train()(input_ids=ids, labels=ids, skip_logits=True)
    return sum(sizes.values())


def _with_layers(config: LagwiseConfig, count: int) -> LagwiseConfig:
    config = copy.deepcopy(config)
    config.num_hidden_layers = count
    return config
