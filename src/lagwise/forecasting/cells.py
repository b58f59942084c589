"""Read the columns of a table: what they are for, and their numbers."""

from __future__ import annotations

import re
from collections.abc import Sequence

import numpy as np
import pandas as pd

from lagwise.data.dates import CLOCK
from lagwise.data.text_tables import count_up, to_floats
from lagwise.tables import shown

_ID_NAMES = ("unique_id", "item_id", "series_id", "id", "series")  # lower case
_TIME_NAMES = ("date", "datetime", "timestamp", "time", "ds", "week", "month", "quarter", "day", "period", "year")
_UNNAMED = "Unnamed: 0"  # the name that a first column without one gets: the index of a table that pandas wrote
_OUTLIER_DEVIATIONS = 30  # robust deviations from the median: a value worth a note
_MAX_OUTLIER_SHARE = 0.05
_BOOLEANS = {"true": "1", "false": "0"}


def without_row_numbers(frame: pd.DataFrame, used: Sequence[str | None]) -> pd.DataFrame:
    """Leave out a first column that counts the rows, as pandas and R write it, if another one has a usual name of
    times."""
    first, *others = frame.columns
    counts = len(others) > 1 and first not in used and count_up(frame[first].astype(str).tolist())
    if counts and (first == _UNNAMED or any(name.lower() in _TIME_NAMES for name in others)):
        return frame[others]
    return frame if _UNNAMED in used else frame.rename(columns={_UNNAMED: "time"})


def find_time(frame: pd.DataFrame, ids: Sequence[str]) -> str:
    """Find the column of times: the first that is no id or, if its values repeat, one with a usual name."""
    candidates = [str(name) for name in frame.columns if name not in ids and name.lower() not in _ID_NAMES]
    candidates = candidates or [str(frame.columns[0])]
    if not frame[candidates[0]].duplicated().any() or candidates[0].lower() in _TIME_NAMES:
        return candidates[0]
    return next((name for name in candidates if name.lower() in _TIME_NAMES), candidates[0])


def find_ids(frame: pd.DataFrame, time: str, names: Sequence[str]) -> list[str]:
    """Find the column that tells series apart, where times repeat: the only one of text, or with a usual name. Without
    such a column there is none."""
    if not frame[time].duplicated().any():
        return []
    candidates = [name for name in names if name.lower() in _ID_NAMES or _is_text(frame[name])]
    return candidates if len(candidates) == 1 and frame[candidates[0]].duplicated().any() else []


def only_number(frame: pd.DataFrame, columns: Sequence[str]) -> str:
    """Find the only column with numbers. ValueError if there are several or none."""
    numbers = [name for name in columns if not _is_text(frame[name])]
    if len(numbers) == 1:
        return numbers[0]
    names = ", ".join(map(repr, numbers)) or "none has numbers"
    raise ValueError(f"name the column to forecast with `target`; the columns besides ids and times: {names}")


def _is_text(column: pd.Series) -> bool:
    """Whether the first value has a letter, and is no time of day."""
    values = column.dropna().astype(str)
    return len(values) > 0 and re.search(r"[^\W\d_]", re.sub(CLOCK, "", values.iloc[0])) is not None


def to_numbers(column: pd.Series, decimal: str, missing: Sequence[float] = ()) -> np.ndarray:
    """Read a column of numbers, percentages, or true and false as float64: NaN where missing or one of the codes for a
    missing value.

    Text is read as by `lagwise.data.text_tables.to_floats`. ValueError names the row and value of anything else, and of
    infinity.
    """
    name = str(column.name)
    if pd.api.types.is_datetime64_any_dtype(column) or pd.api.types.is_timedelta64_dtype(column):
        raise ValueError(f"column {name!r} has times, not numbers; choose columns with `columns` or `time`")
    if pd.api.types.is_numeric_dtype(column):
        numbers, row = column.to_numpy(np.float64, na_value=np.nan), None
    else:
        cells = column.fillna("").astype(str).str.strip()
        lower = cells.str.lower()
        cells = lower.map(_BOOLEANS) if lower.isin(_BOOLEANS).all() else cells
        cells = cells.str.removesuffix("%") if cells[cells != ""].str.endswith("%").all() else cells
        numbers, row = to_floats(cells.tolist(), decimal)
    if row is None and np.isinf(numbers).any():
        row = int(np.isinf(numbers).argmax())
    if row is not None:
        raise ValueError(
            f"column {name!r} has {shown(str(column.iloc[row]))} in row {row + 1}, which is not a number; leave it "
            "empty if it is missing, choose columns with `columns` or `time`, name with `id` the column that tells "
            "series apart, or read the table with pandas and give the DataFrame to read_series"
        )
    numbers = np.where(np.isin(numbers, missing), np.nan, numbers)
    if np.isnan(numbers).all():
        raise ValueError(f"column {name!r} has no value at all; choose columns with `columns`")
    return numbers


def outlier_notes(name: str, values: np.ndarray) -> list[str]:
    """Note values of a series that are so far from all others that they may stand for missing ones."""
    middle = np.nanmedian(values)
    deviation = 1.4826 * np.nanmedian(np.abs(values - middle))
    with np.errstate(over="ignore"):
        far = np.abs(values - middle) > _OUTLIER_DEVIATIONS * deviation
    if not (deviation > 0 and 0 < far.sum() <= _MAX_OUTLIER_SHARE * np.count_nonzero(~np.isnan(values))):
        return []
    row = int(far.argmax())
    more = f" and {far.sum() - 1:,} more" if far.sum() > 1 else ""
    return [
        f"series {name!r} has {values[row]:g} in row {row + 1}{more}, over {_OUTLIER_DEVIATIONS} deviations from its "
        f"median of {middle:g}; if it stands for a missing value, name it with `missing`"
    ]
