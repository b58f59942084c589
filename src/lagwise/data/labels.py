"""The labels of a table: names of classes or numbers, and the label of each row."""

from __future__ import annotations

import math
import re
import unicodedata
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain
from typing import Any

from lagwise.data.numbers import MISSING
from lagwise.tables import known

KINDS = ("auto", "classification", "regression", "multi_label")
SEPARATORS = ("|", ";", ",")  # of several labels in a text
_FEW = 50  # more different integers are amounts, not classes
_ZERO_WIDTH = re.compile("[\u200b\u2060\ufeff]")  # a space, a joiner and a byte order mark that are not seen

Where = Callable[[str, int], str]  # the name of a row of a split in messages


@dataclass(frozen=True)
class Labels:
    """The labels of rows.

    Attributes:
        kind: classification, regression or several labels per row, and the reason in words.
        names: the classes, in the order of their ids.
        values: for every split the id or the number of each row, or for several labels 0 or 1 for each name; None where
            the row has no label.
    """

    kind: str
    reason: str
    names: tuple[str, ...] | None
    values: dict[str, list[Any]]


def read_labels(columns: Mapping[str, Sequence[Any]], kind: str, where: Where, order: Sequence[str] = ()) -> Labels:
    """Labels from the values of the label column in every split; ``train`` must be one of them.

    Strings that are all numbers count as numbers, but if one of them begins with a zero, as 007 does, they are codes.
    kind ``auto``: text, codes and at most 50 different integers are classes; fractions and more integers are amounts.
    Beside fractions, texts such as NA are missing. Class names are sorted, numbers in them by value, unless ``order``
    names them.

    ValueError for train rows without a label, labels of mixed types, NaN and inf, text in regression, labels that are
    all the same, and classes that train lacks.
    """
    known(kind, KINDS, "task.kind")
    signs = _missing_amounts(columns)
    cells = {
        s: [None if is_missing(v) or (isinstance(v, str) and v in signs) else v for v in column]
        for s, column in columns.items()
    }
    several = several_hint(cells["train"])
    absent = [i for i, value in enumerate(cells["train"]) if value is None]
    if absent:
        value = columns["train"][absent[0]]
        raise ValueError(
            f"{len(absent)} of {len(cells['train'])} rows have no label, the first is {where('train', absent[0])} "
            f"({value!r}); fill them in or remove them{several}"
        )
    numbers = _numbers(cells, where)
    codes = any(_is_code(value) for column in cells.values() for value in column)
    found, reason = ("classification", "the labels are codes with zeros in front") if codes else _kind(numbers)
    if kind == "auto":
        kind, reason = found, f"{reason}{several}"
    else:
        reason = "as task.kind says"
    if kind == "regression":
        if numbers is None:
            split, i = next(
                (s, i) for s, c in cells.items() for i, v in enumerate(c) if v is not None and _number(v) is None
            )
            raise ValueError(
                f"label {cells[split][i]!r} of {where(split, i)} is not a number; regression needs numbers"
            )
        if len(cells["train"]) > 1 and len(amounts := {*numbers["train"]}) == 1:
            raise ValueError(
                f"all {len(cells['train'])} labels are {amounts.pop()}; regression needs different numbers"
            )
        return Labels(kind, reason, None, numbers)
    named = {s: [None if v is None else class_name(v) for v in column] for s, column in cells.items()}
    classes = {name for name in named["train"] if name is not None}
    reason += spelling_note(chain(*cells.values()))
    names = (
        [n for n in dict.fromkeys(map(class_name, order)) if n in classes] if order else sorted(classes, key=natural)
    )
    if len(names) < 2:
        raise ValueError(f"all {len(named['train'])} labels are {names[0]!r}; classification needs two classes or more")
    ids = {name: i for i, name in enumerate(names)}
    for split, column in named.items():
        unknown = Counter(name for name in column if name is not None and name not in ids)
        if unknown:
            name, count = unknown.most_common(1)[0]
            raise ValueError(
                f"label {name!r} of {where(split, column.index(name))} ({count} such rows in {split}) does not occur "
                f"in train{several}"
            )
    return Labels(
        kind, reason, tuple(names), {s: [None if n is None else ids[n] for n in column] for s, column in named.items()}
    )


def alike_note(names: Sequence[str] | None) -> list[str]:
    """A note if some classes have one name but for its case, or are one number."""
    groups: dict[Any, list[str]] = {}
    for name in names or ():
        number = _number(name)
        groups.setdefault(name.casefold() if number is None else number, []).append(name)
    found = [" and ".join(map(repr, each)) for each in groups.values() if len(each) > 1]
    more = f" (and {len(found) - 1:,} more such)" if len(found) > 1 else ""
    return [f"{found[0]} are different classes{more}; write them alike if they are one"] if found else []


def known_labels(values: Sequence[Any], names: Sequence[str] | None, where: Callable[[int], str]) -> list[Any]:
    """Labels of rows for a trained model: ids of its classes ``names``, or numbers if these are None.

    ValueError for a missing label, a class that the model does not know, and text or NaN instead of numbers.
    """
    found: list[Any] = []
    for i, value in enumerate(values):
        if is_missing(value):
            raise ValueError(f"{where(i)} has no label")
        number = _number(value)
        if names is None:
            if number is None or not math.isfinite(number):
                raise ValueError(f"the label of {where(i)} is {value!r}, not a finite number")
            found.append(number)
            continue
        name = class_name(value)
        if name not in names:  # earlier versions kept the zeros of 1.0 and the capital of True
            name = next((each for each in names if class_name(each) == name), name)
        if name not in names:
            raise ValueError(
                f"the label of {where(i)} is {value!r}, which the model does not know ({', '.join(names)})"
            )
        found.append(list(names).index(name))
    return found


def _missing_amounts(columns: Mapping[str, Sequence[Any]]) -> set[str]:
    """The texts that stand for missing numbers, if all others are numbers, of which some have fractions."""
    numbers = {v: _number(v) for column in columns.values() for v in column if isinstance(v, str)}
    words = {text for text, number in numbers.items() if number is None}
    amounts = any(number is not None and not number.is_integer() for number in numbers.values())
    return words if amounts and all(word.strip().lower() in MISSING for word in words) else set()


def is_missing(value: Any) -> bool:
    """Whether a cell of a table has no value."""
    if isinstance(value, str):
        return value.strip().lower() in ("", "nan")
    return value is None or (isinstance(value, float) and math.isnan(value))


def _numbers(cells: Mapping[str, Sequence[Any]], where: Where) -> dict[str, list[float | None]] | None:
    """The labels as numbers, or None if they are text."""
    seen: dict[str, tuple[str, int]] = {}  # the first label of each type
    logical = any(isinstance(value, bool) for column in cells.values() for value in column)
    for split, column in cells.items():
        for i, value in enumerate(column):
            if value is None:
                continue
            if not isinstance(value, str | int | float):
                raise ValueError(f"the label of {where(split, i)} is {type(value).__name__}, not text or a number")
            number = _number(value)
            if logical and class_name(value) in ("true", "false"):  # other files have them as text
                sort = "true or false"
            elif isinstance(value, str):
                sort = "text" if number is None else "whole text" if number.is_integer() else "fractional text"
            else:
                sort = "number" if number is not None else "true or false"
            seen.setdefault(sort, (split, i))
            if number is not None and not math.isfinite(number):
                raise ValueError(f"the label of {where(split, i)} is {value!r}, not a finite number")
    numbers = {split: [None if v is None else _number(v) for v in column] for split, column in cells.items()}
    words = {v: (s, i) for s, c in cells.items() for i, v in enumerate(c) if isinstance(v, str) and _number(v) is None}
    if words and all(map(_is_infinite, words)) and _kind(numbers)[0] == "regression":
        value, place = next(iter(words.items()))
        raise ValueError(f"the label of {where(*place)} is {value!r}, not a finite number")
    from_text = {sort for sort in seen if "text" in sort}
    mixed = (from_text and len(from_text) < len(seen)) or {"number", "true or false"} <= set(seen)
    if mixed or {"text", "fractional text"} <= set(seen):
        examples = ", ".join(f"{cells[s][i]!r} ({where(s, i)})" for s, i in seen.values())
        raise ValueError(f"labels of mixed types: {examples}; make all of them text or all of them numbers")
    if "text" in seen or "true or false" in seen:
        return None
    return numbers


def _kind(numbers: Mapping[str, Sequence[float | None]] | None) -> tuple[str, str]:
    if numbers is None:
        return "classification", "the labels are text"
    different = {n for column in numbers.values() for n in column if n is not None}
    if not all(n.is_integer() for n in different):
        return "regression", "the labels are numbers with fractions"
    if len(different) > _FEW:
        return "regression", f"the labels are {len(different)} different integers, more than {_FEW}"
    return "classification", f"the labels are {len(different)} different integers"


def several_hint(cells: Sequence[Any]) -> str:
    """Advice if labels that are taken for classes have names of several between them: with a bar or semicolon, of which
    one is in different labels; with a comma, all of which are also labels alone. Else an empty text."""
    written = sorted({cell.strip() for cell in cells if isinstance(cell, str)})
    for separator in SEPARATORS:
        names = {cell: {name for part in cell.split(separator) if (name := part.strip())} for cell in written}
        common = {name for name, count in Counter(chain(*names.values())).items() if count > 1}
        for cell, own in names.items():
            fits = own <= {*written} if separator == "," else bool(own & common)
            if separator in cell and fits and _number(cell.replace(",", ".")) is None:
                return f"; task.kind=multi_label reads {cell!r} as several labels"
    return ""


def _number(value: Any) -> float | None:
    if isinstance(value, bool) or "_" in str(value):  # Python reads 1_000, other programs do not
        return None
    try:
        number = float(value)
    except (ValueError, OverflowError):
        return None
    return None if isinstance(value, str) and not math.isfinite(number) else number


def _is_infinite(text: str) -> bool:
    try:
        return math.isinf(float(text))
    except ValueError:
        return False


def _is_code(value: Any) -> bool:
    """Whether a label is digits that begin with a zero, which numbers do not keep."""
    return isinstance(value, str) and re.fullmatch(r"0\d+", value.strip()) is not None


def class_name(value: Any) -> str:
    """A label as the file has it: ``pos``, ``0`` (also for 0.0, since columns with gaps have floats), ``true`` (also
    for True and TRUE, as some programs write it). Spellings that look the same are one: Unicode text is composed (NFC),
    and characters without a width are left out."""
    text = str(value).strip()
    if not text.isascii():
        text = unicodedata.normalize("NFC", _ZERO_WIDTH.sub("", text)).strip()
    if text.lower() in ("true", "false"):
        return text.lower()
    if isinstance(value, float) and value.is_integer():
        return str(int(value))
    return re.sub(r"^(-?\d+)\.0+$", r"\1", text)


def spelling_note(cells: Iterable[Any]) -> str:
    """The classes that are written in several ways that look the same (`class_name`), for people; else an empty
    text."""
    written: dict[str, set[str]] = {}
    for cell in {cell for cell in cells if isinstance(cell, str) and not cell.isascii()}:
        written.setdefault(class_name(cell), set()).add(cell.strip())
    found = [f"{len(each)} spellings of {name!r}" for name, each in written.items() if len(each) > 1]
    return f"; {' and '.join(found)} in Unicode are one label" if found else ""


def natural(name: str) -> tuple[Any, ...]:
    """The key by which names are sorted. Numbers by value, before text; in text the digits by value."""
    number = _number(name)
    if number is not None:
        return (0, number, name)
    return (1, [(part.isdecimal(), int(part) if part.isdecimal() else 0, part) for part in re.split(r"(\d+)", name)])
