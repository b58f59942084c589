"""Tokenizers of single characters and special tokens, as other programs name them in a vocabulary file."""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from lagwise.data.tokenizers import letter_tokenizer

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

_SPECIAL = re.compile(r"<.+>|\[.+\]", re.DOTALL)
_ROLES = {  # names of special tokens in other programs' vocabularies, lower case without brackets
    "unk": ("unk", "|unknown|"),
    "pad": ("pad", "|pad|"),
    "eos": ("eos", "/s", "|endoftext|"),
    "bos": ("bos", "s", "cls"),
    "cls": ("cls",),
    "sep": ("sep",),
    "mask": ("mask",),
}


def read_letters(folder: Path) -> list[str] | None:
    """Read the tokens of a folder whose only tokenizer is ``vocab.txt`` with single characters and special tokens such
    as <pad>, one in each line; None for other folders. ValueError for a token that occurs twice."""
    file = folder / "vocab.txt"
    if not file.is_file() or any((folder / f"{name}.json").is_file() for name in ("tokenizer", "vocab")):
        return None
    tokens = [line for line in file.read_text(encoding="utf-8").split("\n") if line]
    if all(len(t) > 1 for t in tokens) or not all(len(t) == 1 or _SPECIAL.fullmatch(t) for t in tokens):
        return None
    if twice := next((token for token in tokens if tokens.count(token) > 1), None):
        raise ValueError(f"{str(file)!r} has {twice!r} more than once")
    return tokens


def vocabulary_tokenizer(tokens: Sequence[str], *, end: str, unknown: str, pad: str) -> PreTrainedTokenizerBase:
    """Make a tokenizer of single characters and special tokens.

    A token's id is its index, from 0. Special tokens have the meaning of their names: ``<unk>``, ``<pad>``, ``<s>``,
    ``<cls>``, ``<sep>``, ``</s>``, ``<eos>``, ``<mask>``, or with square brackets. end, unknown, pad: tokens of this
    meaning if none has it by its name, added unless they are tokens.
    """
    from transformers import PreTrainedTokenizerFast

    tokens = list(tokens)
    by_name = {token[1:-1].lower(): token for token in tokens if len(token) > 1}
    roles = {role: next((by_name[n] for n in names if n in by_name), None) for role, names in _ROLES.items()}
    for role, token in (("unk", unknown), ("eos", end), ("pad", pad)):
        if roles[role] is None:
            roles[role] = token
            tokens += [token] * (token not in tokens)
    tokenizer = letter_tokenizer(tokens, unknown=roles["unk"] or unknown)
    tokenizer.add_special_tokens([token for token in tokens if len(token) > 1])
    special_tokens = {f"{role}_token": token for role, token in roles.items() if token is not None}
    return PreTrainedTokenizerFast(
        tokenizer_object=tokenizer, **special_tokens, padding_side="right", clean_up_tokenization_spaces=False
    )
