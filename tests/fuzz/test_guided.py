"""What coverage-guided fuzzing begins with, and what it found to fail, is read or refused."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from guided.harnesses import CORPUS, HARNESSES


def test_every_reader_is_fuzzed() -> None:
    (readers,) = re.findall(r"^READERS := (.*)$", (Path(__file__).parents[2] / "Makefile").read_text(), re.MULTILINE)
    assert readers.split() == list(HARNESSES)


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("name", HARNESSES)
def test_the_corpus_is_read_or_refused(name: str) -> None:
    files = sorted(Path(CORPUS, name).iterdir())
    assert files
    for file in files:
        HARNESSES[name](file.read_bytes())
