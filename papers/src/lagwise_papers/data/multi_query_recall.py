"""Multi-query associative recall: keys with their values, then some of the keys again, each to be answered."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

import numpy as np

from lagwise.data.batches import IGNORED
from lagwise.data.tokenizers import word_tokenizer
from lagwise_papers.data.associative_recall import DrawnExamples

_NAME = "multi-query recall"


class MultiQueryRecall:
    """Generator of sequences ``key value ... filling query filling ...`` (MQAR; Arora et al. 2023, "Zoology").

    Of ``vocab_size`` tokens the first half are keys, without the first, and the others values. A sequence begins with
    ``n`` pairs of different keys and different values. After them every key occurs once more, at even positions whose
    distance from the pairs follows a power law: slot g of s has the weight ``(g + 1)**(power - 1)``. The token after it
    is not its value: the value is only the label. All other positions are filled with random tokens.

    Args:
        pairs: the numbers n; training draws one for each sequence among those that fit the length.
        power: 0.01 is Zoology's and puts most queries near the pairs, 1 spreads them evenly.

    A hash of each sequence assigns it to train, valid or test. ValueError for numbers that do not fit the vocabulary,
    or a length.
    """

    def __init__(self, vocab_size: int, *, pairs: Sequence[int] = (4, 8, 16), power: float = 0.01):
        if vocab_size < 4 or vocab_size % 2:
            raise ValueError(f"the vocabulary size of {_NAME} must be even and at least 4, got {vocab_size}")
        half = vocab_size // 2
        if not pairs or min(pairs) < 1 or max(pairs) >= half or len(set(pairs)) < len(pairs):
            raise ValueError(
                f"pairs must be different numbers from 1 to {half - 1} (half of the vocabulary size less 1), got "
                f"{list(pairs)}"
            )
        if not power > 0:
            raise ValueError(f"power must be greater than 0, got {power}")
        self.vocab_size, self.pairs, self.power = vocab_size, tuple(sorted(pairs)), power
        self.tokenizer = word_tokenizer([*(f"k{i}" for i in range(half)), *map(str, range(half))])

    @property
    def key(self) -> str:
        return f"multi-query-recall-{self.vocab_size}-{self.power}-{'-'.join(map(str, self.pairs))}"

    def fitting(self, length: int) -> tuple[int, ...]:
        """Return the numbers of pairs that fit a length, with as many queries and answers. ValueError if none does."""
        fitting = tuple(n for n in self.pairs if 4 * n <= length)
        if not fitting or length % 2:
            raise ValueError(
                f"a length of {_NAME} must be even and at least {4 * self.pairs[0]}, 4 tokens for each of the pairs, "
                f"got {length}"
            )
        return fitting

    def kinds(self, length: int) -> list[dict[str, int]]:
        """Return the numbers of pairs as options of `test_examples`."""
        return [{"pairs": n} for n in self.fitting(length)]

    def training_examples(self, length: int, count: int, seed: int) -> DrawnExamples:
        """Return ``count`` sequences of the train split."""
        return self._examples("train", length, count, seed, self.fitting(length))

    def validation_examples(self, length: int, tokens: int) -> DrawnExamples:
        """Return as many sequences of the valid split as the tokens allow, and at least one."""
        return self._examples("valid", length, max(1, tokens // length), 0, self.fitting(length))

    def test_examples(self, length: int, count: int, pairs: int) -> DrawnExamples:
        """Return ``count`` sequences of the test split with this number of pairs."""
        return self._examples("test", length, count, 0, (pairs,))

    def _examples(self, split: str, length: int, count: int, seed: int, pairs: tuple[int, ...]) -> DrawnExamples:
        return DrawnExamples(partial(self._draw, length, pairs), split, length, self.vocab_size, count, seed)

    def _draw(
        self, length: int, pairs: tuple[int, ...], random: np.random.Generator, rows: int
    ) -> tuple[np.ndarray, np.ndarray]:
        """Draw sequences, and labels that are -100 except at the position after each query, where the model's loss
        expects the answer."""
        half, max_pairs = self.vocab_size // 2, max(pairs)
        keys = 1 + random.random((rows, half - 1)).argsort(1)[:, :max_pairs]
        values = half + random.random((rows, half)).argsort(1)[:, :max_pairs]
        ids = random.integers(0, self.vocab_size, (rows, length))
        labels = np.full((rows, length), IGNORED)
        for row, n in enumerate(random.choice(pairs, rows)):
            slots = (length - 2 * n) // 2
            # The n largest scores are a draw without replacement by the weights (Gumbel's trick).
            score = (self.power - 1) * np.log1p(np.arange(slots)) + random.gumbel(size=slots)
            query = 2 * n + 2 * score.argsort()[::-1][:n]
            ids[row, : 2 * n : 2], ids[row, 1 : 2 * n : 2] = keys[row, :n], values[row, :n]
            ids[row, query], labels[row, query + 1] = keys[row, :n], values[row, :n]
        return ids, labels
