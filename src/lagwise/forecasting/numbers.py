"""Numbers of a table, and codes for missing values among them."""

from __future__ import annotations

import re
from collections.abc import Sequence

import numpy as np
import pandas as pd

from lagwise.data.numbers import to_floats
from lagwise.tables import shown

_OUTLIER_DEVIATIONS = 30  # robust deviations from the median: a value worth a note
_MIN_VALUES = 10  # to know their range
_MAX_OUTLIER_SHARE = 0.05
_CODE = r"-9+(\.9+)?|9{3,}(\.9+)?|-?(32768|32767|2147483648|2147483647)|-?1e\+(20|30|36)|9\.96920996\de\+36"
_TRUTHS = {"true": "1", "false": "0"}


def to_numbers(column: pd.Series, decimal: str) -> np.ndarray:
    """Read a column of numbers, or of true and false, as float64: NaN where missing.

    Text is read as by `lagwise.data.numbers.to_floats`. ValueError names the row and value of anything else, and of
    infinity.
    """
    name = str(column.name)
    if pd.api.types.is_datetime64_any_dtype(column) or pd.api.types.is_timedelta64_dtype(column):
        raise ValueError(
            f"column {name!r} has times, not numbers; choose columns with `columns`, or name the times with `time`"
        )
    if pd.api.types.is_numeric_dtype(column):
        numbers, row = column.to_numpy(np.float64, na_value=np.nan), None
    else:
        cells = column.fillna("").astype(str)
        lower = cells.str.strip().str.lower()
        cells = lower.map(_TRUTHS) if lower.isin(_TRUTHS).all() else cells
        numbers, row = to_floats(cells.tolist(), decimal)
    if row is None and np.isinf(numbers).any():
        row = int(np.isinf(numbers).argmax())
    if row is not None:
        labels = column.nunique() <= len(column) / 2
        raise ValueError(
            f"column {name!r} has {shown(str(column.iloc[row]))} in row {row + 1}, which is not a number; leave "
            "it empty if it is missing, choose columns with `columns`, or name the times with `time`"
            + (", or with `id` the column that tells series apart" if labels else "")
        )
    if np.isnan(numbers).all():
        raise ValueError(f"column {name!r} has no value at all; choose columns with `columns`")
    return numbers


def without_codes(name: str, values: np.ndarray, codes: Sequence[float] | None = None) -> tuple[np.ndarray, list[str]]:
    """Replace codes for missing values by NaN, and return notes on codes and outliers.

    Args:
        name: Of the series.
        values: Of the series; NaN where missing.
        codes: Values that stand for a missing one. By default numbers of nines (-999, 9999; not 99) and fill values
            (-32768, 1e20) that are far from all other values: by more than their range, or by half of it if only the
            code is negative, and occur twice or are ten (three) times that far away.
    """
    notes = []
    if codes is not None:
        values = np.where(np.isin(values, codes), np.nan, values)
        if np.isnan(values).all():
            raise ValueError(f"column {name!r} has no value but the codes {list(codes)} for missing ones")
    found, counts = np.unique(values[~np.isnan(values)], return_counts=True)
    is_code = np.array([bool(re.fullmatch(_CODE, f"{value:.10g}")) for value in found])
    others = found[~is_code]
    if codes is None and counts.sum() >= _MIN_VALUES and len(others) > 1:
        for value, count in zip(found[is_code], counts[is_code], strict=True):
            distance = max(others[0] - value, value - others[-1]) / (others[-1] - others[0])
            least, alone = (0.5, 3) if value < 0 <= others[0] else (1, 10)
            if distance > least and (count > 1 or distance > alone):
                values = np.where(values == value, np.nan, values)
                notes.append(
                    f"series {name!r} has {value:g} {count:,} {'time' if count == 1 else 'times'}, far from its other "
                    f"values ({others[0]:g} to {others[-1]:g}): it counts as missing; name other codes, or none, with "
                    "`missing`"
                )
    middle = np.nanmedian(values)
    deviation = 1.4826 * np.nanmedian(np.abs(values - middle))
    with np.errstate(over="ignore"):
        far = np.abs(values - middle) > _OUTLIER_DEVIATIONS * deviation
    if deviation > 0 and 0 < far.sum() <= _MAX_OUTLIER_SHARE * np.count_nonzero(~np.isnan(values)):
        row = int(far.argmax())
        more = f" and {far.sum() - 1:,} more" if far.sum() > 1 else ""
        notes.append(
            f"series {name!r} has {values[row]:g} in row {row + 1}{more}, over {_OUTLIER_DEVIATIONS} deviations from "
            f"its median of {middle:g}; leave it empty if it stands for a missing value"
        )
    return values, notes
