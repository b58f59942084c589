"""Numbers of a table, read from text: decimal and thousands separators, and codes for missing values."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

import numpy as np

from lagwise.tables import shown

if TYPE_CHECKING:
    import pandas as pd

#: Texts that stand for a missing value, besides those of pandas: of FRED, Eurostat, the World Bank and spreadsheets.
MISSING = (".", "..", "...", "-", "--", "–", "—", ":", "?", "*", "n.a.", "N.A.", "na", "#VALUE!", "#DIV/0!", "#REF!")
_SPACES = re.compile("[\\s\u00a0\u202f'’](?=\\d{3}(\\D|$))")  # between thousands
_MARK = r"[+-]?\d*[.,]\d+(?:[eE][+-]?\d+)?"
_AMBIGUOUS = r"[+-]?[1-9]\d{0,2}[.,]\d{3}"  # a decimal fraction of three digits, or a thousand
_FAR = 30  # robust deviations from the median: a value worth a note
_LEAST = 10  # values without which nothing is known of their range
_FEW = 0.05  # of the rows that may have such values


def to_numbers(column: pd.Series, decimal: str) -> np.ndarray:
    """The numbers of a column, NaN where missing.

    Text is read with this decimal separator; the other one of "." and ",", spaces and apostrophes may separate
    thousands. ValueError names the row and value of anything else, and of infinity.
    """
    import pandas as pd

    name = str(column.name)
    if pd.api.types.is_datetime64_any_dtype(column) or pd.api.types.is_timedelta64_dtype(column):
        raise ValueError(
            f"column {name!r} has times, not numbers; choose columns with `columns`, or name the times with `time`"
        )
    numbers = _floats(column)
    if not pd.api.types.is_numeric_dtype(column) and (decimal == "," or (numbers.isna() & column.notna()).any()):
        text = column.astype("string").str.replace("\u2212", "-", regex=False).str.replace(_SPACES, "", regex=True)
        other = "," if decimal == "." else "."
        grouped = text.str.fullmatch(rf"[+-]?\d{{1,3}}(\{other}\d{{3}})+(\{decimal}\d*)?").fillna(False).astype(bool)
        text = text.where(~grouped, text.str.replace(other, "", regex=False))
        plain = ~text.str.contains(other, regex=False).fillna(False).astype(bool)
        text = text.str.replace(decimal, ".", regex=False)
        numbers = _floats(text.where(plain))
    wrong = (numbers.isna() & column.notna()) | np.isinf(numbers)
    if wrong.any():
        row = int(np.flatnonzero(wrong)[0])
        raise ValueError(
            f"column {name!r} has {shown(str(column.iloc[row]))} in row {row + 1}, which is not a number; leave "
            "it empty if it is missing, choose columns with `columns`, or name the times with `time`"
        )
    if numbers.isna().all():
        raise ValueError(f"column {name!r} has no value at all; choose columns with `columns`")
    return numbers.to_numpy(np.float64)


def _floats(column: pd.Series) -> pd.Series:
    """Numbers of a column, NaN for what is none. pandas may read the last digit of a text wrongly, Python does not."""
    import pandas as pd

    numbers = pd.to_numeric(column, errors="coerce").astype(np.float64)
    if not pd.api.types.is_numeric_dtype(column):
        texts = column[numbers.notna()]
        numbers[numbers.notna()] = np.array([float(text) for text in texts.tolist()])
    return numbers


def decimal_separator(frame: pd.DataFrame, usual: str) -> str:
    """The decimal separator of the columns of text of a table, "." or ",", by the numbers that can be read in one way
    alone: 0,5 and 1.234,5 have a comma, 1.234.567 a point between thousands.

    Where all numbers with a separator have three digits after it, it separates thousands if the numbers without one are
    below 1000, as in 987, 1.013; otherwise it is the ``usual`` decimal separator of such files. ValueError if it is the
    other one.
    """
    import pandas as pd

    votes: dict[str, str] = {}
    unsure: dict[str, str] = {}
    small = True
    for name in frame.columns:
        if pd.api.types.is_numeric_dtype(frame[name]) or pd.api.types.is_datetime64_any_dtype(frame[name]):
            continue
        text = frame[name].dropna().astype("string")
        if usual == "." and not text.str.contains(",", regex=False).any():
            continue
        text = text.str.replace(_SPACES, "", regex=True)
        text = text[text.str.contains(r"^[+-]?[\d.,]+(?:[eE][+-]?\d+)?$", regex=True)]
        marked = text[text.str.contains("[.,]", regex=True)]
        unmarked = pd.to_numeric(text[~text.str.contains("[.,]", regex=True)], errors="coerce").abs()
        small = small and bool((unmarked < 1000).all())
        unmarked_some = len(unmarked) > 0
        several = marked[marked.str.count("[.,]") > 1]
        for value in several[:1]:
            last = max(value.rfind("."), value.rfind(","))
            one_kind = len(set(re.findall("[.,]", value))) == 1
            votes.setdefault({".": ",", ",": "."}[value[last]] if one_kind else value[last], value)
        single = marked[marked.str.count("[.,]") == 1]
        doubtful = single.str.fullmatch(_AMBIGUOUS)
        for mark in ".,":
            own = single.str.contains(mark, regex=False)
            for value in single[own & ~doubtful][:1]:
                votes.setdefault(mark, value)
            for value in single[own & doubtful][:1]:
                unsure.setdefault(mark, value if not unmarked_some else "")
    if len(votes) > 1:
        raise ValueError(
            f"numbers have decimal points and decimal commas, such as {votes['.']!r} and {votes[',']!r}; write all "
            "with one of them"
        )
    if votes:
        return next(iter(votes))
    if len(unsure) != 1:
        return usual
    (mark, value), other = next(iter(unsure.items())), {".": ",", ",": "."}
    if not value and small:  # 987, 1.013
        return other[mark]
    if mark != usual:
        raise ValueError(
            f"numbers such as {value!r} may be thousands or have three decimals; write them without a separator "
            "between thousands"
        )
    return usual


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
