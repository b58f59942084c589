"""Training text as pieces that follow each other in every row of a batch, for states that training carries on."""

from __future__ import annotations

import heapq
import itertools

import numpy as np
import torch
from torch.utils.data import Dataset

from lagwise.data.packing import IGNORED


class CarriedPieces(Dataset):
    """``count`` training examples, of which example ``i + rows`` continues the text of example i, in row ``i % rows``.

    Documents are those between ends of text, with the end before and the end after. In a random order, they are
    dealt to the rows; documents longer than ``most`` pieces, or than a row's share, are cut into parts that begin anew.
    A piece has ``length`` tokens, the last of a part perhaps fewer, with padding after them. A row that has ended
    begins again.

    An example has input_ids, attention_mask and labels ``(length,)``; ``begins``, whether it is the first piece of a
    part; and ``row``. It depends only on (tokens, length, rows, seed, i), so a resumed run and any number of processes
    see the same examples. ValueError if the text does not fill one piece for each row.
    """

    def __init__(self, tokens: np.ndarray, end: int, length: int, rows: int, count: int, seed: int, *, most: int):
        share = min(-(-len(tokens) // rows), most * length)
        self.tokens, self.end, self.length, self.rows, self.count = tokens, end, length, rows, count
        ends = np.flatnonzero(tokens == end)
        bounds = np.unique(np.concatenate([[0], ends, [len(tokens)]]))
        documents = ((a, min(b + 1, len(tokens))) for a, b in itertools.pairwise(bounds))  # with both ends of text
        parts = np.concatenate([_cut(a, b, share) for a, b in documents])
        parts = parts[parts[:, 1] - parts[:, 0] > 1]
        np.random.default_rng(seed).shuffle(parts)
        loads, dealt = [(0, row) for row in range(rows)], np.empty(len(parts), dtype=np.int64)
        for number, size in enumerate((parts[:, 1] - parts[:, 0]).tolist()):  # to the row that has the fewest tokens
            load, dealt[number] = loads[0]
            heapq.heapreplace(loads, (load + size, int(dealt[number])))
        if len(tokens) <= rows * length or not loads[0][0]:
            raise ValueError(
                f"the training text has {len(tokens)} tokens, not more than {rows} rows of {length}; give more text or "
                "a smaller data.length or training.batch_size"
            )
        self.pieces = [_pieces(parts[dealt == row], length) for row in range(rows)]

    def __len__(self) -> int:
        return self.count

    def __getitem__(self, index: int) -> dict[str, torch.Tensor]:
        step, row = divmod(index, self.rows)
        start, stop, begins = self.pieces[row][step % len(self.pieces[row])]
        ids = np.full(self.length, self.end, dtype=np.int64)
        ids[: stop - start] = self.tokens[start:stop]
        real = np.arange(self.length) < stop - start
        return {
            "input_ids": torch.from_numpy(ids),
            "attention_mask": torch.from_numpy(real.astype(np.int64)),
            "labels": torch.from_numpy(np.where(real, ids, IGNORED)),
            "begins": torch.tensor(bool(begins)),
            "row": torch.tensor(row),
        }


def _cut(start: int, stop: int, most: int) -> np.ndarray:
    """Parts ``(n, 2)`` of at most this many tokens."""
    starts = np.arange(start, stop, most)
    return np.stack([starts, np.minimum(starts + most, stop)], 1)


def _pieces(parts: np.ndarray, length: int) -> np.ndarray:
    """Start, stop and whether a part begins, ``(n, 3)``. A last piece of one token, which predicts nothing, is left
    out, unless it is the only one."""
    pieces = []
    for start, stop in parts:
        starts = np.arange(start, stop, length)
        if len(starts) > 1 and stop - starts[-1] < 2:
            starts = starts[:-1]
        pieces.append(np.stack([starts, np.minimum(starts + length, stop), starts == start], 1))
    return np.concatenate(pieces)
