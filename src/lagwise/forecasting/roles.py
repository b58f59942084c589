"""What the columns and rows of a table are for: times, ids, values, row numbers, and lines that are no rows."""

from __future__ import annotations

import re
from collections.abc import Sequence
from itertools import combinations
from typing import Any

import pandas as pd

from lagwise.data.numbers import count_up
from lagwise.forecasting.times import is_clock
from lagwise.tables import shown

_IDS = ("unique_id", "item_id", "series_id", "id", "series")  # usual names, lower case
_TIMES = ("date", "datetime", "timestamp", "time", "ds", "week", "month", "quarter", "day", "period", "year")
_TARGETS = ("y", "target", "value")
_UNNAMED = "Unnamed: 0"  # the name that a first column without one gets: the index of a table that pandas wrote
_THOUSANDS = r"(?<=\d)([,. '])(?=\d{3}(\1\d{3})*(?!\d))"  # separators
_MAX_REPEATED_SHARE = 0.01  # of the rows whose time a series has already: errors
_MAX_MISSING_SHARE = 0.05  # of the rows without an id: errors
_MAX_LINES_BELOW = 20  # such as totals and notes


def without_row_numbers(frame: pd.DataFrame, time: str | None, used: Sequence[str]) -> tuple[pd.DataFrame, list[str]]:
    """Leave out a first column that counts the rows, as pandas and R write it, if another one has the times."""
    first, *others = frame.columns
    if first == _UNNAMED and time in (None, _UNNAMED) and not (len(others) > 1 and _counts(frame[first])):
        return frame.rename(columns={_UNNAMED: "time"}), []
    if first in (time, *used) or len(others) < 2 or not _counts(frame[first]):
        return frame, []
    dates = pd.api.types.is_datetime64_any_dtype(frame[others[0]]) or _has_no_numbers(frame[others[0]])
    if time is None and not dates and not any(name.lower() in _TIMES for name in others):
        return frame, []
    return frame[others], [f"the column {first!r} numbers the rows; it is left out"]


def find_time(frame: pd.DataFrame, ids: Sequence[str]) -> str:
    """Find the column of times: the first that is no id, or if its values repeat another with the most usual name.
    Columns named as ids, and of text without digits, that repeat are passed over."""
    others = [str(name) for name in frame.columns if name not in ids]
    while len(others) > 2 and frame[others[0]].duplicated().any() and _is_label(frame[others[0]]):
        others = others[1:]
    first = others[0] if others else str(frame.columns[0])
    usual = [name for wanted in _TIMES for name in others if name.lower() == wanted]
    return usual[0] if usual and first.lower() not in _TIMES and frame[first].duplicated().any() else first


def with_joined_times(frame: pd.DataFrame, time: str) -> tuple[pd.DataFrame, list[str], list[str]]:
    """Join times that are spread over columns: a date and a time of day, or year, month and day. Return the table with
    whole times in the column ``time``, the other columns that they came from, and notes."""
    parts = {name.lower(): name for name in frame.columns if name.lower() in ("year", "month", "day")}
    clocks = [name for name in frame.columns if name != time and is_clock(frame[name])]
    if time in parts.values() and {"year", "month"} <= parts.keys():
        values: Any = {key: pd.to_numeric(frame[name], errors="coerce") for key, name in parts.items()}
        times = pd.to_datetime({"day": 1, **values}, errors="coerce")
        others = [name for name in parts.values() if name != time]
    elif len(clocks) == 1 and not is_clock(frame[time]) and pd.api.types.is_string_dtype(frame[time]):
        times, others = frame[time].str.strip() + " " + frame[clocks[0]].str.strip(), clocks
    else:
        return frame, [], []
    if times.isna().any():
        return frame, [], []
    names = " and ".join(map(repr, [time, *others]))
    return frame.assign(**{time: times}), others, [f"times are those of columns {names} together"]


def without_lines_below(frame: pd.DataFrame, time: str) -> tuple[pd.DataFrame, list[str]]:
    """Leave out lines at the end that have nothing, or words of another shape than the first row, for a time: totals
    and notes."""
    if not (pd.api.types.is_object_dtype(frame[time]) or pd.api.types.is_string_dtype(frame[time])):
        return frame, []
    count, notes, first = len(frame), [], _shape(frame[time].iloc[0])
    while len(frame) - count < _MAX_LINES_BELOW and count > 3:
        row = frame.iloc[count - 1]
        shape = "" if pd.isna(row[time]) else _shape(row[time])
        if shape and (shape == first or not re.match(r"[\W_]*a", shape)):
            break
        notes.insert(0, f"the last row, {shown(', '.join(map(str, row.dropna())))}, has no time; it is left out")
        count -= 1
    above = frame[time].iloc[:count].astype(str).str.contains(r"\d").any()
    return (frame.iloc[:count], notes) if above else (frame, [])


def find_ids(frame: pd.DataFrame, time: str, others: Sequence[str]) -> list[str]:
    """Find the columns that tell series apart, where times repeat and it is clear which: the one with a usual name, or
    the first column of text, the first two, or all of them, with which hardly any time repeats. Otherwise none. Text
    that is the same in all rows of a time, such as a holiday, tells nothing apart."""
    if not frame[time].duplicated().any():
        return []
    candidates = [name for name in others if name != time]
    texts = [name for name in candidates if _is_text(frame[name]) and _differs_at_once(frame, time, name)]
    usual = [name for name in candidates if name.lower() in _IDS]
    several = [list(some) for number in (1, 2) for some in combinations(texts, number)]
    for found in ([usual[:1]] if usual else []) + several + [texts]:
        if not found or not frame.duplicated(found).any() or frame[found].isna().mean().max() > _MAX_MISSING_SHARE:
            continue  # an id has several rows
        if frame.duplicated([*found, time]).mean() <= _MAX_REPEATED_SHARE:
            rest = [name for name in texts if name not in found]
            if rest and frame.groupby(found)[rest].nunique().gt(1).any(axis=None):
                continue  # another text differs within these series
            return found
    return []


def find_target(frame: pd.DataFrame, others: Sequence[str]) -> str:
    """Find the column to forecast: the only one with numbers, or the one with a usual name. ValueError if it is
    unclear."""
    numbers = [name for name in others if not _is_text(frame[name])]
    usual = [name for name in numbers if name.lower() in _TARGETS]
    if len(usual or numbers) == 1:
        return (usual or numbers)[0]
    names = ", ".join(map(repr, numbers)) or "none has numbers"
    raise ValueError(f"name the column to forecast with `target`; the columns besides ids and times: {names}")


def _counts(column: pd.Series) -> bool:
    return count_up(column.astype(str).tolist())


def _has_no_numbers(column: pd.Series) -> bool:
    return bool(pd.to_numeric(column, errors="coerce").isna().all())


def _shape(text: object) -> str:
    return re.sub(r"\d+", "0", re.sub(r"[^\W\d_]+", "a", str(text).strip()))


def _differs_at_once(frame: pd.DataFrame, time: str, name: str) -> bool:
    """Whether a column has several values at a time."""
    return bool(frame.groupby(time)[name].nunique(dropna=False).gt(1).any())


def _is_label(column: pd.Series) -> bool:
    """Whether a column is named as ids, or its first value has no digit."""
    return str(column.name).lower() in _IDS or not any(c.isdigit() for c in str(column.iloc[0]))


def _is_text(column: pd.Series) -> bool:
    """Whether the first value is no number, with or without separators between thousands."""
    values = column.dropna()
    first = values.iloc[:1].astype(str).str.replace(_THOUSANDS, "", regex=True).str.replace(",", ".")
    return bool(pd.to_numeric(first, errors="coerce").isna().any())
