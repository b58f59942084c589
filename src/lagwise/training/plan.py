"""How much memory a training takes on every device, before there is one."""

from __future__ import annotations

import copy
import weakref
from typing import Any

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from lagwise.models import LagwiseConfig
from lagwise.models.memory import parameter_count
from lagwise.ops.toeplitz.spectral import all_channels_at_once
from lagwise.training.folder import make_task
from lagwise.training.model import model_config
from lagwise.training.recipe import Recipe

_MEASURED = 4096  # tokens at most, and half as many: beyond, memory is taken to grow in proportion


def memory_plan(recipe: Recipe, processes: int) -> list[tuple[str, int]]:
    """The bytes that one of so many processes needs, by what they are for; the sum comes last.

    The memory of activations, with what operations need while they run, is the most that there is at a time in training
    steps of one and two layers of the recipe's widths, on some tokens of one row, and is taken to grow with layers and
    tokens as between these steps. Spectra are those of all channels at once, as on GPUs.

    Args:
        recipe: What to train. Its data are not read. A ``training.precision`` of ``auto`` is taken for bfloat16, which
            it is on GPUs.
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
    low = options.precision != "float32"
    measured = []
    for number in (1, 2):
        model: Any = task.model_class(_with_layers(config, number))
        if options.gradient_checkpointing:
            model.gradient_checkpointing_enable()
        measured.append(_step_bytes(model, tokens, low))
    each = measured[1] - measured[0]
    plan.append(("activations", rows * (measured[0] + (layers - 1) * each)))
    return [*plan, ("together", sum(size for _, size in plan))]


def _step_bytes(model: Any, tokens: int, low: bool) -> int:
    """`_measured_bytes`, without running more than `_MEASURED` tokens."""
    few = min(tokens, _MEASURED)
    most = _measured_bytes(model, few, low)
    if tokens == few:
        return most
    return most + (tokens - few) * max(0, most - _measured_bytes(model, few // 2, low)) // (few - few // 2)


class _Living(TorchDispatchMode):
    """The bytes of tensors that operations make, and the most that there are at a time."""

    def __init__(self) -> None:
        super().__init__()
        self.now = self.most = 0
        self.known: weakref.WeakSet[Any] = weakref.WeakSet()

    def __torch_dispatch__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        found = function(*args, **(kwargs or {}))
        for each in tree_leaves(found):
            if isinstance(each, Tensor) and (storage := each.untyped_storage()) not in self.known:
                self.known.add(storage)
                self.now += storage.nbytes()
                weakref.finalize(storage, self._freed, storage.nbytes())
        self.most = max(self.most, self.now)
        return found

    def _freed(self, size: int) -> None:
        self.now -= size


def _measured_bytes(model: Any, tokens: int, low: bool) -> int:
    """The most bytes of tensors, other than weights and their gradients, in a training step of one row of tokens."""
    ids, living = torch.zeros(1, tokens, dtype=torch.long), _Living()
    for weight in model.parameters():
        weight.grad = torch.zeros_like(weight)
        living.known.update((weight.untyped_storage(), weight.grad.untyped_storage()))
    with living, all_channels_at_once():
        with torch.autocast("cpu", dtype=torch.bfloat16, enabled=low):
            loss = model.train()(input_ids=ids, labels=ids, skip_logits=True).loss
        loss.backward()
    return living.most


def _with_layers(config: LagwiseConfig, count: int) -> LagwiseConfig:
    config = copy.deepcopy(config)
    config.num_hidden_layers = count
    return config
