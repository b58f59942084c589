"""ListOps (Nangia & Bowman 2018): nested operations on lists of digits, generated as Long Range Arena's."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

OPERATORS = ("[MIN", "[MAX", "[MED", "[SM")
END = "]"
_END_CODE = 14
_DIGIT_SHARE = 0.75  # of the nodes that may also be operators
_MIN_ARGUMENTS, _MAX_ARGUMENTS = 2, 10  # of an operator
_MIN_TOKENS, _MAX_TOKENS, _MAX_DEPTH = 500, 2000, 10  # of an expression, the numbers of tokens exclusive
_TREES_PER_DRAW = 2048  # a few in a hundred have a length within the limits
BLOCK = 256  # expressions that are made of one seed


@dataclass(frozen=True)
class _Level:
    """The nodes of one depth of many trees, in the order of their parents.

    Attributes:
        tree: the tree of each.
        parent: its index in the level above.
        operator: its number, or -1 for a digit.
        value: a digit's; an operator's is computed later.
    """

    tree: np.ndarray
    parent: np.ndarray
    operator: np.ndarray
    value: np.ndarray

    def only(self, keep: np.ndarray, parents: np.ndarray) -> _Level:
        """Select some of the nodes. parents: new indices of the level above."""
        return _Level(self.tree[keep], parents[self.parent[keep]], self.operator[keep], self.value[keep])


@dataclass(frozen=True)
class Expressions:
    """A batch of expressions, one per row.

    Attributes:
        codes: the tokens of each expression, 0..9 digits, 10..13 operators by `OPERATORS`, 14 the end of a list.
        arguments: number of arguments of the operator at each position, else 0.
        answers: value of each expression.
        depths: the levels of their deepest nodes, from 1.
    """

    codes: list[np.ndarray]
    arguments: list[np.ndarray]
    answers: np.ndarray
    depths: np.ndarray


def expressions(seed: int, block: int, *, count: int = BLOCK) -> Expressions:
    """Draw ``count`` expressions of more than 500 and fewer than 2,000 tokens, determined by (seed, block).

    Formula: a node at depth 1..9 is a digit 0..9 with probability 3/4, else one of MIN, MAX, MED (the whole
    part of the median) and SM (the sum modulo 10) with 2 to 10 arguments, all uniform; at depth 10 it is a digit.
    Expressions of other lengths are drawn again. Square brackets count as tokens.

    Source: Long Range Arena §2.1 and its generator's parameters.
    """
    random = np.random.default_rng((seed, block))
    result = Expressions([], [], np.empty(0, np.int64), np.empty(0, np.int64))
    while len(result.codes) < count:
        levels = _trees(random)
        counts = [np.bincount(level.tree, 1 + (level.operator >= 0), _TREES_PER_DRAW) for level in levels]
        sizes = np.sum(counts, axis=0)
        selected = np.flatnonzero((sizes > _MIN_TOKENS) & (sizes < _MAX_TOKENS))[: count - len(result.codes)]
        if len(selected):
            result = _concatenate(result, _as_tokens(_select(levels, selected), sizes[selected].astype(np.int64)))
    return result


def texts(expressions: Expressions, *, brackets: bool = True) -> Iterator[str]:
    """Write expressions as text. brackets: with the round brackets of the published files: every list is a chain of
    pairs ``( ( ( [MAX 2 ) 9 ) ] )``."""
    words = np.array([*map(str, range(10)), *OPERATORS, END], dtype=object)
    for codes, arguments in zip(expressions.codes, expressions.arguments, strict=True):
        row = words[codes]
        if brackets:
            opens, ends = np.flatnonzero(arguments), np.flatnonzero(codes == _END_CODE)
            row[opens] = np.array(["( " * (n + 1) for n in arguments[opens]], dtype=object) + row[opens]
            row[ends] += " )"
            closes = np.flatnonzero((codes < 10) | (codes == _END_CODE))[:-1]  # all but the whole are arguments
            row[closes] += " )"
        yield " ".join(row)


def _trees(random: np.random.Generator) -> list[_Level]:
    """Draw the levels of `_TREES_PER_DRAW` trees, from their roots down."""
    tree, parent, levels = np.arange(_TREES_PER_DRAW), np.zeros(_TREES_PER_DRAW, dtype=np.int64), []
    for depth in range(1, _MAX_DEPTH + 1):
        count = len(tree)
        is_list = random.random(count) >= _DIGIT_SHARE if depth < _MAX_DEPTH else np.zeros(count, dtype=bool)
        operator = np.where(is_list, random.integers(0, len(OPERATORS), count), -1)
        levels.append(_Level(tree, parent, operator, random.integers(0, 10, count)))
        if not is_list.any():
            break
        list_indices = np.flatnonzero(is_list)
        parent = np.repeat(list_indices, random.integers(_MIN_ARGUMENTS, _MAX_ARGUMENTS + 1, len(list_indices)))
        tree = tree[parent]
    return levels


def _select(levels: list[_Level], selected: np.ndarray) -> list[_Level]:
    """Select the levels of some trees, renumbered."""
    numbers = np.full(_TREES_PER_DRAW, -1)
    numbers[selected] = np.arange(len(selected))
    result: list[_Level] = []
    new_indices = np.zeros(_TREES_PER_DRAW, dtype=np.int64)
    for level in levels:
        keep = numbers[level.tree] >= 0
        if not keep.any():
            break
        nodes = level.only(keep, new_indices)
        result.append(_Level(numbers[nodes.tree], nodes.parent, nodes.operator, nodes.value))
        new_indices = np.cumsum(keep) - 1
    return result


def _as_tokens(levels: list[_Level], sizes: np.ndarray) -> Expressions:
    """Convert trees to tokens, with their values: values and sizes from the leaves up, positions from the roots
    down."""
    values, widths = [level.value.copy() for level in levels], []
    counts = [np.zeros(len(level.tree), dtype=np.int64) for level in levels]
    below = np.empty(0, dtype=np.int64)  # tokens of each node of the level below
    for at in range(len(levels) - 1, -1, -1):
        level = levels[at]
        width = 1 + (level.operator >= 0)
        if at + 1 < len(levels):
            child = levels[at + 1]
            width = width + np.bincount(child.parent, below, len(width)).astype(np.int64)
            counts[at] = np.bincount(child.parent, minlength=len(width))
            _evaluate(level, child.parent, values[at + 1], values[at])
        widths.append(width)
        below = width
    widths.reverse()
    starts = np.concatenate([[0], np.cumsum(sizes)[:-1]])
    codes, arguments = np.empty(sizes.sum(), dtype=np.int64), np.zeros(sizes.sum(), dtype=np.int64)
    depths = np.zeros(len(sizes), dtype=np.int64)
    positions = starts
    for at, (level, width) in enumerate(zip(levels, widths, strict=True)):
        if at:
            before = np.cumsum(width) - width  # over all nodes of the level; siblings by subtraction
            first = np.flatnonzero(np.diff(level.parent, prepend=-1))
            first_before = np.repeat(before[first], np.diff(np.append(first, len(width))))
            positions = positions[level.parent] + 1 + before - first_before
        is_list = level.operator >= 0
        codes[positions] = np.where(is_list, 10 + level.operator, level.value)
        codes[(positions + width - 1)[is_list]] = _END_CODE
        arguments[positions] = counts[at]
        depths[level.tree] = at + 1
    edges = np.cumsum(sizes)[:-1]
    return Expressions(np.split(codes, edges), np.split(arguments, edges), values[0], depths)


def _evaluate(level: _Level, parent: np.ndarray, values: np.ndarray, out: np.ndarray) -> None:
    """Compute the values of a level's lists from those of the level below, in ``out``."""
    if not len(parent):
        return
    order = np.lexsort((values, parent))  # the arguments of each list, sorted
    ordered = values[order]
    first = np.flatnonzero(np.diff(parent, prepend=-1))
    last = np.append(first[1:], len(parent)) - 1
    lists, low, high = parent[first], ordered[first], ordered[last]
    middle = (ordered[(first + last) // 2] + ordered[(first + last + 1) // 2]) // 2
    total = np.add.reduceat(ordered, first) % 10
    out[lists] = np.choose(level.operator[lists], (low, high, middle, total))


def _concatenate(one: Expressions, other: Expressions) -> Expressions:
    return Expressions(
        one.codes + other.codes,
        one.arguments + other.arguments,
        np.concatenate([one.answers, other.answers]),
        np.concatenate([one.depths, other.depths]),
    )
