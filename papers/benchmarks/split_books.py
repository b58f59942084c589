"""Cut texts of several books into a file for each book: `python papers/benchmarks/split_books.py FOLDER OUT`.

FOLDER holds train.txt, valid.txt and test.txt (or the same with .xz), each of whole books without separators, and
titles.json, the names of the books of each split in their order, such as Kipling_Kim_1901: author, a word of the title,
year. OUT/SPLIT/NAME.txt is what `lagwise data lra-retrieval --data OUT` takes.

Characters change where a book begins. Boundaries are the places, in order, with the largest total change between the
names before and after them. A title line with the word of the title counts as further evidence and fixes the place,
which is otherwise known to 2,000 characters. The change at each boundary is printed; 1 means that the two sides share
no names. 73 million characters take a few minutes.
"""

from __future__ import annotations

import argparse
import json
import re
from collections import Counter
from pathlib import Path

import numpy as np

from lagwise.data import open_source

_CELL, _WINDOW = 2_000, 60_000  # characters: distance of possible boundaries, and of the names that are compared
_SHORTEST = 50_000  # characters of a book
_TITLE = 0.2  # change of names that a title line is worth
_NAME = re.compile(r"(?<=[a-z,;] )[A-Z][a-z]{2,}")  # capitalized inside a sentence
_LINE = re.compile(r"^.{1,100}$", re.MULTILINE)


def changes(text: str) -> np.ndarray:
    """For the start of each cell: 1 minus the overlap of the distributions of names before and after it."""
    cells = [Counter(_NAME.findall(text, start, start + _CELL)) for start in range(0, len(text), _CELL)]
    before, after, width = Counter[str](), Counter[str](), _WINDOW // _CELL
    for cell in cells[:width]:
        after.update(cell)
    found = np.ones(len(cells))
    for place in range(1, len(cells)):
        before.update(cells[place - 1])
        after.subtract(cells[place - 1])
        if place > width:
            before.subtract(cells[place - 1 - width])
        if place - 1 + width < len(cells):
            after.update(cells[place - 1 + width])
        one, other = max(1, before.total()), max(1, after.total())
        found[place] -= sum(min(count / one, after[name] / other) for name, count in before.items() if count)
    return found


def title_lines(text: str, name: str) -> dict[int, int]:
    """Cells with a title line that has the name's second word, and the places of the first such lines."""
    word = re.compile(r"\b" + re.escape(name.split("_")[1]), re.IGNORECASE)
    found: dict[int, int] = {}
    for match in word.finditer(text):
        start = text.rfind("\n", 0, match.start()) + 1
        line = _LINE.match(text, start)
        if line and all(len(part) < 5 or part[0].isupper() for part in re.findall(r"\w+", line.group())):
            found.setdefault(start // _CELL, start)
    return found


def boundaries(text: str, names: list[str]) -> list[tuple[int, float]]:
    """The start of each book and the change of names there. ValueError if the text is too short for the books."""
    change = changes(text)
    change = np.maximum(change, np.append(change[1:], 0))  # the boundary is inside the cell
    gap = _SHORTEST // _CELL
    total, chosen, titles = np.where(np.arange(len(change)) == 0, 0.0, -np.inf), [], [{0: 0}]
    for name in names[1:]:
        titles.append(title_lines(text, name))
        score = change.copy()
        score[list(titles[-1])] += _TITLE
        earlier = np.concatenate([np.full(gap, -np.inf), total[:-gap]])
        best = np.maximum.accumulate(earlier)
        chosen.append(np.maximum.accumulate(np.where(earlier == best, np.arange(len(best)) - gap, 0)))
        total = score + best
    if total.max() == -np.inf:
        raise ValueError(f"a text of {len(text)} characters cannot hold {len(names)} books of {_SHORTEST}")
    places = [int(total.argmax())]
    for before in reversed(chosen):
        places.append(int(before[places[-1]]))
    places.reverse()
    return [(own.get(place, place * _CELL), float(change[place])) for place, own in zip(places, titles, strict=True)]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path, help="train, valid and test.txt or .txt.xz, and titles.json")
    parser.add_argument("out", type=Path, help="folder for the books")
    given = parser.parse_args()
    source, titles = open_source(str(given.folder)), json.loads((given.folder / "titles.json").read_text())
    for split, names in titles.items():
        text = "".join(source.documents(split))
        found = boundaries(text, names)
        (given.out / split).mkdir(parents=True)
        for name, (start, change), (end, _) in zip(names, found, [*found[1:], (len(text), 0.0)], strict=True):
            (given.out / split / f"{name}.txt").write_text(text[start:end])
            print(f"{split} {name:30} {end - start:9,} characters, change {change:.2f}: {text[start : start + 50]!r}")


if __name__ == "__main__":
    main()
