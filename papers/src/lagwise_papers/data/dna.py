"""DNA: its tokenizer, and the other strand of a sequence."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

import numpy as np

from lagwise.data.tokenizers import letter_tokenizer

if TYPE_CHECKING:
    from torch import Tensor
    from transformers import PreTrainedTokenizerBase

DNA = "ACGTN"
_STRANGE = 0.05  # share of letters that are not of DNA; codes of several nucleotides are rarer
_PAIRS = ("AT", "CG", "RY", "KM", "BV", "DH")  # IUPAC's codes of nucleotides; S, W and N are their own


def tokenizer() -> Any:
    """The letters A, C, G, T and N of either case as tokens of `tokenizers`, where U counts as T and all others as
    N."""
    return letter_tokenizer(DNA, unknown="N", replaced=[("U", "T"), ("u", "T")])


def notes(texts: Iterable[str]) -> list[str]:
    """A note if many letters of texts are none of DNA, and become N: those of proteins, or of a language."""
    ours = dict.fromkeys(map(ord, DNA + DNA.lower() + "Uu"))
    sizes = [(len(text), len(text.translate(ours))) for text in texts]
    whole, others = (sum(each) for each in zip(*sizes, strict=True))
    if others <= _STRANGE * whole:
        return []
    return [
        f"{others / whole:.0%} of the characters in train are none of A, C, G, T, U and N, and are read as N: for "
        "proteins or texts, `tokenizer=characters` keeps all of them (and `reverse_complement=false`)"
    ]


def complements(tokenizer: PreTrainedTokenizerBase) -> np.ndarray:
    """The id of the complement of every token: A of T, C of G, and of IUPAC's other codes; itself of any other token.

    ValueError for a tokenizer without the tokens A, C, G and T, or with half of another pair.
    """
    ids, result = tokenizer.get_vocab(), np.arange(len(tokenizer))
    for pair in (*_PAIRS, *(pair.lower() for pair in _PAIRS)):
        found = [letter in ids for letter in pair]
        if not all(found) and (any(found) or pair in _PAIRS[:2]):
            raise ValueError(f"reverse complements need a tokenizer with the letters {pair[0]} and {pair[1]}")
        if all(found):
            a, b = (ids[letter] for letter in pair)
            result[a], result[b] = b, a
    return result


def either_strand(row: dict[str, Tensor], random: np.random.Generator, *, complements: Tensor) -> dict[str, Tensor]:
    """A row of DNA, or with probability a half its reverse complement. complements: of every token's id."""
    return row if random.random() < 0.5 else {**row, "input_ids": complements[row["input_ids"].flip(0)]}
