"""Numbers of a table, and codes for missing values among them."""

from __future__ import annotations

import re

import numpy as np
import pandas as pd

from lagwise.data.numbers import to_floats
from lagwise.tables import shown

_FAR = 30  # robust deviations from the median: a value worth a note
_LEAST = 10  # values without which nothing is known of their range
_FEW = 0.05  # share of the rows that may have such values


def to_numbers(column: pd.Series, decimal: str) -> np.ndarray:
    """The numbers of a column, NaN where missing; text as `lagwise.data.numbers.to_floats` reads it.

    ValueError names the row and value of anything else, and of infinity.
    """
    name = str(column.name)
    if pd.api.types.is_datetime64_any_dtype(column) or pd.api.types.is_timedelta64_dtype(column):
        raise ValueError(
            f"column {name!r} has times, not numbers; choose columns with `columns`, or name the times with `time`"
        )
    if pd.api.types.is_numeric_dtype(column):
        numbers, row = column.to_numpy(np.float64, na_value=np.nan), None
    else:
        numbers, row = to_floats(column.fillna("").astype(str).tolist(), decimal)
    if row is None and np.isinf(numbers).any():
        row = int(np.isinf(numbers).argmax())
    if row is not None:
        raise ValueError(
            f"column {name!r} has {shown(str(column.iloc[row]))} in row {row + 1}, which is not a number; leave "
            "it empty if it is missing, choose columns with `columns`, or name the times with `time`"
        )
    if np.isnan(numbers).all():
        raise ValueError(f"column {name!r} has no value at all; choose columns with `columns`")
    return numbers


def missing_codes(name: str, values: np.ndarray) -> tuple[np.ndarray, list[str]]:
    """The values without codes for missing ones, and notes: on the codes, and on other values far from the rest.

    A code is a number of nines (-999, 9999, -99.9) or a fill value of a format (-32768, 1e20) that is far from all
    other values: by more than their range, or by half of it if it is negative and they are not, and occurs twice or is
    ten times that far away.
    """
    observed = values[~np.isnan(values)]
    notes = []
    found, counts = np.unique(observed, return_counts=True)
    for value, count in zip(found, counts, strict=True) if len(observed) >= _LEAST else ():
        if not _is_code(value):
            continue
        others = found[(found != value) & ~np.fromiter(map(_is_code, found), bool, len(found))]
        if len(others) < 2:
            continue
        spread = others[-1] - others[0]
        gap = max(others[0] - value, value - others[-1])
        negative = value < 0 <= others[0]
        if gap > (0.5 if negative else 1.0) * spread and (count > 1 or gap > (3 if negative else 10) * spread):
            values = np.where(values == value, np.nan, values)
            notes.append(
                f"series {name!r} has {value:g} {count:,} {'time' if count == 1 else 'times'}, far from its other "
                f"values ({others[0]:g} to {others[-1]:g}): it counts as missing"
            )
    observed = values[~np.isnan(values)]
    middle = np.median(observed)
    deviation = 1.4826 * np.median(np.abs(observed - middle))
    with np.errstate(over="ignore"):
        far = np.abs(values - middle) > _FAR * deviation
    if deviation > 0 and 0 < far.sum() <= _FEW * len(observed):
        row = int(np.flatnonzero(far)[0])
        more = f" and {far.sum() - 1:,} more" if far.sum() > 1 else ""
        notes.append(
            f"series {name!r} has {values[row]:g} in row {row + 1}{more}, over "
            f"{_FAR} deviations from its median of {middle:g}; leave it empty if it stands for a missing value"
        )
    return values, notes


def _is_code(value: float) -> bool:
    return bool(re.fullmatch(r"-9|-?9{2,}(\.9+)?|-?9+\.9+", f"{value:.10g}")) or value in _FILLS


_FILLS = {
    -32768.0,
    -32767.0,
    32767.0,
    -2147483648.0,
    2147483647.0,
    1e20,
    -1e20,
    1e30,
    -1e30,
    1e36,
    9.969209968386869e36,
}
