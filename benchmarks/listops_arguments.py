"""What the arguments of the outermost operator of ListOps tell about the answer:
`python benchmarks/listops_arguments.py [--data lra-listops] [--rows 40000] [--out FILE]`.

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
from pathlib import Path
from statistics import fmean, median
from typing import NamedTuple

import numpy as np
from sklearn.neural_network import MLPClassifier

from lagwise.bench.harness import save_results
from lagwise.data import open_format, read_labelled
from lagwise.data.labelled_rows import LABEL
from lagwise.data.listops import END, OPERATORS
from lagwise.progress import progress_bar

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


def at_ends(operator: int, arguments: Sequence[Argument], *, both: bool) -> np.ndarray:
    """Counts of the digits at one end or both, and one, in the operator's row: ``(4 * 11,)``."""
    counts = np.zeros((len(OPERATORS), 11), np.float32)
    np.add.at(counts[operator], ends(arguments, both=both), 1)
    counts[operator, 10] = 1
    return counts.ravel()


def up_to(height: int, operator: int, arguments: Sequence[Argument]) -> np.ndarray:
    """Counts of the values up to a height, and of the operators of other arguments, and one: ``(4 * 15,)``."""
    counts = np.zeros((len(OPERATORS), 10 + len(OPERATORS) + 1), np.float32)
    np.add.at(counts[operator], [a.value if a.height <= height else 10 + a.operator for a in arguments], 1)
    counts[operator, -1] = 1
    return counts.ravel()


def accuracy(features: Sequence[np.ndarray], labels: Sequence[np.ndarray]) -> float:
    """Of a network with a hidden layer of 128, trained on the first of each and tested on the second: the mean over
    its seeds."""
    networks = (MLPClassifier(128, early_stopping=True, random_state=seed) for seed in _SEEDS)
    return fmean(float(each.fit(features[0], labels[0]).score(features[1], labels[1])) for each in networks)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", default="lra-listops", help="files of Long Range Arena, or a generated set")
    parser.add_argument("--rows", type=int, default=40_000, help="rows of the training file to learn from (40,000)")
    parser.add_argument("--out", type=Path, default=Path("benchmarks/results/listops-arguments.json"))
    given = parser.parse_args()
    rows = read_labelled(open_format(given.data, "listops"), ("text",), "label")
    train, test = (rows.splits[split] for split in ("train", "test"))
    texts = [train["text"][: given.rows], [*train["text"][given.rows :], *test["text"][:]]]
    labels = [np.asarray(train[LABEL][: given.rows]), np.asarray([*train[LABEL][given.rows :], *test[LABEL][:]])]
    bar = progress_bar([text for part in texts for text in part], desc="reading expressions", unit="row", show=True)
    every = [outermost(text) for text in bar]
    read = [every[: given.rows], every[given.rows :]]
    known = {"leading": lambda o, a: at_ends(o, a, both=False), "ends": lambda o, a: at_ends(o, a, both=True)}
    known |= {f"height {h}": lambda o, a, h=h: up_to(h, o, a) for h in _HEIGHTS}
    found = {}
    with progress_bar(desc="networks", total=len(known), unit="network", show=True) as bar:
        for name, features in known.items():
            found[name] = accuracy([np.stack([features(*row) for row in part]) for part in read], labels)
            print(f"{name}: test accuracy {found[name]:.4f}", flush=True)
            bar.update()
    command = f"python benchmarks/listops_arguments.py {' '.join(sys.argv[1:])}".rstrip()
    save_results(given.out, command, {"rows": [*map(len, read)], "accuracy": found})


if __name__ == "__main__":
    main()
