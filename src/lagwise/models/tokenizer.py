"""The tokenizer of byte-level runs, registered with AutoTokenizer: words of a row are encoded as in running text."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from transformers import AutoTokenizer, BatchEncoding, PreTrainedTokenizerFast

from lagwise.models.configuration import LagwiseConfig


class ByteLevelTokenizer(PreTrainedTokenizerFast):
    """A byte-level tokenizer for which ``tokenizer(words, is_split_into_words=True)`` gives the tokens of
    ``" ".join(words)``: every word but the first is encoded with the space before it. Offsets do not count that space.

    With ``add_prefix_space=True`` the first word of words and texts has a space before it, too.
    """

    # transformers reads tokenizer.json only for classes without a constructor of their own.
    def _encode_plus(
        self, text: Any, text_pair: Any = None, *args: Any, is_split_into_words: bool = False, **options: Any
    ) -> BatchEncoding:
        split: Any = self.backend_tokenizer.pre_tokenizer
        if split.add_prefix_space != self.add_prefix_space:
            split.add_prefix_space = self.add_prefix_space
        if not is_split_into_words:
            return super()._encode_plus(text, text_pair, *args, **options)
        words, more = _spaced(text), None if text_pair is None else _spaced(text_pair)
        encoded = super()._encode_plus(words, more, *args, is_split_into_words=True, **options)
        if "offset_mapping" in encoded:
            batched = bool(text) and not isinstance(text[0], str)
            rows = encoded["offset_mapping"] if batched else [encoded["offset_mapping"]]
            shifted = [_without_space(row, encoded.word_ids(i)) for i, row in enumerate(rows)]
            encoded["offset_mapping"] = shifted if batched else shifted[0]
        return encoded


def _spaced(words: Sequence[Any]) -> list[Any]:
    """Put a space before all words but the first, for one row or for each of several."""
    if words and not isinstance(words[0], str):
        return [_spaced(row) for row in words]
    return [word if i == 0 or not word or word[0].isspace() else f" {word}" for i, word in enumerate(words)]


def _without_space(offsets: Sequence[Sequence[int]], words: Sequence[int | None]) -> list[tuple[int, int]]:
    """Shift offsets so that they do not count the space before a word."""
    spaces = [int(bool(word)) for word in words]
    return [(max(0, start - space), max(0, end - space)) for (start, end), space in zip(offsets, spaces, strict=True)]


AutoTokenizer.register(LagwiseConfig, ByteLevelTokenizer, exist_ok=True)
