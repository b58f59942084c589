"""Training examples: windows of a text, sequences whose length changes from step to step, and hidden tokens."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import lru_cache, partial
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.utils.data import Dataset

from lagwise.data.batches import IGNORED
from lagwise.data.tokenizers import word_edges


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


# Masked language modelling: which tokens are hidden, and what replaces them.

EVALUATION_SEED = 2**31  # differs from training's seeds: every evaluation hides the same parts
_MAX_WORD_TOKENS = 16  # tokens; in scripts without spaces tokens do not mark words
_MASKED, _RANDOM = 0.8, 0.9  # below the first a chosen token is masked, below the second it is another one


class Masking:
    """Hides a share of the tokens of a sequence and keeps them as labels (BERT §3.1).

    Words, or single tokens, are chosen in random order until ``rate`` of the tokens are chosen; the last one chosen may
    exceed it. A word longer than 16 tokens counts as several.
    Of the chosen tokens 80 % become the mask token, 10 % a random one and 10 % stay as they are. End of text and other
    special tokens are never chosen.

    Args:
        rate: share of the tokens.
        whole_words: choose all tokens of a word or none.

    ValueError for a rate outside (0, 1), or a tokenizer without a mask token.

    >>> from lagwise.data import load_tokenizer, with_mask
    >>> masking = Masking(with_mask(load_tokenizer("bytes")), rate=0.3)
    >>> ids = np.frombuffer(b"it is what it is", np.uint8).astype(np.int64)
    >>> _, labels = masking(ids, np.random.default_rng(0))
    >>> hidden = labels != -100
    >>> bool((labels[hidden] == ids[hidden]).all())  # what was hidden is the label
    True
    """

    def __init__(self, tokenizer: Any, *, rate: float = 0.15, whole_words: bool = True):
        if not 0 < rate < 1:
            raise ValueError(f"rate must be in (0, 1), got {rate!r}")
        if tokenizer.mask_token_id is None:
            raise ValueError("the tokenizer has no mask token")
        self.rate, self.whole_words = rate, whole_words
        self.mask_token = tokenizer.mask_token_id
        self.special = np.zeros(len(tokenizer), dtype=bool)
        self.special[tokenizer.all_special_ids] = True
        self.ordinary = np.flatnonzero(~self.special)
        self.continues, self.extends = word_edges(tokenizer)

    def __call__(self, ids: np.ndarray, random: np.random.Generator) -> tuple[np.ndarray, np.ndarray]:
        """The tokens ``(length,)`` with some hidden, and the labels: the original token where it was chosen, else
        -100."""
        chosen = self._chosen(ids, random)
        fate = random.random(len(ids))
        hidden = np.where(chosen & (fate < _MASKED), self.mask_token, ids)
        swapped = np.flatnonzero(chosen & (fate >= _MASKED) & (fate < _RANDOM))
        hidden[swapped] = random.choice(self.ordinary, len(swapped))
        return hidden, np.where(chosen, ids, IGNORED)

    def _chosen(self, ids: np.ndarray, random: np.random.Generator) -> np.ndarray:
        starts = np.ones(len(ids), dtype=bool)
        if self.whole_words:
            starts[1:] = ~(self.extends[ids[:-1]] & self.continues[ids[1:]])
            indices = np.arange(len(ids))
            begun = np.maximum.accumulate(np.where(starts, indices, 0))
            starts |= (indices - begun) % _MAX_WORD_TOKENS == 0
        word = starts.cumsum() - 1
        sizes = np.bincount(word, weights=~self.special[ids])  # a special token is a word of its own, and counts none
        budget = max(1.0, self.rate * sizes.sum())
        order = random.permutation(len(sizes))
        before = np.concatenate([[0.0], sizes[order].cumsum()[:-1]])
        picked = np.zeros(len(sizes), dtype=bool)
        picked[order[before < budget]] = True
        return picked[word] & ~self.special[ids]


class MaskedExamples(ChangedExamples):
    """A data set of sequences of running text with hidden tokens: input_ids, labels, and seq_idx ``(length,)``, their
    documents."""

    def __init__(self, sequences: Any, masking: Masking, end_of_text: int, seed: int):
        super().__init__(sequences, partial(_masked, masking, end_of_text), seed)


def _masked(masking: Masking, end_of_text: int, row: Mapping[str, Tensor], random: np.random.Generator) -> Any:
    ids = row["input_ids"].numpy()
    hidden, labels = masking(ids, random)
    return {
        "input_ids": torch.from_numpy(hidden),
        "labels": torch.from_numpy(labels),
        "seq_idx": torch.from_numpy(document_of(ids, end_of_text)),
    }


def document_of(ids: np.ndarray, end_of_text: int) -> np.ndarray:
    """The number of the document ``(..., length)`` of each token; its end of text is its last.

    >>> document_of(np.array([5, 6, 0, 7, 0, 8]), end_of_text=0).tolist()
    [0, 0, 0, 1, 1, 2]
    """
    ends = (ids == end_of_text).astype(np.int64)
    return ends.cumsum(-1) - ends


def collate_documents(rows: Sequence[Mapping[str, Tensor]]) -> dict[str, Tensor]:
    """A batch of sequences of one length, without seq_idx where every row is of one document."""
    batch = {name: torch.stack([row[name] for row in rows]) for name in rows[0]}
    if not batch["seq_idx"].any():
        del batch["seq_idx"]
    return batch
