"""Find what the columns of a table are for: times, ids and values."""

from __future__ import annotations

import re
from collections.abc import Sequence

import pandas as pd

from lagwise.data.dates import CLOCK
from lagwise.data.numbers import count_up

_IDS = ("unique_id", "item_id", "series_id", "id", "series")  # usual names, lower case
_TIMES = ("date", "datetime", "timestamp", "time", "ds", "week", "month", "quarter", "day", "period", "year")
_UNNAMED = "Unnamed: 0"  # the name that a first column without one gets: the index of a table that pandas wrote


def without_row_numbers(frame: pd.DataFrame, used: Sequence[str | None]) -> pd.DataFrame:
    """Leave out a first column that counts the rows, as pandas and R write it, if another one has a usual name of
    times."""
    first, *others = frame.columns
    counts = len(others) > 1 and first not in used and count_up(frame[first].astype(str).tolist())
    if counts and (first == _UNNAMED or any(name.lower() in _TIMES for name in others)):
        return frame[others]
    return frame if _UNNAMED in used else frame.rename(columns={_UNNAMED: "time"})


def find_time(frame: pd.DataFrame, ids: Sequence[str]) -> str:
    """Find the column of times: the first that is no id or, if its values repeat, one with a usual name."""
    others = [str(name) for name in frame.columns if name not in ids and name.lower() not in _IDS]
    others = others or [str(frame.columns[0])]
    if not frame[others[0]].duplicated().any() or others[0].lower() in _TIMES:
        return others[0]
    return next((name for name in others if name.lower() in _TIMES), others[0])


def find_ids(frame: pd.DataFrame, time: str, others: Sequence[str]) -> list[str]:
    """Find the column that tells series apart, where times repeat: the only one of text, or with a usual name. Without
    such a column there is none."""
    if not frame[time].duplicated().any():
        return []
    found = [name for name in others if name.lower() in _IDS or _is_text(frame[name])]
    return found if len(found) == 1 and frame[found[0]].duplicated().any() else []


def only_number(frame: pd.DataFrame, others: Sequence[str]) -> str:
    """Find the only column with numbers. ValueError if there are several or none."""
    numbers = [name for name in others if not _is_text(frame[name])]
    if len(numbers) == 1:
        return numbers[0]
    names = ", ".join(map(repr, numbers)) or "none has numbers"
    raise ValueError(f"name the column to forecast with `target`; the columns besides ids and times: {names}")


def _is_text(column: pd.Series) -> bool:
    """Whether the first value has a letter, and is no time of day."""
    values = column.dropna().astype(str)
    return len(values) > 0 and re.search(r"[^\W\d_]", re.sub(CLOCK, "", values.iloc[0])) is not None
