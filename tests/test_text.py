"""Long texts are split at places where tokenizers split too."""

from __future__ import annotations

import random

import pytest

from lagwise.data import load_tokenizer
from lagwise.text import split_text

LINES = "def f(x):\n    return x  # (;\n\n\nclass A:\n    pass\n" * 20
WORDS = "it was the best of times; it was the worst " * 20


@pytest.mark.parametrize("text", ["", "a", LINES, WORDS, "x" * 1000, "\n" * 1000, " " * 999 + "a", "é€\t" * 300])
@pytest.mark.parametrize("size", [1, 7, 100, 5000])
def test_pieces_add_up_to_the_text(text: str, size: int) -> None:
    cut = list(split_text(text, size))
    assert "".join(cut) == text
    assert all(size <= len(chunk) <= 2 * size for chunk in cut[:-1])
    assert all(0 < len(chunk) <= 2 * size for chunk in cut)


@pytest.mark.parametrize("text", [LINES, WORDS])
def test_a_word_tokenizer_encodes_pieces_like_the_whole(text: str) -> None:
    random.seed(0)
    learned = " ".join(random.choices((LINES + WORDS).split(" "), k=4000))
    tokenizer = load_tokenizer("bpe", vocab_size=300, texts=iter([learned, LINES]))
    parts = [tokenizer(chunk)["input_ids"] for chunk in split_text(text, 50)]
    assert len(parts) > 5
    assert [token for part in parts for token in part] == tokenizer(text)["input_ids"]
