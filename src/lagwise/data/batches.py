"""Batches of rows: padded to the longest, those of similar lengths together."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.utils.data import Dataset

import lagwise.data.arrow as pa
import lagwise.data.hf as hf
from lagwise.data.arrays import row_arrays
from lagwise.tables import check_integer

IGNORED = -100  # the label that losses skip


class Examples(Dataset):
    """A data set of ``count`` examples, each of which ``make``, a function that can be pickled, makes of its index."""

    def __init__(self, count: int, make: Callable[[int], Any]):
        self.count, self.make = count, make

    def __len__(self) -> int:
        return self.count

    def __getitem__(self, index: int) -> Any:
        return self.make(index)


def padded(rows: Sequence[Tensor], size: int, value: float) -> Tensor:
    """Stack tensors ``(length, ...)`` of different lengths as ``(rows, size, ...)``, with a value after the end of
    each."""
    stacked = rows[0].new_full((len(rows), size, *rows[0].shape[1:]), value)
    for own, row in zip(stacked, rows, strict=True):
        own[: len(row)] = row
    return stacked


def input_tensors(examples: Sequence[Mapping[str, Any]]) -> dict[str, list[Tensor]]:
    """The inputs that examples have: input_ids and token_type_ids as int64, input_values as float32."""
    kinds = {"input_ids": torch.long, "token_type_ids": torch.long, "input_values": torch.float32}
    return {
        name: [torch.as_tensor(example[name], dtype=kind) for example in examples]
        for name, kind in kinds.items()
        if name in examples[0]
    }


_BATCHES_PER_POOL = 50  # batches that are sorted by length together
_NUMBERS = ("label", "sampling_rate")  # the columns of encoded rows that have a number, or some, for each row


class BucketedExamples(Dataset):
    """A data set of training examples of encoded rows: every row at least once an epoch, rows of similar lengths in one
    batch.

    An epoch shuffles the rows, sorts pools of 50 batches by length, cuts them into batches of ``batch_size`` (the rows
    of an optimiser step, of all processes) and shuffles the batches. Rows that occur twice fill up the last batch. The
    order is that of a sequential sampler; example i depends only on (rows, batch_size, seed, i), so a resumed run and
    any number of processes see the same examples. ``steps_per_epoch`` batches are an epoch.
    """

    def __init__(self, rows: hf.Dataset, batch_size: int, steps: int, *, seed: int = 0):
        self.batch_size = check_integer("batch_size", batch_size)
        self.steps_per_epoch = -(-len(rows) // batch_size)
        self.steps, self.seed = check_integer("steps", steps), seed
        self.examples = EncodedExamples(rows)
        self.lengths = np.asarray(rows["length"][:])
        self._epoch, self._order = -1, np.empty(0, dtype=np.int64)

    def __len__(self) -> int:
        return self.steps * self.batch_size

    def __getitem__(self, index: int) -> dict[str, Tensor]:
        epoch, position = divmod(index, self.steps_per_epoch * self.batch_size)
        if epoch != self._epoch:
            self._order, self._epoch = self._shuffled(epoch), epoch
        return self.examples[int(self._order[position])]

    def _shuffled(self, epoch: int) -> np.ndarray:
        random = np.random.default_rng((self.seed, epoch))
        order = np.resize(random.permutation(len(self.lengths)), self.steps_per_epoch * self.batch_size)
        for start in range(0, len(order), _BATCHES_PER_POOL * self.batch_size):
            pool = order[start : start + _BATCHES_PER_POOL * self.batch_size]
            pool[:] = pool[np.argsort(self.lengths[pool], kind="stable")]
        return random.permutation(order.reshape(-1, self.batch_size)).reshape(-1)


class EncodedExamples(Dataset):
    """A data set of encoded rows in their own order, as tensors: input_ids and token_type_ids or input_values, and
    ``label`` and ``sampling_rate`` where they have them."""

    def __init__(self, rows: hf.Dataset | pa.Table):
        self.rows: Any = rows.with_format("arrow") if hasattr(rows, "with_format") else rows

    def __len__(self) -> int:
        return len(self.rows)

    def __getitem__(self, index: int) -> dict[str, Tensor]:
        row: Any = self.rows.slice(index, 1) if hasattr(self.rows, "slice") else self.rows[index]
        names = [name for name in row.column_names if name not in (*_NUMBERS, "length")]
        example = input_tensors([{name: next(row_arrays(row.column(name))).copy() for name in names}])
        numbers = {n: torch.tensor(row.column(n)[0].as_py()) for n in _NUMBERS if n in row.column_names}
        return {name: values[0] for name, values in example.items()} | numbers


class PaddingCollator:
    """Pads the examples of a batch on the right to the longest of them: a collator for DataLoader and Trainer.

    Takes mappings with input_ids ``(tokens,)`` and optionally token_type_ids, or input_values ``(vectors, features)``,
    and optionally ``label`` (tensors, arrays, lists or numbers). Returns them as ``(batch, longest, ...)``, padded with
    ``pad_token_id`` or zero, and labels ``(batch,)``. There is an attention_mask only if something is padded.

    Args:
        multiple_of: lengths are rounded up to a multiple of it, so that fewer different shapes occur; or a function
            from a length to its multiple (`length_step`).
        stride: vectors per step of the model (`ValueInput`); lengths are whole steps, and attention_mask is ``(batch,
            steps)``.

    >>> batch = PaddingCollator()([{"input_ids": [1, 2, 3], "label": 1}, {"input_ids": [4], "label": 0}])
    >>> batch["input_ids"].tolist(), batch["labels"].tolist()
    ([[1, 2, 3], [4, 0, 0]], [1, 0])
    """

    def __init__(self, pad_token_id: int | None = 0, *, multiple_of: int | Callable[[int], int] = 1, stride: int = 1):
        self.pad_token_id = 0 if pad_token_id is None else pad_token_id
        self.multiple_of = multiple_of if callable(multiple_of) else check_integer("multiple_of", multiple_of)
        self.stride = check_integer("stride", stride)

    def __call__(self, examples: Sequence[Mapping[str, Any]]) -> dict[str, Tensor]:
        inputs = input_tensors(examples)
        sizes = torch.tensor([-(-len(each) // self.stride) for each in next(iter(inputs.values()))])
        longest = int(sizes.max())
        multiple = self.multiple_of(longest) if callable(self.multiple_of) else self.multiple_of
        longest = -(-longest // multiple) * multiple
        pad = {"input_ids": self.pad_token_id}
        batch = {name: padded(rows, longest * self.stride, pad.get(name, 0)) for name, rows in inputs.items()}
        if bool((sizes < longest).any()):
            batch["attention_mask"] = (torch.arange(longest) < sizes[:, None]).long()
        if "label" in examples[0]:
            labels = torch.stack([torch.as_tensor(example["label"]) for example in examples])
            batch["labels"] = labels.float() if labels.is_floating_point() else labels
        return batch


def length_step(length: int, longest: int) -> int:
    """The multiple to which a training pads a batch of that length: an eighth of the largest power of two in it, and
    less where the padded length would exceed ``longest``. Blocks of memory of few sizes are used again."""
    step = max(1, 2 ** (length.bit_length() - 1) // 8)
    while step > 1 and -(-length // step) * step > longest:
        step //= 2
    return step


def batches_by_length(lengths: Sequence[int] | np.ndarray, max_tokens: int) -> Iterator[np.ndarray]:
    """The indices of rows of similar lengths, the shortest first: as many as give at most ``max_tokens`` tokens when
    padded to the longest, and at least one."""
    lengths = np.asarray(lengths)
    order, start = np.argsort(lengths, kind="stable"), 0
    while start < len(order):
        end = start + 1  # the longest row of a batch is its last
        while end < len(order) and (end + 1 - start) * lengths[order[end]] <= max_tokens:
            end += 1
        yield order[start:end]
        start = end


def with_all_labels(batch: dict[str, Tensor]) -> dict[str, Tensor]:
    """A batch of which the Trainer counts all labels; it treats -100 as a label that the loss skips."""
    labels = batch.get("labels")
    if labels is not None and labels.is_floating_point():
        batch["labels"] = labels.masked_fill(labels == IGNORED, float(np.nextafter(np.float32(-100), np.float32(0))))
    return batch
