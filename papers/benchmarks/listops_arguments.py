"""What the arguments of the outermost operator of ListOps tell about the answer:
`python papers/benchmarks/listops_arguments.py [--data lra-listops] [--rows 40000] [--out FILE]`.

A small network predicts the answer from counts: the outermost operator, and its arguments by digit, or by operator
where the value of an argument is not given. It is given the values of different arguments:

- leading, ends: digits before the first list, or also those after the last one, and nothing about the lists. A model
  whose last layer sees only the tokens around one or both ends of the row can know them.
- height 0, 1, ...: digits, and lists that are nested at most so deep. A model has to find brackets that match, which
  may be a thousand tokens apart, to know even the digits.

An accuracy of a model thus says how far it has come. Each network is trained three times from other weights, and tested
on the test file and all other rows of the training file; the mean is reported.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from statistics import fmean, median
from typing import NamedTuple

import numpy as np
from datasets import concatenate_datasets
from sklearn.neural_network import MLPClassifier

from lagwise.data import read_labelled
from lagwise.data.labelled_rows import LABEL
from lagwise.progress import progress_bar
from lagwise_papers.bench.timing import save_results
from lagwise_papers.data.listops import END, OPERATORS
from lagwise_papers.data.published import ARENA

_VALUES: tuple[Callable[[list[int]], int], ...] = (min, max, lambda a: int(median(a)), lambda a: sum(a) % 10)
_HEIGHTS, _SEEDS = (0, 1, 2, 4), (0, 1, 2)


class Argument(NamedTuple):
    """height: 0 for a digit. operator: number in `OPERATORS`, or -1 for a digit."""

    value: int
    height: int
    operator: int


def outermost(expression: str) -> tuple[int, list[Argument]]:
    """The number of the outermost operator, and its arguments. ValueError if the expression is not one list."""
    lists: list[tuple[int, list[Argument]]] = []
    words = expression.split()
    for place, word in enumerate(words):
        if word in OPERATORS:
            lists.append((OPERATORS.index(word), []))
            continue
        if word == END and len(lists) == 1 and place == len(words) - 1:
            return lists[0]
        if len(lists) < 1 + (word == END):
            break
        found = Argument(int(word), 0, -1) if word != END else _evaluated(*lists.pop())
        lists[-1][1].append(found)
    raise ValueError(f"expected one list of ListOps, got {expression[:60]!r}")


def _evaluated(operator: int, arguments: list[Argument]) -> Argument:
    value = _VALUES[operator]([each.value for each in arguments])
    return Argument(value, 1 + max(each.height for each in arguments), operator)


def ends(arguments: Sequence[Argument], *, both: bool) -> list[int]:
    """Digits before the first list and, with ``both``, after the last one."""
    lists = [place for place, each in enumerate(arguments) if each.height]
    first, last = (lists[0], lists[-1]) if lists else (len(arguments), len(arguments))
    return [each.value for each in (*arguments[:first], *(arguments[last + 1 :] if both else ()))]


def up_to(height: int, arguments: Sequence[Argument]) -> list[int]:
    """The values of arguments up to a height, and 10 plus the operator of each other one."""
    return [each.value if each.height <= height else 10 + each.operator for each in arguments]


def counts(operator: int, found: Sequence[int], width: int) -> np.ndarray:
    """How often each number below ``width`` was found, and one, in the operator's row: ``(4 * (width + 1),)``."""
    table = np.zeros((len(OPERATORS), width + 1), np.float32)
    table[operator, :width] = np.bincount(found, minlength=width) if found else 0
    table[operator, width] = 1
    return table.ravel()


def accuracy(features: np.ndarray, labels: np.ndarray, trained: int) -> float:
    """Of a network with a hidden layer of 128, trained on so many rows and tested on the others: the mean over its
    seeds."""
    networks = (MLPClassifier(128, early_stopping=True, random_state=seed) for seed in _SEEDS)
    done = (each.fit(features[:trained], labels[:trained]) for each in networks)
    return fmean(float(each.score(features[trained:], labels[trained:])) for each in done)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", default="lra-listops", help="files of Long Range Arena, or a generated set")
    parser.add_argument("--rows", type=int, default=40_000, help="rows of the training file to learn from (40,000)")
    parser.add_argument("--out", type=Path, default=Path("benchmarks/results/listops-arguments.json"))
    given = parser.parse_args()
    rows = read_labelled(ARENA["listops"].open(given.data), ("text",), "label")
    every = concatenate_datasets([rows.splits["train"], rows.splits["test"]])
    labels = np.asarray(every[LABEL])
    read = [outermost(text) for text in progress_bar(every["text"][:], desc="reading", unit="row", show=True)]
    known: dict[str, tuple[Callable[[list[Argument]], list[int]], int]] = {
        "leading": (partial(ends, both=False), 10),
        "ends": (partial(ends, both=True), 10),
        **{f"height {height}": (partial(up_to, height), 10 + len(OPERATORS)) for height in _HEIGHTS},
    }
    found = {}
    for name, (of, width) in progress_bar(known.items(), desc="networks", unit="network", show=True):
        features = np.stack([counts(operator, of(arguments), width) for operator, arguments in read])
        found[name] = accuracy(features, labels, given.rows)
        print(f"{name}: test accuracy {found[name]:.4f}", flush=True)
    sizes = [given.rows, len(read) - given.rows]
    save_results(given.out, " ".join(["python", *sys.argv]), {"rows": sizes, "accuracy": found})


if __name__ == "__main__":
    main()
