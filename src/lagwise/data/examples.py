"""Sequences whose length changes from step to step."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

import numpy as np
import torch
from torch.utils.data import Dataset


class Sequences(Protocol):
    """A source of training sequences of any length: text as token files (`TokenData`), or a generator."""

    def training_examples(self, length: int, count: int, seed: int) -> Dataset:
        """Sequences of ``length`` tokens; example i depends only on the data, length, seed and i."""
        ...


def drawn_lengths(lengths: Sequence[int], steps: int, seed: int) -> np.ndarray:
    """One of the lengths for every step, at random."""
    return np.asarray(lengths)[np.random.default_rng((seed, len(lengths))).integers(0, len(lengths), steps)]


class ScheduledExamples(Dataset):
    """Training examples of ``steps`` steps of ``rows`` sequences, all sequences of a step having one length, drawn from
    ``lengths`` (TCNCA app. F). A length that is listed twice is drawn twice as often.

    Example i depends only on (data, lengths, rows, seed, i). Each length has its own epochs, so every length covers the
    text evenly. Errors as `Sequences.training_examples`.
    """

    def __init__(self, data: Sequences, lengths: Sequence[int], rows: int, steps: int, seed: int):
        self.rows = rows
        self.lengths = drawn_lengths(lengths, steps, seed)
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
