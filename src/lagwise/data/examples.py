"""Training examples: windows of a text, sequences whose length changes from step to step, and random changes."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import lru_cache
from typing import Any

import numpy as np
import torch
from torch.utils.data import Dataset


@lru_cache(maxsize=4)
def epoch_order(count: int, *seed: int) -> np.ndarray:
    """A random order of so many things, which is kept for the rest of an epoch."""
    return np.random.default_rng(seed).permutation(count)


class ChangedExamples(Dataset):
    """Data set of examples changed at random by a function of an example and a generator: example i depends only on
    (examples, seed, i), whenever it is read."""

    def __init__(
        self, examples: Any, change: Callable[[Any, np.random.Generator], dict[str, torch.Tensor]], *seed: int
    ):
        self.examples, self.change, self.seed = examples, change, seed

    def __len__(self) -> int:
        return len(self.examples)

    def __getitem__(self, index: int) -> dict[str, torch.Tensor]:
        return self.change(self.examples[index], np.random.default_rng((*self.seed, index)))


class ScheduledExamples(Dataset):
    """A data set of the training examples of ``steps`` steps of ``rows`` sequences, all sequences of a step having one
    length, drawn from ``lengths`` (TCNCA app. F). A length that is listed twice is drawn twice as often.

    Example i depends only on (data, lengths, rows, seed, i). Each length has its own epochs, so every length covers the
    text evenly. data: has ``training_examples(length, count, seed)`` as `TokenData`, whose errors it raises.
    """

    def __init__(self, data: Any, lengths: Sequence[int], rows: int, steps: int, seed: int):
        self.rows = rows
        random = np.random.default_rng((seed, len(lengths)))
        self.lengths = np.asarray(lengths)[random.integers(0, len(lengths), steps)]
        self.turns = np.empty(steps, dtype=np.int64)  # number of earlier steps of the same length
        self.examples: dict[int, Dataset] = {}
        for length in sorted(set(lengths)):
            steps_of_it = np.flatnonzero(self.lengths == length)
            self.turns[steps_of_it] = np.arange(len(steps_of_it))
            self.examples[length] = data.training_examples(length, len(steps_of_it) * rows, seed)

    def __len__(self) -> int:
        return len(self.lengths) * self.rows

    def __getitem__(self, index: int) -> dict[str, torch.Tensor]:
        step, row = divmod(index, self.rows)
        return self.examples[int(self.lengths[step])][int(self.turns[step]) * self.rows + row]


class TrainingWindows(Dataset):
    """A data set of ``count`` training examples: windows of ``length`` tokens, every window once an epoch, in random
    order.

    Example i depends only on (tokens, length, seed, i), so a resumed run and any number of processes see the same
    examples. Each epoch starts its windows at another offset. ValueError if the tokens do not fill one window.

    >>> windows = TrainingWindows(np.arange(100), length=10, count=20, seed=0)
    >>> len(windows), windows[0]["input_ids"].shape
    (20, torch.Size([10]))
    """

    def __init__(self, tokens: np.ndarray, length: int, count: int, seed: int):
        if len(tokens) < length:
            raise ValueError(
                f"the training text has {len(tokens)} tokens, fewer than one sequence of {length}; "
                "give more text or a smaller `length`"
            )
        self.tokens, self.length, self.count, self.seed = tokens, length, count, seed
        self.per_epoch = max(1, len(tokens) // length - 1)

    def __len__(self) -> int:
        return self.count

    def __getitem__(self, index: int) -> dict[str, torch.Tensor]:
        epoch, position = divmod(index, self.per_epoch)
        start = int(_starts(len(self.tokens), self.length, self.per_epoch, self.seed, epoch)[position])
        ids = torch.from_numpy(self.tokens[start : start + self.length].astype(np.int64))
        return {"input_ids": ids, "labels": ids}


@lru_cache(maxsize=32)  # of all lengths that steps draw
def _starts(tokens: int, length: int, count: int, *seed: int) -> np.ndarray:
    """Where the windows of an epoch begin, in their order."""
    random = np.random.default_rng(seed)
    return random.integers(0, tokens - count * length + 1) + length * random.permutation(count)
