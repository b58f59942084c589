"""Files in other encodings."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from lagwise.data import reading


@pytest.mark.parametrize(
    ("data", "advice"),
    [
        ("größe".encode("latin1"), "iconv -f latin1 -t utf-8 a.txt > utf8-a.txt"),
        ("“größe”".encode("cp1252"), "iconv -f cp1252"),
        ("größe".encode("utf-16"), "is UTF-16, not UTF-8; convert it: 'iconv -f utf-16"),
    ],
)
def test_an_encoding_is_converted_by_the_command_that_the_error_gives(data: bytes, advice: str) -> None:
    with pytest.raises(ValueError, match=re.escape(advice)):
        reading.decoded(data, Path("a.txt"))
