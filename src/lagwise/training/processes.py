"""Several processes that train together, and how they share the batch and its sequences."""

from __future__ import annotations

from typing import Any, TypeVar

import torch.distributed as dist
from accelerate import PartialState
from torch import Tensor
from torch.utils.data import Dataset

from lagwise.models.loading import default_device
from lagwise.process import group_size

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


class SharedRows(Dataset):
    """A data set that repeats every batch once for each process that shares it: the Trainer gives batches to the
    processes in turn. The last batch is filled up with its last row."""

    def __init__(self, rows: Any, batch: int, count: int):
        self.rows, self.batch, self.count = rows, batch, count

    def __len__(self) -> int:
        return -(-len(self.rows) // self.batch) * self.batch * self.count

    def __getitem__(self, index: int) -> Any:
        batch, position = divmod(index, self.batch)
        return self.rows[min(batch // self.count * self.batch + position, len(self.rows) - 1)]


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
