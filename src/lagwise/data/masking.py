"""Masked language modelling: which tokens of running text are hidden, what replaces them, and where documents end."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any

import numpy as np
import torch
from torch import Tensor

from lagwise.data.batches import IGNORED
from lagwise.data.examples import ChangedExamples
from lagwise.data.tokenizers import word_edges

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
