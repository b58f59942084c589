"""Split long texts for tokenizers, whose memory and time grow with the length of a text."""

from __future__ import annotations

import re
from collections.abc import Iterator

_LINE, _WORD = re.compile(r"\n\S"), re.compile(r"\s\S")


def pieces(text: str, size: int) -> Iterator[str]:
    """Cut a text into pieces of ``size`` to ``2 * size`` characters, at places where word tokenizers cut too if
    possible: before a line break and a word, or else before a space and a word."""
    start = 0
    while len(text) - start > 2 * size:
        place = _LINE.search(text, start + size, start + 2 * size) or _WORD.search(text, start + size, start + 2 * size)
        end = start + size if place is None else place.start()
        yield text[start:end]
        start = end
    if start < len(text):
        yield text[start:]
