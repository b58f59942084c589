"""Training text as pieces that follow each other in every row of a batch, for states that training carries on."""

from __future__ import annotations

import bisect
import heapq
import itertools
from collections.abc import Sequence

import numpy as np
import torch
from torch.utils.data import Dataset

from lagwise.data.examples import drawn_lengths
from lagwise.data.packing import IGNORED


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
