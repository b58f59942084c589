"""Several labels a row: lists of names, names between separators, vectors of 0 and 1, or columns of 0 and 1."""

from __future__ import annotations

import ast
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from lagwise.data.labels import SEPARATORS, Labels, class_name, is_missing, natural

MULTI_LABEL = "multi_label"
_ON, _OFF = ("1", "true"), ("0", "false")
_SAMPLE = 1000  # rows that mostly show that a column is not one of 0 and 1
_FILL_IN = "remove such rows, or write an empty list, or 0 in every column, for those with none of the labels"

Where = Callable[[str, int], str]


def has_lists(cells: Sequence[Any]) -> bool:
    """Whether labels are lists, or lists in text, as programs write them into tables."""
    if any(map(_is_list, cells)):
        return True
    written = [cell for cell in cells if not is_missing(cell)]
    return bool(written) and all(_items(cell) is not None for cell in written)


def read_several(
    columns: Mapping[str, Sequence[Any]], where: Where, order: Sequence[str] = (), reason: str = "as task.kind says"
) -> Labels:
    """Labels of rows of which each may have several: values of 0 and 1 for each name.

    Args:
        columns: in every split a cell of each row: a list of names, or of 0 and 1; or names between ``|``, ``;`` or
            ``,``, the first of these that occurs; of these an empty cell is a row with none of the labels.
        where: names a row of a split, for messages.
        order: all names, in the order of their values.
        reason: why rows have several labels.

    ValueError for train rows without a list, cells of mixed types, labels that train lacks, and fewer than two labels.
    """
    if any(map(has_lists, columns.values())):
        reason = "the labels are lists" if reason == "as task.kind says" else reason
    if any(_is_list(cell) for column in columns.values() for cell in column):
        read = _lists(columns, where)
    else:
        read, separator = _separated(columns, where)
        reason = f"labels between {separator!r}" if separator else reason
    if vectors := _vectors(read):
        order = order or [str(i) for i in range(vectors)]
        names_of: Any = {
            s: [_of_vector(c, order, where, s, i) for i, c in enumerate(column)] for s, column in read.items()
        }
        read, reason = names_of, "the labels are vectors of 0 and 1"
    absent = [i for i, cell in enumerate(read["train"]) if cell is None]
    if absent:
        first = where("train", absent[0])
        raise ValueError(f"{len(absent)} of {len(read['train'])} rows have no labels, the first is {first}; {_FILL_IN}")
    counts = Counter(name for cell in read["train"] for name in cell or ())
    names = list(order) or sorted(counts, key=natural)
    if len(names) < 2:
        found = f"the only label is {names[0]!r}" if names else "no row has a label"
        raise ValueError(f"{found}; several labels a row need two labels or more (task.kind=classification: classes)")
    if never := [name for name in names if not counts[name]]:
        raise ValueError(f"no row of train has the label {never[0]!r} ({len(never)} such labels); leave it out")
    places = {name: i for i, name in enumerate(names)}
    values: dict[str, list[Any]] = {}
    for split, column in read.items():
        for i, cell in enumerate(column):
            unknown = next((name for name in cell or () if name not in places), None)
            if unknown is not None:
                raise ValueError(f"label {unknown!r} of {where(split, i)} does not occur in train")
        values[split] = [None if cell is None else _marked(cell, places) for cell in column]
    return Labels(MULTI_LABEL, reason, tuple(names), values)


def known_several(cells: Sequence[Any], names: Sequence[str], where: Callable[[int], str]) -> list[list[int]]:
    """Values of 0 and 1 for each name that a model knows, of the rows of other data; cells as in `read_several`.

    ValueError for a missing list, rows without any label, and a label that the model does not know.
    """
    places, read = {class_name(name): i for i, name in enumerate(names)}, []
    may_be_empty = not any(map(_is_list, cells)) and not all(map(_is_absent, cells))  # text without a name
    for i, cell in enumerate(cells):
        if _is_absent(cell) and not may_be_empty:
            raise ValueError(f"{where(i)} has no labels; {_FILL_IN}")
        own = _items(cell)
        if own is None and (cell is None or isinstance(cell, str)):
            own = [] if cell is None or is_missing(cell) else _known_pieces(cell, places)
        if own is None:
            known = " ".join(SEPARATORS)
            raise ValueError(f"the labels of {where(i)} are {cell!r}, not a list or names between {known}")
        read.append(own)
    if _vectors({"": read}) == len(names):
        return [[int(item in _ON) for item in cell] for cell in read]
    for i, own in enumerate(read):
        unknown = next((name for name in own if name not in places), None)
        if unknown is not None:
            raise ValueError(f"the label {unknown!r} of {where(i)} is none that the model knows ({', '.join(names)})")
    return [_marked(own, places) for own in read]


def named_columns(cells: Mapping[str, Sequence[Any]], where: Callable[[int], str]) -> list[list[str] | None]:
    """The labels of rows of which columns of 0 and 1 say whether a row has each; None where all are missing.

    ValueError for other values, and rows of which some are missing.
    """
    found: list[list[str] | None] = []
    for i, row in enumerate(zip(*cells.values(), strict=True)):
        if all(is_missing(value) for value in row):
            found.append(None)
            continue
        own = []
        for name, value in zip(cells, row, strict=True):
            word = class_name(value).lower()
            if is_missing(value) or word not in (*_ON, *_OFF):
                raise ValueError(f"{name!r} of {where(i)} is {value!r}; a column of labels has 0 and 1")
            if word in _ON:
                own.append(name)
        found.append(own)
    return found


def indicator_columns(rows: Any, others: Sequence[str]) -> list[str]:
    """The columns of a table that have only 0 and 1 (or true and false), both of them, apart from ``others``; cells may
    be missing."""
    table: Any = rows.with_format("arrow")[:]  # columns of Arrow, as a Dataset copies all features for each
    columns = {name: table.column(name) for name in table.column_names if name not in others}
    likely = {name: cells for name, cells in columns.items() if _indicators(cells[:_SAMPLE].to_pylist()) is not None}
    return [name for name, cells in likely.items() if _indicators(cells.to_pylist()) == {True, False}]


def _indicators(cells: Sequence[Any]) -> set[bool] | None:
    """Whether any cells are 1, and any 0; None if there are others."""
    written = [cell for cell in cells if not is_missing(cell)]
    if not all(isinstance(cell, str | int | float) for cell in written):
        return None
    words = {class_name(cell).lower() for cell in written}
    return {word in _ON for word in words} if words <= {*_ON, *_OFF} else None


def _is_absent(cell: Any) -> bool:
    return not _is_list(cell) and is_missing(cell)


def _is_list(cell: Any) -> bool:
    return isinstance(cell, list | tuple | np.ndarray)


def _items(cell: Any) -> list[str] | None:
    """The names in a list, also one in text, as programs write it; None for no list."""
    if isinstance(cell, str) and cell.strip()[:1] == "[" and cell.strip()[-1:] == "]":
        try:
            cell = ast.literal_eval(cell.strip())
        except (ValueError, SyntaxError):
            return None
    if not _is_list(cell):
        return None
    return [class_name(item) for item in cell]


def _lists(columns: Mapping[str, Sequence[Any]], where: Where) -> dict[str, list[list[str] | None]]:
    for split, column in columns.items():
        for i, cell in enumerate(column):
            if cell is None:
                continue
            if not _is_list(cell):
                raise ValueError(
                    f"the labels of {where(split, i)} are {cell!r}, not a list, as those of other rows are"
                )
            if any(not isinstance(item, str | int | float | np.generic) or is_missing(item) for item in cell):
                raise ValueError(f"the labels of {where(split, i)} are {cell!r}; a list has names or numbers")
    return {split: [_items(cell) for cell in column] for split, column in columns.items()}


def _separated(columns: Mapping[str, Sequence[Any]], where: Where) -> tuple[dict[str, list[list[str] | None]], str]:
    """The names in text, and what separates them. A split without any label has none."""
    cells = {s: ["" if is_missing(cell) else cell for cell in column] for s, column in columns.items()}
    for split, column in cells.items():
        for i, cell in enumerate(column):
            if not isinstance(cell, str | int | float):
                raise ValueError(f"the labels of {where(split, i)} are {type(cell).__name__}, not a list or text")
    written = [str(cell) for column in cells.values() for cell in column if cell != ""]
    if written and all(_items(cell) is not None for cell in written):
        return {
            s: [None if not any(map(str, column)) else [] if cell == "" else _items(cell) for cell in column]
            for s, column in cells.items()
        }, ""
    separator = next((each for each in SEPARATORS if any(each in cell for cell in written)), "")
    found: dict[str, list[list[str] | None]] = {}
    for split, column in cells.items():
        labelled = any(cell != "" for cell in column)
        found[split] = [_pieces(cell, separator) if labelled else None for cell in column]
    return found, separator


def _pieces(cell: Any, separator: str) -> list[str]:
    parts = str(cell).split(separator) if separator and isinstance(cell, str) else [cell]
    return [class_name(part) for part in parts if str(part).strip()]


def _known_pieces(cell: str, names: Mapping[str, int]) -> list[str]:
    """The names in text, by the separator that gives only names that are known, or else the first that occurs."""
    for separator in ("", *SEPARATORS):
        if all(piece in names for piece in _pieces(cell, separator)):
            return _pieces(cell, separator)
    return _pieces(cell, next((each for each in SEPARATORS if each in cell), ""))


def _vectors(read: Mapping[str, Sequence[Sequence[str] | None]]) -> int:
    """The length of all lists, if they are vectors of 0 and 1: as names, two or more would be in every list, or one
    twice."""
    cells = [cell for column in read.values() for cell in column if cell is not None]
    same = len({len(cell) for cell in cells}) == 1 and {item for cell in cells for item in cell} <= {*_ON, *_OFF}
    return len(cells[0]) if same and len(cells[0]) > 1 else 0


def _of_vector(cell: Any, names: Sequence[str], where: Where, split: str, i: int) -> list[str] | None:
    if cell is None:
        return None
    if len(cell) != len(names):
        raise ValueError(f"the labels of {where(split, i)} have {len(cell)} values, for {len(names)} labels")
    return [name for name, item in zip(names, cell, strict=True) if item in _ON]


def _marked(cell: Sequence[str], places: Mapping[str, int]) -> list[int]:
    row = [0] * len(places)
    for name in cell:
        row[places[name]] = 1
    return row


def strata(rows: Sequence[Sequence[int]], least: int) -> list[int | None]:
    """A class for each row, by which rows are divided so that every part has each label: the rarest label of the row;
    None for rows without labels, and for classes with fewer than ``least`` rows."""
    marks = np.asarray(rows)
    counts = marks.sum(0)
    rarest = [min(np.flatnonzero(row).tolist(), key=lambda i: counts[i], default=None) for row in marks]
    sizes = Counter(rarest)
    return [None if sizes[each] < least else each for each in rarest]
