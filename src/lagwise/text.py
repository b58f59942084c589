"""Long texts in pieces."""

from __future__ import annotations

import re
from collections.abc import Iterator

PIECE = 1 << 16  # characters

# Where tokenizers of words cut too: before a line that starts with a word, else before the space before a word.
_PLACES = (re.compile(r"(?<=\n)(?=\S)"), re.compile(r"(?<=\S)(?= \S)"))


def pieces(text: str, size: int = PIECE) -> Iterator[str]:
    """Cut a text into pieces of ``size`` to twice as many characters (the last may be shorter): bounded memory and
    time for tokenizers.

    Cuts lie where they change no token of usual tokenizers, unless a word is longer than ``size``.
    """
    start = 0
    while len(text) - start > size:
        end = min(start + 2 * size, len(text))
        found = (place.search(text, start + size + 1, end) for place in _PLACES)
        end = next((match.start() for match in found if match), end)
        yield text[start:end]
        start = end
    if start < len(text):
        yield text[start:]
