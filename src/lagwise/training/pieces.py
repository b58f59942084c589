"""Trainings in which several processes share every sequence (`training.sequence_parallel`)."""

from __future__ import annotations

from typing import Any

import torch.distributed as dist
from torch import Tensor
from torch.utils.data import Dataset

from lagwise.tasks import Task


class SharedRows(Dataset):
    """The rows of a data set in batches, each as often as processes share it, one after the other: the Trainer gives
    the batches to the processes in turn. The last batch is filled up with its last row."""

    def __init__(self, rows: Any, batch: int, count: int):
        self.rows, self.batch, self.count = rows, batch, count

    def __len__(self) -> int:
        return -(-len(self.rows) // self.batch) * self.batch * self.count

    def __getitem__(self, index: int) -> Any:
        batch, place = divmod(index, self.batch)
        return self.rows[min(batch // self.count * self.batch + place, len(self.rows) - 1)]


class Sharing:
    """How this process shares sequences with those of neighbouring ranks.

    Args:
        count: Processes that share a sequence.
        rows: Of an evaluation.
        batch: Rows of a process's batches in evaluation.
    """

    def __init__(self, count: int, rows: int, batch: int):
        self.count, self.rows, self.batch = count, rows, batch
        self.group: Any = dist.new_subgroups(group_size=count)[0]

    def piece(self, inputs: dict[str, Any]) -> dict[str, Any]:
        """This process's piece of a batch of whole rows."""
        length, rank = max(t.shape[1] for t in inputs.values() if t.dim() > 1), dist.get_rank(self.group)
        own = slice(length * rank // self.count, length * (rank + 1) // self.count)
        return {
            name: t[:, own].contiguous() if isinstance(t, Tensor) and t.dim() > 1 and t.shape[1] == length else t
            for name, t in inputs.items()
        }

    def real_rows(self, number: int) -> int:
        """Rows of this process's batch of this number, in evaluation, that do not only fill it up."""
        batch = (number * dist.get_world_size() + dist.get_rank()) // self.count
        return min(max(self.rows - batch * self.batch, 0), self.batch)


def check_shared(task: Task, count: int) -> None:
    """ValueError unless ``count`` processes may share the sequences of a task."""
    if count == 1:
        return
    if not task.splits:
        raise ValueError(
            f"`sequence_parallel` is for language modelling and masked language modelling, got task "
            f"{type(task).__name__}"
        )
    if (length := min(task.lengths().values())) < count:
        raise ValueError(f"`sequence_parallel` {count} is more than `length`, {length} tokens")
