"""Associative recall: which value followed this key? A task without text that needs memory of the whole sequence."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import numpy as np
import torch
from torch.utils.data import Dataset

from lagwise.data.splits import SPLITS
from lagwise.data.tokenizers import word_tokenizer
from lagwise.tables import known

_NAME = "associative recall"
LOSSES = ("every", "last")
_HELD_OUT_SHARE = 0.1  # of all sequences in valid, and as much in test
_TOKENS_PER_BLOCK = 1 << 16
_MAX_EMPTY_DRAWS = 200  # a split without a sequence in so many draws is empty
_MULTIPLIER = np.uint64(0x9E3779B97F4A7C15)
_HALF_A_WORD = np.uint64(32)

Draw = Callable[[np.random.Generator, int], tuple[np.ndarray, np.ndarray]]


class AssociativeRecall:
    """Generator of sequences ``key value key value ... query answer`` (TCNCA table 3 and app. G; the task is H3's).

    Of ``vocab_size`` tokens the first half are keys, the others values. Every sequence maps each key to a value drawn
    at random, and draws its keys at random; the query is one of the keys that have occurred, so its answer is known.
    loss: in training, ``every`` value whose key has occurred before it, or the ``last`` alone, as in H3. Validation and
    test always use the answer alone.

    A hash of each sequence assigns it to train, valid or test, so no sequence is in two of them. ValueError
    unless vocab_size is even and at least 4, or for an unknown loss.

    >>> data = AssociativeRecall(8)  # keys 0 to 3, values 4 to 7
    >>> ids = data.training_examples(length=12, count=1, seed=0)[0]["input_ids"]
    >>> len(ids), bool((ids[::2] < 4).all())
    (12, True)
    """

    def __init__(self, vocab_size: int, *, loss: str = "every"):
        if vocab_size < 4 or vocab_size % 2:
            raise ValueError(
                f"the vocabulary size of {_NAME} must be even and at least 4 (half keys, half values), got {vocab_size}"
            )
        self.vocab_size = vocab_size
        self.loss = known(loss, LOSSES, f"loss of {_NAME}")
        half = vocab_size // 2
        keys = [chr(ord("a") + i) if i < 26 else f"k{i}" for i in range(half)]
        self.tokenizer = word_tokenizer([*keys, *map(str, range(half))])

    @property
    def key(self) -> str:
        return f"associative-recall-{self.vocab_size}"

    def kinds(self, length: int) -> list[dict[str, int]]:
        """The kinds of test sequences of a length, as options of `test_examples`: one. ValueError as `examples`."""
        _check_length(length)
        return [{}]

    def training_examples(self, length: int, count: int, seed: int) -> DrawnExamples:
        """Return ``count`` sequences of the train split."""
        return self.examples("train", length, count, seed, every=self.loss == "every")

    def validation_examples(self, length: int, tokens: int) -> DrawnExamples:
        """Return as many sequences of the valid split as the tokens allow, and at least one."""
        return self.examples("valid", length, max(1, tokens // length))

    def test_examples(self, length: int, count: int) -> DrawnExamples:
        """Return ``count`` sequences of the test split."""
        return self.examples("test", length, count)

    def examples(self, split: str, length: int, count: int, seed: int = 0, *, every: bool = False) -> DrawnExamples:
        """Return ``count`` sequences of a split, of ``length`` tokens with the answer. ValueError if the length is odd
        or below 4."""
        _check_length(length)
        return DrawnExamples(partial(self._draw, length, every), split, length, self.vocab_size, count, seed)

    def _draw(self, length: int, every: bool, random: np.random.Generator, rows: int) -> tuple[np.ndarray, np.ndarray]:
        ids = draw_sequences(random, rows, length, self.vocab_size)
        return ids, answers(ids, self.vocab_size, every=every)


def _check_length(length: int) -> None:
    if length < 4 or length % 2:
        raise ValueError(
            f"a length of {_NAME} must be even and at least 4 (pairs, then the query and its answer), got {length}"
        )


class DrawnExamples(Dataset):
    """Dataset of ``count`` sequences of one split, as input_ids and labels ``(length,)``, drawn in blocks.

    draw: gives sequences of any split and their labels, each ``(rows, length)``, from a random generator and the number
    of rows. Example i depends only on (draw, split, length, vocab_size, seed, i), so a resumed run and any number of
    processes see the same examples. ValueError if there are so few sequences of this length that none is in the split.
    """

    def __init__(self, draw: Draw, split: str, length: int, vocab_size: int, count: int, seed: int):
        self.draw, self.split, self.length, self.vocab_size = draw, split, length, vocab_size
        self.count, self.seed = count, seed
        self.per_block = max(1, _TOKENS_PER_BLOCK // max(length, vocab_size))
        self._block, self._ids, self._labels = -1, np.empty(0), np.empty(0)
        self._load(0)  # now rather than in the first step: the split may be empty

    def __len__(self) -> int:
        return self.count

    def __getitem__(self, index: int) -> dict[str, torch.Tensor]:
        block, row = divmod(index, self.per_block)
        self._load(block)
        return {"input_ids": torch.from_numpy(self._ids[row]), "labels": torch.from_numpy(self._labels[row])}

    def _load(self, block: int) -> None:
        if block == self._block:
            return
        seed = (self.seed, SPLITS.index(self.split), self.length, self.vocab_size, block)
        random = np.random.default_rng(seed)
        batches: list[tuple[np.ndarray, np.ndarray]] = []
        tries = count = 0
        while count < self.per_block:
            ids, labels = self.draw(random, self.per_block)
            in_split = split_of(ids) == SPLITS.index(self.split)
            batches.append((ids[in_split], labels[in_split]))
            tries, count = tries + 1, count + len(batches[-1][0])
            if tries == _MAX_EMPTY_DRAWS and not count:
                raise ValueError(
                    f"there are so few sequences of length {self.length} over {self.vocab_size} tokens that none is "
                    f"left for the {self.split} split; use longer sequences or a larger vocabulary"
                )
        ids, labels = (np.concatenate(columns)[: self.per_block] for columns in zip(*batches, strict=True))
        self._block, self._ids, self._labels = block, ids, labels


def draw_sequences(random: np.random.Generator, rows: int, length: int, vocab_size: int) -> np.ndarray:
    """Draw sequences of any split, ids ``(rows, length)``: keys are below ``vocab_size / 2``, values not."""
    half = vocab_size // 2
    keys = random.integers(0, half, (rows, length // 2))
    occurred = np.zeros((rows, half), dtype=bool)
    np.put_along_axis(occurred, keys[:, :-1], True, axis=1)
    keys[:, -1] = np.where(occurred, random.random((rows, half)), -1.0).argmax(axis=1)
    value_of = random.integers(half, vocab_size, (rows, half))
    return np.stack([keys, np.take_along_axis(value_of, keys, axis=1)], axis=2).reshape(rows, length)


def answers(ids: np.ndarray, vocab_size: int, *, every: bool) -> np.ndarray:
    """Make the labels ``(rows, length)`` of sequences: every value whose key has occurred before it, or the last alone.

    Elsewhere they are -100, which the loss ignores. Labels are at the positions of the answers; the model shifts them.
    """
    labels = np.full_like(ids, -100)
    labels[:, -1] = ids[:, -1]
    if every:
        row_keys = ids[:, ::2] + vocab_size * np.arange(len(ids))[:, None]  # a key and its row in one number
        repeated = np.ones(row_keys.size, dtype=bool)
        repeated[np.unique(row_keys, return_index=True)[1]] = False
        labels[:, 1::2] = np.where(repeated.reshape(row_keys.shape), ids[:, 1::2], -100)
    return labels


def split_of(ids: np.ndarray) -> np.ndarray:
    """Compute the index in SPLITS ``(rows,)`` of each sequence's split.

    Formula: with a fixed odd g, ``h = sum_j ids[j] g^(j+1) mod 2^64``, mixed once. Its upper half puts one in ten
    sequences into valid and one in ten into test. The result does not depend on the version of a random generator.
    """
    weights = np.multiply.accumulate(np.full(ids.shape[1], _MULTIPLIER))
    mixed = ids.astype(np.uint64) @ weights
    mixed = (mixed ^ (mixed >> _HALF_A_WORD)) * _MULTIPLIER
    share = (mixed >> _HALF_A_WORD) / 2.0**32
    held_out = np.where(share < _HELD_OUT_SHARE, SPLITS.index("valid"), SPLITS.index("test"))
    return np.where(share < 2 * _HELD_OUT_SHARE, held_out, SPLITS.index("train"))
