"""Tokenizers whose tokens are single characters, of the data or of a vocabulary file."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from lagwise.tables import LARGEST_VOCABULARY

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

VOCABULARY = "vocab.txt"
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


def letter_tokenizer(tokens: Sequence[str], *, unknown: str, replaced: Sequence[tuple[str, str]] = ()) -> Any:
    """A tokenizer of `tokenizers` in which every character is a token; ids are places in ``tokens``.

    Other characters become ``unknown``, one of the tokens. A letter whose other case alone is a token is that token.
    replaced: pairs of a character and the one that it counts as.
    """
    from tokenizers import Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers

    letters = {token for token in tokens if len(token) == 1}
    pairs = [
        *replaced,
        *((c.swapcase(), c) for c in sorted(letters) if {c.swapcase()} - letters and len(c.swapcase()) == 1),
    ]
    tokenizer: Any = Tokenizer(models.WordLevel({t: i for i, t in enumerate(tokens)}, unk_token=unknown))
    if pairs:
        tokenizer.normalizer = normalizers.Sequence([normalizers.Replace(a, b) for a, b in pairs])
    tokenizer.pre_tokenizer = pre_tokenizers.Split(Regex(r"[\s\S]"), "isolated")
    tokenizer.decoder = decoders.Fuse()
    return tokenizer


def character_tokens(vocab_size: int, texts: Iterator[str] | None, unknown: str) -> list[str]:
    """The unknown token and the characters of texts, the most frequent first, at most ``vocab_size`` less 2 for the end
    of text and padding. Errors as `texts_for`."""
    counts: Counter[str] = Counter()
    for text in texts_for("characters", vocab_size, texts):
        counts.update(text)
    ordered = sorted(counts, key=lambda c: (-counts[c], c))
    return [unknown, *ordered[: vocab_size - 3]]


def texts_for(tokenizer: str, vocab_size: int, texts: Any, least: int = 4) -> Any:
    """The texts whose vocabulary is that of a tokenizer. ValueError if there are none, and for other sizes."""
    if texts is None:
        raise ValueError(f"the vocabulary of tokenizer {tokenizer!r} is that of the data: give texts")
    if not least <= vocab_size <= LARGEST_VOCABULARY:
        raise ValueError(f"vocab_size must be at least {least} and at most {LARGEST_VOCABULARY}, got {vocab_size}")
    return texts


def is_vocabulary_of_letters(folder: Path) -> bool:
    """Whether a folder's only tokenizer is a vocabulary file with single characters and special tokens such as <pad>,
    one in each line."""
    if not (folder / VOCABULARY).is_file() or any((folder / f"{n}.json").is_file() for n in ("tokenizer", "vocab")):
        return False
    tokens = _lines(folder / VOCABULARY)
    return any(len(t) == 1 for t in tokens) and all(len(t) == 1 or _SPECIAL.fullmatch(t) for t in tokens)


def read_vocabulary(folder: Path, *, end: str, unknown: str, pad: str) -> PreTrainedTokenizerBase:
    """The tokenizer of a folder's vocabulary of letters (`is_vocabulary_of_letters`): `vocabulary_tokenizer` of its
    lines. ValueError for a token that occurs twice."""
    tokens = _lines(folder / VOCABULARY)
    if twice := [token for token, count in Counter(tokens).items() if count > 1]:
        raise ValueError(f"{str(folder / VOCABULARY)!r} has {twice[0]!r} more than once")
    return vocabulary_tokenizer(tokens, end=end, unknown=unknown, pad=pad)


def vocabulary_tokenizer(tokens: Sequence[str], *, end: str, unknown: str, pad: str) -> PreTrainedTokenizerBase:
    """A tokenizer of single characters and special tokens.

    A token's id is its place, from 0. Special tokens have the meaning of their names: ``<unk>``,
    ``<pad>``, ``<s>``, ``<cls>``, ``<sep>``, ``</s>``, ``<eos>``, ``<mask>``, or with square brackets. end, unknown,
    pad: tokens of this meaning if none has it by its name, added unless they are tokens.
    """
    from transformers import PreTrainedTokenizerFast

    tokens = list(tokens)
    named = {token[1:-1].lower(): token for token in tokens if len(token) > 1}
    roles = {role: next((named[n] for n in names if n in named), None) for role, names in _ROLES.items()}
    for role, token in (("unk", unknown), ("eos", end), ("pad", pad)):
        if roles[role] is None:
            roles[role] = token
            tokens += [token] * (token not in tokens)
    tokenizer = letter_tokenizer(tokens, unknown=roles["unk"] or unknown)
    tokenizer.add_special_tokens([token for token in tokens if len(token) > 1])
    given = {f"{role}_token": token for role, token in roles.items() if token is not None}
    return PreTrainedTokenizerFast(
        tokenizer_object=tokenizer, **given, padding_side="right", clean_up_tokenization_spaces=False
    )


def _lines(path: Path) -> list[str]:
    return [line for line in path.read_text(encoding="utf-8").split("\n") if line]
