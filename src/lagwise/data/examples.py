"""Training examples: sequences whose length changes from step to step."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import lru_cache
from typing import Any, Protocol

import numpy as np
import torch
from torch.utils.data import Dataset


class Sequences(Protocol):
    """A source of training sequences of any length: text as token files (`TokenData`), or a generator."""

    def training_examples(self, length: int, count: int, seed: int) -> Dataset:
        """Return a data set of sequences of ``length`` tokens; example i depends only on the data, length, seed and
        i."""
        ...


@lru_cache(maxsize=4)
def epoch_order(count: int, *seed: int) -> np.ndarray:
    """A random order of so many things, which is kept for the rest of an epoch."""
    return np.random.default_rng(seed).permutation(count)


class ChangedExamples(Dataset):
    """Examples, each changed at random: example i depends only on (examples, seed, i), whenever it is read.

    change: a function of an example and a random generator.
    """

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
    text evenly. Errors as `Sequences.training_examples`.
    """

    def __init__(self, data: Sequences, lengths: Sequence[int], rows: int, steps: int, seed: int):
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
