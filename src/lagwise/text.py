"""Split long texts for tokenizers, whose memory and time grow with the length of a text."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator

_LINE, _WORD = re.compile(r"\n\S"), re.compile(r"\s\S")


def split_text(text: str | Iterable[str], size: int) -> Iterator[str]:
    """Cut a text into chunks of ``size`` to ``2 * size`` characters, if possible where word tokenizers cut too: before
    a line break and a word, or else before a space and a word.

    text: May be given in blocks of any size; only one block and one chunk are in memory at a time."""
    buffer, start = "", 0
    for block in [text] if isinstance(text, str) else text:
        buffer, start = buffer[start:] + block, 0
        while len(buffer) - start > 2 * size:
            near = (start + size, start + 2 * size)
            match = _LINE.search(buffer, *near) or _WORD.search(buffer, *near)
            end = near[0] if match is None else match.start()
            yield buffer[start:end]
            start = end
    if start < len(buffer):
        yield buffer[start:]
