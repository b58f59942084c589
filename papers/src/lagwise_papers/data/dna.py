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
_MAX_UNKNOWN_SHARE = 0.05  # of the letters; codes of several nucleotides are rarer
_PAIRS = ("AT", "CG", "RY", "KM", "BV", "DH")  # IUPAC's codes of nucleotides; S, W and N are their own


def tokenizer() -> Any:
    """Make a tokenizer of the letters A, C, G, T and N of either case, where U counts as T and all others as N."""
    return letter_tokenizer(DNA, unknown="N", replaced=[("U", "T"), ("u", "T")])


def notes(texts: Iterable[str]) -> list[str]:
    """Warn when many characters are not DNA letters (they are replaced by N), as in proteins or a language."""
    remove_letters = dict.fromkeys(map(ord, DNA + DNA.lower() + "Uu"))
    sizes = [(len(text), len(text.translate(remove_letters))) for text in texts]
    total, unknown = (sum(each) for each in zip(*sizes, strict=True))
    if unknown <= _MAX_UNKNOWN_SHARE * total:
        return []
    return [
        f"{unknown / total:.0%} of the characters in train are none of A, C, G, T, U and N, and are read as N: for "
        "proteins or texts, `tokenizer=characters` keeps all of them (and `reverse_complement=false`)"
    ]


def complements(tokenizer: PreTrainedTokenizerBase) -> np.ndarray:
    """Return the id of the complement of every token: A of T, C of G, and of IUPAC's other codes; itself of any other
    token.

    ValueError for a tokenizer without the tokens A, C, G and T, or with half of another pair.
    """
    ids, result = tokenizer.get_vocab(), np.arange(len(tokenizer))
    for pair in (*_PAIRS, *(pair.lower() for pair in _PAIRS)):
        present = [letter in ids for letter in pair]
        if not all(present) and (any(present) or pair in _PAIRS[:2]):
            raise ValueError(f"reverse complements need a tokenizer with the letters {pair[0]} and {pair[1]}")
        if all(present):
            a, b = (ids[letter] for letter in pair)
            result[a], result[b] = b, a
    return result


def either_strand(row: dict[str, Tensor], random: np.random.Generator, *, complements: Tensor) -> dict[str, Tensor]:
    """Return a row of DNA, or with probability 1/2 its reverse complement. complements: of every token's id."""
    return row if random.random() < 0.5 else {**row, "input_ids": complements[row["input_ids"].flip(0)]}
