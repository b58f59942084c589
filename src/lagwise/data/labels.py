"""The labels of a table: names of classes, numbers, or several names a row, and the label of each row."""

from __future__ import annotations

import ast
import math
import re
import unicodedata
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import chain
from typing import Any

import numpy as np

from lagwise.data.text_tables import MISSING
from lagwise.tables import known

MULTI_LABEL = "multi_label"
KINDS = ("auto", "classification", "regression", MULTI_LABEL)
SEPARATORS = ("|", ";", ",")  # marks between several labels in a text
_MAX_INTEGER_CLASSES = 50  # more different integers are amounts, not classes
_ZERO_WIDTH = re.compile("[\u200b\u2060\ufeff]")  # a space, a joiner and a byte order mark that are not seen
_CODE = re.compile(r"0\d+")  # digits that begin with a zero, which numbers do not keep
_ON, _OFF = ("1", "true"), ("0", "false")
_SAMPLE_ROWS = 1000  # rows that mostly show that a column is not one of 0 and 1
_FILL_IN = "remove such rows, or write an empty list, or 0 in every column, for those with none of the labels"

Where = Callable[[str, int], str]  # the name of a row of a split in messages
Columns = Mapping[str, Sequence[Any]]  # the cells of each split


@dataclass(frozen=True)
class Labels:
    """The labels of rows."""

    kind: str  # classification, regression or several labels per row
    reason: str  # of the kind, in words
    names: tuple[str, ...] | None  # of the classes, in the order of their ids
    values: dict[str, list[Any]]  # by split an id or a number, or 0 or 1 for each name; None for a row without a label


def read_labels(columns: Columns, kind: str, where: Where, order: Sequence[str] = ()) -> Labels:
    """Read the labels from the values of the label column in every split; ``train`` must be one of them. Strings that
    are all numbers count as numbers, but if one begins with a zero, as 007 does, they are codes. kind ``auto``: text,
    codes and at most 50 different integers are classes; fractions and more integers are amounts, beside which texts
    such as NA are missing. Class names are sorted, numbers in them by value, unless ``order`` names them."""
    known(kind, KINDS, "`kind`")
    texts = {v: _number(v) for column in columns.values() for v in column if isinstance(v, str)}
    words = {text for text, number in texts.items() if number is None}
    amounts = any(number is not None and not number.is_integer() for number in texts.values())
    signs = words if amounts and all(word.strip().lower() in MISSING for word in words) else set()
    cells = {
        s: [None if is_missing(v) or (isinstance(v, str) and v in signs) else v for v in column]
        for s, column in columns.items()
    }
    absent = [i for i, value in enumerate(cells["train"]) if value is None]
    if absent:
        value = columns["train"][absent[0]]
        raise ValueError(
            f"{len(absent)} of {len(cells['train'])} rows have no label, the first is {where('train', absent[0])} "
            f"({value!r}); fill them in or remove them"
        )
    values = _numbers(cells, where)
    inferred, reason = _kind(values)
    if any(isinstance(v, str) and _CODE.fullmatch(v.strip()) for v in chain(*cells.values())):
        inferred, reason = "classification", "the labels are codes with zeros in front"
    kind, reason = (inferred, reason) if kind == "auto" else (kind, "as declared")
    if kind == "regression":
        if values is None:
            written = ((s, i, v) for s, column in cells.items() for i, v in enumerate(column) if v is not None)
            split, i, value = next(each for each in written if _number(each[2]) is None)
            raise ValueError(f"label {value!r} of {where(split, i)} is not a number; regression needs numbers")
        if len(cells["train"]) > 1 and len(different := {*values["train"]}) == 1:
            raise ValueError(
                f"all {len(cells['train'])} labels are {different.pop()}; regression needs different numbers"
            )
        return Labels(kind, reason, None, values)
    named = {s: [None if v is None else class_name(v) for v in column] for s, column in cells.items()}
    classes = {name for name in named["train"] if name is not None}
    names = [n for n in dict.fromkeys(map(class_name, order)) if n in classes] or sorted(classes, key=natural)
    if len(names) < 2:
        raise ValueError(f"all {len(named['train'])} labels are {names[0]!r}; classification needs two classes or more")
    ids: dict[str | None, int | None] = {None: None, **{name: i for i, name in enumerate(names)}}
    for split, column in named.items():
        if unknown := Counter(name for name in column if name not in ids):
            name, count = unknown.most_common(1)[0]
            raise ValueError(
                f"label {name!r} of {where(split, column.index(name))} ({count} such rows in {split}) does not occur "
                "in train"
            )
    return Labels(kind, reason, tuple(names), {s: [ids[name] for name in column] for s, column in named.items()})


def alike_note(names: Sequence[str] | None) -> list[str]:
    """A note if some classes have one name but for its case, or are one number."""
    groups: dict[Any, list[str]] = {}
    for name in names or ():
        number = _number(name)
        groups.setdefault(name.casefold() if number is None else number, []).append(name)
    alike = [" and ".join(map(repr, each)) for each in groups.values() if len(each) > 1]
    more = f" (and {len(alike) - 1:,} more such)" if len(alike) > 1 else ""
    return [f"{alike[0]} are different classes{more}; write them alike if they are one"] if alike else []


def read_labels_for(values: Sequence[Any], names: Sequence[str] | None, where: Callable[[int], str]) -> list[Any]:
    """Read the labels of rows for a trained model: ids of its classes ``names``, or numbers if these are None."""
    # earlier versions kept the zeros of 1.0 and the capital of True
    ids = {class_name(name): i for i, name in enumerate(names or ())} | {name: i for i, name in enumerate(names or ())}
    labels: list[Any] = []
    for i, value in enumerate(values):
        if is_missing(value):
            raise ValueError(f"{where(i)} has no label")
        number = _number(value) if names is None else ids.get(class_name(value))
        if number is None or not math.isfinite(number):
            fault = "not a finite number" if names is None else f"which the model does not know ({', '.join(names)})"
            raise ValueError(f"the label of {where(i)} is {value!r}, {fault}")
        labels.append(number)
    return labels


def is_missing(value: Any) -> bool:
    """Whether a cell of a table has no value."""
    if isinstance(value, str):
        return value.strip().lower() in ("", "nan")
    return value is None or (isinstance(value, float) and math.isnan(value))


def _numbers(cells: Columns, where: Where) -> dict[str, list[float | None]] | None:
    """The labels as numbers, or None if they are words."""
    words: dict[Any, tuple[str, int]] = {}  # and the first cell of each
    fractions: dict[Any, tuple[str, int]] = {}
    for split, i, value in ((s, i, v) for s, column in cells.items() for i, v in enumerate(column) if v is not None):
        if not isinstance(value, str | int | float):
            raise ValueError(f"the label of {where(split, i)} is {type(value).__name__}, not text or a number")
        number = _number(value)
        if number is None:
            words.setdefault(value, (split, i))
        elif not math.isfinite(number):
            raise ValueError(f"the label of {where(split, i)} is {value!r}, not a finite number")
        elif not number.is_integer():
            fractions.setdefault(value, (split, i))
    if words and all(math.isinf(_float(word) or 0) for word in words):
        value, cell = next(iter(words.items()))
        raise ValueError(f"the label of {where(*cell)} is {value!r}, not a finite number")
    if words and fractions:
        examples = ", ".join(f"{v!r} ({where(*cell)})" for v, cell in [*fractions.items()][:1] + [*words.items()][:1])
        raise ValueError(f"labels of mixed types: {examples}; make all of them text or all of them numbers")
    return None if words else {s: [None if v is None else _number(v) for v in column] for s, column in cells.items()}


def _kind(numbers: Mapping[str, Sequence[float | None]] | None) -> tuple[str, str]:
    if numbers is None:
        return "classification", "the labels are text"
    different = {n for column in numbers.values() for n in column if n is not None}
    if not all(n.is_integer() for n in different):
        return "regression", "the labels are numbers with fractions"
    if len(different) > _MAX_INTEGER_CLASSES:
        return "regression", f"the labels are {len(different)} different integers, more than {_MAX_INTEGER_CLASSES}"
    return "classification", f"the labels are {len(different)} different integers"


def _number(value: Any) -> float | None:
    if isinstance(value, bool) or "_" in str(value):  # Python reads 1_000, other programs do not
        return None
    number = _float(value)
    return None if number is None or (isinstance(value, str) and not math.isfinite(number)) else number


def _float(value: Any) -> float | None:
    try:
        return float(value)
    except (ValueError, OverflowError):
        return None


def class_name(value: Any) -> str:
    """A label as the file has it: ``0`` also for 0.0, since columns with gaps have floats, ``true`` also for True and
    TRUE. Spellings that look the same are one: text is composed (NFC), without characters that have no width."""
    text = str(value).strip()
    if not text.isascii():
        text = unicodedata.normalize("NFC", _ZERO_WIDTH.sub("", text)).strip()
    if text.lower() in ("true", "false"):
        return text.lower()
    if isinstance(value, float) and value.is_integer():
        return str(int(value))
    return re.sub(r"^(-?\d+)\.0+$", r"\1", text)


def natural(name: str) -> tuple[Any, ...]:
    """The key by which names are sorted. Numbers by value, before text; in text the digits by value."""
    number = _number(name)
    if number is not None:
        return (0, number, name)
    return (1, [(part.isdecimal(), int(part) if part.isdecimal() else 0, part) for part in re.split(r"(\d+)", name)])


def has_lists(cells: Sequence[Any]) -> bool:
    """Whether labels are lists, or lists in text, as programs write them into tables."""
    written = [cell for cell in cells if not _is_absent(cell)]
    return any(map(_is_list, cells)) or (bool(written) and all(_items(cell) is not None for cell in written))


def read_several(columns: Columns, where: Where, order: Sequence[str] = (), reason: str = "as declared") -> Labels:
    """Read the labels of rows of which each may have several, as values of 0 and 1 for each name. Cells are lists of
    names, or of 0 and 1; or names between ``|``, ``;`` or ``,``, the first of these that occurs; of these an empty cell
    is a row with none of the labels. order: all names, in the order of their values. reason: why rows have several."""
    every = [*chain(*columns.values())]
    listed = has_lists(every)
    mark = next((m for m in SEPARATORS if not listed and any(isinstance(v, str) and m in v for v in every)), "")
    if listed or mark:
        reason = f"labels between {mark!r}" if mark else "the labels are lists" if reason == "as declared" else reason
    read = {s: _parsed(column, lambda cell: mark, partial(where, s)) for s, column in columns.items()}
    if size := _vector_size(read):
        order, reason = order or [str(i) for i in range(size)], "the labels are vectors of 0 and 1"
        if size != len(order):
            split, i = next((s, i) for s, column in read.items() for i, cell in enumerate(column) if cell)
            raise ValueError(f"the labels of {where(split, i)} have {size} values, for {len(order)} labels")
        read = {s: [cell and _chosen(cell, order) for cell in column] for s, column in read.items()}
    absent = [i for i, cell in enumerate(read["train"]) if cell is None]
    if absent:
        first = where("train", absent[0])
        raise ValueError(f"{len(absent)} of {len(read['train'])} rows have no labels, the first is {first}; {_FILL_IN}")
    counts = Counter(name for cell in read["train"] for name in cell or ())
    names = list(order) or sorted(counts, key=natural)
    if len(names) < 2:
        fault = f"the only label is {names[0]!r}" if names else "no row has a label"
        raise ValueError(f"{fault}; several labels a row need two labels or more (`kind=classification`: classes)")
    if never := [name for name in names if not counts[name]]:
        raise ValueError(f"no row of train has the label {never[0]!r} ({len(never)} such labels); leave it out")
    values = {}
    for split, column in read.items():
        unknown = next(((i, name) for i, cell in enumerate(column) for name in cell or () if name not in names), None)
        if unknown:
            raise ValueError(f"label {unknown[1]!r} of {where(split, unknown[0])} does not occur in train")
        values[split] = [None if cell is None else _marked(cell, names) for cell in column]
    return Labels(MULTI_LABEL, reason, tuple(names), values)


def _parsed(cells: Sequence[Any], mark: Callable[[str], str], where: Callable[[int], str]) -> list[list[str] | None]:
    """The names in each cell of a split, None where they are missing. mark: what separates names in text."""
    missing = None if any(map(_is_list, cells)) or all(map(_is_absent, cells)) else []
    parsed: list[list[str] | None] = []
    for i, cell in enumerate(cells):
        items = [] if _is_absent(cell) else _items(cell)
        if items is None:
            items = cell.split(mark(cell)) if isinstance(cell, str) and mark(cell) else [cell]
            items = [item for item in items if str(item).strip()]
        if any(not isinstance(item, str | int | float | np.generic) or is_missing(item) for item in items):
            raise ValueError(f"the labels of {where(i)} are {cell!r}; a list has names or numbers")
        parsed.append(missing if _is_absent(cell) else list(map(class_name, items)))
    return parsed


def read_several_for(cells: Sequence[Any], names: Sequence[str], where: Callable[[int], str]) -> list[list[int]]:
    """Values of 0 and 1 for each name that a model knows, of the rows of other data; cells as in `read_several`."""
    plain = list(map(class_name, names))

    def mark(cell: str) -> str:
        """The mark that gives known names alone, or else the first one in a cell."""
        if class_name(cell) in plain:
            return ""
        present = [each for each in SEPARATORS if each in cell]
        known_alone = (m for m in present if {class_name(part) for part in cell.split(m) if part.strip()} <= {*plain})
        return next(known_alone, next(iter(present), ""))

    read: list[Any] = _parsed(cells, mark, where)
    if None in read:
        raise ValueError(f"{where(read.index(None))} has no labels; {_FILL_IN}")
    if _vector_size({"": read}) == len(names):
        read = [_chosen(cell, plain) for cell in read]
    for i, own in enumerate(read):
        if unknown := [name for name in own if name not in plain]:
            raise ValueError(
                f"the label {unknown[0]!r} of {where(i)} is none that the model knows ({', '.join(names)})"
            )
    return [_marked(own, plain) for own in read]


def named_columns(cells: Columns, where: Callable[[int], str]) -> list[list[str] | None]:
    """The labels of rows of which columns of 0 and 1 say whether a row has each; None where all are missing."""
    labels: list[list[str] | None] = []
    for i, row in enumerate(zip(*cells.values(), strict=True)):
        absent, flags = all(map(is_missing, row)), list(map(_flag, row))
        if not absent and None in flags:
            wrong = flags.index(None)
            raise ValueError(f"{[*cells][wrong]!r} of {where(i)} is {row[wrong]!r}; a column of labels has 0 and 1")
        labels.append(None if absent else _chosen(row, list(cells)))
    return labels


def indicator_columns(rows: Any, others: Sequence[str]) -> list[str]:
    """The columns of a table that have only 0 and 1 (or true and false), both of them, apart from ``others``."""
    table: Any = rows.with_format("arrow")[:]  # columns of Arrow, as a Dataset copies all features for each
    columns = {name: table.column(name) for name in table.column_names if name not in others}
    likely = {name: cells for name, cells in columns.items() if None not in _flags(cells[:_SAMPLE_ROWS])}
    return [name for name, cells in likely.items() if _flags(cells) == {True, False}]


def _flags(column: Any) -> set[bool | None]:
    return {_flag(cell) for cell in column.to_pylist() if not is_missing(cell)}


def _flag(cell: Any) -> bool | None:
    """Whether a cell is 1 or true, and not 0 or false; None for any other."""
    word = class_name(cell).lower() if isinstance(cell, str | int | float) else ""
    return True if word in _ON else False if word in _OFF else None


def _is_absent(cell: Any) -> bool:
    return not _is_list(cell) and is_missing(cell)


def _is_list(cell: Any) -> bool:
    return isinstance(cell, list | tuple | np.ndarray)


def _items(cell: Any) -> list[Any] | None:
    """The items of a list, also one in text, as programs write it; None for no list."""
    if isinstance(cell, str) and cell.strip()[:1] == "[" and cell.strip()[-1:] == "]":
        try:
            cell = ast.literal_eval(cell.strip())
        except (ValueError, SyntaxError):
            return None
    return list(cell) if _is_list(cell) else None


def _vector_size(read: Mapping[str, Sequence[Sequence[str] | None]]) -> int:
    """The length of all lists, if they are vectors of 0 and 1: as names, two or more would be in every list, or one
    twice."""
    cells = [cell for column in read.values() for cell in column if cell is not None]
    same = len({len(cell) for cell in cells}) == 1 and None not in {_flag(item) for cell in cells for item in cell}
    return len(cells[0]) if same and len(cells[0]) > 1 else 0


def _chosen(cell: Sequence[Any], names: Sequence[str]) -> list[str]:
    """The names at which a vector of 0 and 1 has 1."""
    return [name for name, item in zip(names, cell, strict=True) if _flag(item)]


def _marked(cell: Sequence[str], names: Sequence[str]) -> list[int]:
    """The vector of 0 and 1 of some names."""
    return [int(name in cell) for name in names]


def strata(rows: Sequence[Sequence[int]], min_rows: int) -> list[int | None]:
    """A class for each row, by which rows are divided so that every part has each label: its rarest label; None for
    rows without labels, and for classes with fewer than ``min_rows`` rows."""
    marks = np.asarray(rows)
    counts = marks.sum(0)
    rarest = [min(np.flatnonzero(row).tolist(), key=lambda i: counts[i], default=None) for row in marks]
    sizes = Counter(rarest)
    return [None if sizes[each] < min_rows else each for each in rarest]
