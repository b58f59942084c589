"""What training asks of data, be they text or a task, and sequences whose length changes from step to step."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Protocol

import numpy as np
import torch
from torch.utils.data import Dataset

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase


class Data(Protocol):
    """Text as token files (`TokenData`), or a task that makes its own sequences (`AssociativeRecall`)."""

    @property
    def tokenizer(self) -> PreTrainedTokenizerBase: ...

    @property
    def identity(self) -> str:
        """What a run notes, to know its data again."""
        ...

    def bytes_per_token(self, split: str) -> float | None:
        """Text behind a token on average; None for a task, where the accuracy of the last token counts."""
        ...

    def training_examples(self, length: int, count: int, seed: int) -> Dataset:
        """Sequences of ``length`` tokens; example i depends only on the data, length, seed and i."""
        ...

    def validation_examples(self, length: int, tokens: int) -> Dataset:
        """Held-out sequences of ``length`` tokens, about ``tokens`` in all."""
        ...


class ScheduledExamples(Dataset):
    """Training examples of ``steps`` steps of ``rows`` sequences, all of a step of one length, drawn from ``lengths``
    (TCNCA app. F). A length that is named twice is drawn twice as often.

    Example i depends only on (data, lengths, rows, seed, i). At each length the data go through their own epochs, so
    every length covers the text evenly. Errors as `Data.training_examples`.
    """

    def __init__(self, data: Data, lengths: Sequence[int], rows: int, steps: int, seed: int):
        self.rows = rows
        drawn = np.random.default_rng((seed, len(lengths))).integers(0, len(lengths), steps)
        self.lengths = np.asarray(lengths)[drawn]
        self.turns = np.empty(steps, dtype=np.int64)  # how many steps of the same length were before
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
