"""Training examples: sequences whose length changes from step to step, or pieces of text that follow each other."""

from __future__ import annotations

import bisect
import heapq
import itertools
from collections.abc import Callable, Sequence
from functools import lru_cache
from typing import Any, Protocol

import numpy as np
import torch
from torch.utils.data import Dataset

from lagwise.data.batches import IGNORED


class Sequences(Protocol):
    """A source of training sequences of any length: text as token files (`TokenData`), or a generator."""

    def training_examples(self, length: int, count: int, seed: int) -> Dataset:
        """Return a data set of sequences of ``length`` tokens; example i depends only on the data, length, seed and
        i."""
        ...


def drawn_lengths(lengths: Sequence[int], steps: int, seed: int) -> np.ndarray:
    """Draw one of the lengths for every step."""
    return np.asarray(lengths)[np.random.default_rng((seed, len(lengths))).integers(0, len(lengths), steps)]


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


class CarriedPieces(Dataset):
    """The training examples of ``steps`` steps, of which example ``i + rows`` continues the text of example i, in row
    ``i % rows``.

    All pieces of a step have one length, drawn from ``lengths`` as by `ScheduledExamples`. Documents are those between
    ends of text, with the end before and the end after. In a random order, they are dealt to the rows; documents longer
    than ``most`` of the longest pieces, or than a row's share, are cut into parts that begin anew. The last piece of a
    part may have fewer tokens, with padding after them. A row that has ended begins again.

    An example has input_ids, attention_mask and labels ``(length,)``; ``begins``, whether it is the first piece of a
    part; and ``row``. It depends only on (tokens, lengths, rows, seed, i), so a resumed run and any number of processes
    see the same examples. ValueError if the text does not fill one piece for each row.
    """

    def __init__(
        self, tokens: np.ndarray, end: int, lengths: Sequence[int], rows: int, steps: int, seed: int, *, most: int
    ):
        longest = max(lengths)
        share = min(-(-len(tokens) // rows), most * longest)
        self.tokens, self.end, self.rows = tokens, end, rows
        ends = np.flatnonzero(tokens == end)
        bounds = np.unique(np.concatenate([[0], ends, [len(tokens)]]))
        documents = (
            (a, min(b + 1, len(tokens))) for a, b in itertools.pairwise(bounds)
        )  # including the ends of text on both sides
        parts = np.concatenate([_cut(a, b, share) for a, b in documents])
        parts = parts[parts[:, 1] - parts[:, 0] > 1]
        np.random.default_rng(seed).shuffle(parts)
        loads, dealt = [(0, row) for row in range(rows)], np.empty(len(parts), dtype=np.int64)
        for number, size in enumerate((parts[:, 1] - parts[:, 0]).tolist()):  # to the row that has the fewest tokens
            load, dealt[number] = loads[0]
            heapq.heapreplace(loads, (load + size, int(dealt[number])))
        if len(tokens) <= rows * longest or not loads[0][0]:
            raise ValueError(
                f"the training text has {len(tokens)} tokens, not more than {rows} rows of {longest}; give more text "
                "or a smaller `length` or `batch_size`"
            )
        self.before = np.concatenate([[0], drawn_lengths(lengths, steps, seed).cumsum()])  # tokens before each step
        self.texts = [_Row(parts[dealt == row], self.before) for row in range(rows)]

    def __len__(self) -> int:
        return (len(self.before) - 1) * self.rows

    def __getitem__(self, index: int) -> dict[str, torch.Tensor]:
        step, row = divmod(index, self.rows)
        start, stop, begins = self.texts[row].piece(step)
        length = int(self.before[step + 1] - self.before[step])
        ids = np.full(length, self.end, dtype=np.int64)
        ids[: stop - start] = self.tokens[start:stop]
        real = np.arange(length) < stop - start
        return {
            "input_ids": torch.from_numpy(ids),
            "attention_mask": torch.from_numpy(real.astype(np.int64)),
            "labels": torch.from_numpy(np.where(real, ids, IGNORED)),
            "begins": torch.tensor(begins),
            "row": torch.tensor(row),
        }


class _Row:
    """The parts of one row, again and again, in steps of given lengths. A last piece of one token, which predicts
    nothing, is left out."""

    def __init__(self, parts: np.ndarray, before: np.ndarray):
        self.parts, self.before = parts, before
        self.first: list[int] = []  # the step at which each part begins, as far as asked for
        self.next = 0

    def piece(self, step: int) -> tuple[int, int, bool]:
        """Return the start and stop of a piece, and whether a part begins with it."""
        while self.next <= step:
            size = int(np.diff(self.parts[len(self.first) % len(self.parts)])[0])
            self.first.append(self.next)
            enough = int(self.before.searchsorted(self.before[self.next] + size - 1))
            self.next = max(self.next + 1, enough)
        part = bisect.bisect_right(self.first, step) - 1
        start, stop = self.parts[part % len(self.parts)].tolist()
        start += int(self.before[step] - self.before[self.first[part]])
        return start, min(stop, start + int(self.before[step + 1] - self.before[step])), step == self.first[part]


def _cut(start: int, stop: int, most: int) -> np.ndarray:
    """Cut ranges into parts ``(n, 2)`` of at most ``size`` tokens."""
    starts = np.arange(start, stop, most)
    return np.stack([starts, np.minimum(starts + most, stop)], 1)
