"""Several processes that train together: how they share the batch and its sequences, and how they were started."""

from __future__ import annotations

import os
import warnings
from typing import Any, TypeVar

import torch.distributed as dist
from accelerate import PartialState
from torch import Tensor
from torch.utils.data import Dataset

from lagwise.models.loading import default_device
from lagwise.process import group_size, is_first
from lagwise.tasks import Task
from lagwise.training.recipe import Recipe

_Choice = TypeVar("_Choice", bool, float)


def processes() -> PartialState:
    """Return accelerate's state of this process. On a CPU, every process would take itself for the only one unless it
    is told to use the CPU."""
    if group_size() > 1 and default_device().type == "cpu":
        return PartialState(cpu=True, backend="gloo")
    return PartialState()


def of_first_process(choice: _Choice) -> _Choice:
    """Return the choice of the first process in all processes, which must call this together. Their processors may
    differ, but processes that choose differently do not keep the same weights."""
    if not (dist.is_available() and dist.is_initialized()):
        return choice
    choices = [choice]
    dist.broadcast_object_list(choices, src=0)
    return choices[0]


def micro_batch_size(recipe: Recipe) -> int:
    """Divide the batch: the rows of one process's micro-batch. ValueError if it cannot be divided."""
    options, world = recipe.training, group_size()
    groups, left = divmod(world, options.sequence_parallel)
    if left or not groups:
        raise ValueError(
            f"`sequence_parallel` must divide the number of processes, got {options.sequence_parallel} for "
            f"{world}; start {options.sequence_parallel} processes or a multiple, for example with torchrun"
        )
    if options.batch_size % (groups * options.accumulate):
        raise ValueError(
            f"`batch_size` must be a multiple of processes"
            f"{' (groups of them)' if options.sequence_parallel > 1 else ''} times `accumulate`, got "
            f"{options.batch_size} for {groups} * {options.accumulate}"
        )
    return options.batch_size // (groups * options.accumulate)


class SharedRows(Dataset):
    """A data set that repeats every batch once for each process that shares it: the Trainer gives batches to the
    processes in turn. The last batch is filled up with its last row."""

    def __init__(self, rows: Any, batch: int, count: int):
        self.rows, self.batch, self.count = rows, batch, count

    def __len__(self) -> int:
        return -(-len(self.rows) // self.batch) * self.batch * self.count

    def __getitem__(self, index: int) -> Any:
        batch, place = divmod(index, self.batch)
        return self.rows[min(batch // self.count * self.batch + place, len(self.rows) - 1)]


class Sharing:
    """The group of processes, with neighbouring ranks, that share sequences with this process.

    Args:
        count: Number of processes that share a sequence.
        rows: Number of rows of an evaluation.
        batch: Number of rows in a process's evaluation batches.
    """

    def __init__(self, count: int, rows: int, batch: int):
        self.count, self.rows, self.batch = count, rows, batch
        self.group: Any = dist.new_subgroups(group_size=count)[0]

    def shard(self, inputs: dict[str, Any]) -> dict[str, Any]:
        """Cut this process's shard out of a batch of whole rows."""
        length, rank = max(t.shape[1] for t in inputs.values() if t.dim() > 1), dist.get_rank(self.group)
        own = slice(length * rank // self.count, length * (rank + 1) // self.count)
        return {
            name: t[:, own].contiguous() if isinstance(t, Tensor) and t.dim() > 1 and t.shape[1] == length else t
            for name, t in inputs.items()
        }

    def real_rows(self, number: int) -> int:
        """Count the rows of this process's evaluation batch ``number`` that do not only fill it up."""
        batch = (number * dist.get_world_size() + dist.get_rank()) // self.count
        return min(max(self.rows - batch * self.batch, 0), self.batch)


def check_shared(task: Task, count: int) -> None:
    """ValueError unless ``count`` processes can share the sequences of a task."""
    if count == 1:
        return
    if "sequence_parallel" not in task.supports:
        raise ValueError(
            f"`sequence_parallel` is for language modelling and masked language modelling, got task "
            f"{type(task).__name__}"
        )
    if (length := min(task.lengths().values())) < count:
        raise ValueError(f"`sequence_parallel` {count} is more than `length`, {length} tokens")


def check_sharing() -> None:
    """ValueError if `accelerate launch` was told to split sequences or weights between processes."""
    if os.environ.get("ACCELERATE_USE_PARALLELISM_CONFIG", "false").lower() != "true":
        return
    for short, split in (("tp", "weights (tensor"), ("cp", "sequences (context"), ("sp", "sequences (sequence")):
        size = os.environ.get(f"PARALLELISM_CONFIG_{short.upper()}_SIZE", "1")
        if size != "1":
            raise ValueError(
                f"processes share the batch, but are to share {split} parallelism), by {short}_size={size}; launch "
                f"without --parallelism_config_{short}_size"
            )


def check_restarts() -> None:
    """Warn if torchrun may restart processes that would then find the addresses of the processes before them (PyTorch
    2.13, pytorch#135712)."""
    may_restart = os.environ.get("TORCHELASTIC_MAX_RESTARTS", "0") != "0"
    if may_restart and is_first() and os.environ.get("TORCH_DISABLE_SHARE_RDZV_TCP_STORE") != "1":
        warnings.warn(
            "processes that torchrun starts again may wait for those before them without end: start torchrun with "
            "TORCH_DISABLE_SHARE_RDZV_TCP_STORE=1 in its environment",
            stacklevel=2,
        )
