"""Pairs of passages from books in one text, and the bag of bytes that a model of them has to beat."""

from __future__ import annotations

import string
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from lagwise.data import read_labelled
from lagwise_papers.bench.text_baselines import bag_of_bytes, majority
from lagwise_papers.data.generated import generate
from lagwise_papers.data.published import ARENA


def book(title: str, letters: str) -> str:
    """About 100,000 characters about three persons, whose names begin with the letters."""
    random = np.random.default_rng(ord(letters[0]))
    names = [letter + "".join(random.choice(list(string.ascii_lowercase), 6)) for letter in letters]
    words = np.concatenate([["house", "road", "said", f"{letters[0].lower()}ord"] * 6, names])
    lines = (" ".join(["then", *random.choice(words, 9), "went."]) for _ in range(1700))
    return f"{title.upper()}\n\nby Somebody\n\n" + "\n".join(lines) + "\n"


@pytest.fixture(scope="module")
def pairs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two books in each split, and pairs of their passages."""
    folder = tmp_path_factory.mktemp("books")
    for split, letters in (("train", "ABCDEF"), ("valid", "GHIJKL"), ("test", "MNOPQR")):
        (folder / "books" / split).mkdir(parents=True)
        for part in (letters[:3], letters[3:]):
            (folder / "books" / split / f"{part}.txt").write_text(book(f"The Castle of {part}", part))
    generate("lra-retrieval", folder / "pairs", rows=40, seed=0, texts=folder / "books", progress=False)
    return folder / "pairs"


def test_pairs_are_made_of_the_books(pairs: Path) -> None:
    rows = ARENA["aan"].open(str(pairs)).read()
    assert {split: len(part) for split, part in rows.items()} == {"train": 40, "valid": 4, "test": 4}
    for row in rows["train"]:
        marks = {letter in row["text1"] and letter in row["text2"] for letter in ("aord", "dord")}
        assert (True in marks) == (row["label"] == 1)


def test_bag_of_bytes_finds_texts_of_equal_letters(tmp_path: Path) -> None:
    random = np.random.default_rng(0)
    for part, count in (("train", 200), ("eval", 10), ("test", 100)):
        lines = []
        for label in np.arange(count) % 2:
            one, other = (random.dirichlet(np.ones(10)) for _ in range(2))
            texts = ["".join(random.choice(list("éabcdefghi"), 400, p=p)) for p in (one, one if label else other)]
            lines.append("\t".join([str(label), "1", "2", *texts]) + "\n")
        (tmp_path / f"new_aan_pairs.{part}.tsv").write_text("".join(lines))
    rows = read_labelled(ARENA["aan"].open(str(tmp_path)), ("text1", "text2"), "label")
    assert majority(rows)["accuracy"] == 0.5
    assert bag_of_bytes(rows)["accuracy"] > 0.9
    with pytest.raises(ValueError, match="are numbers"):
        bag_of_bytes(replace(rows, label_names=None))
