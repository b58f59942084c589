"""Times of the rows of a table, read and placed on a regular grid."""

from __future__ import annotations

import warnings
from typing import TYPE_CHECKING, Any

import numpy as np

from lagwise.tables import shown

if TYPE_CHECKING:
    import pandas as pd

_MOST_ADDED = 10  # rows filled in per existing row; a larger number means that the step is wrong
_MONTHS = (1, 2, 3, 4, 6, 12)  # between rows
_OFFSET = r"(?P<minutes>:\d\d(?:\.\d+)?)\s*(?P<offset>Z|[+-]\d\d(?::?\d\d)?)$"  # of UTC, after a time of day
# Dates as integers. Those with an hour are from 1900 to 2100; later numbers of seconds since 1970 are no dates.
_INTEGERS = ((180001, 220012, "%Y%m"), (10**7, 10**8, "%Y%m%d"), (1900010100, 2100123123, "%Y%m%d%H"))
_QUARTER = r"^(\d{4})[ -]?[qQ]([1-4])$"
_DAY = np.timedelta64(23, "h")  # the shortest


def regular_times(column: pd.Series) -> tuple[pd.Index, pd.Index, tuple[str, ...]]:
    """The time of each row of a column, the regular grid that contains them all, in order, and notes on how they were
    read.

    Numbers are times on a scale of their own, except for integers such as 202401, 20240131 and 2024013123 (an hour),
    which are dates. Text is read by one format. Dates such as 01/02/2024 are read month first or day first, whichever
    gives times on a regular grid. Times with one UTC offset keep it if steps are shorter than a day. With several
    offsets, days and longer steps follow the local calendar, and shorter ones are in UTC.

    The grid is the shortest one that contains all times, among those with a constant step, business days, and months
    (first days, last days, business or not, any other day), also every 2, 3, 4, 6 or 12 of them.

    ValueError for a time that cannot be read or occurs twice, dates that may be read either way, and times on no
    regular grid; it names the place.
    """
    found, failures = [], []
    for times, notes in _readings(column):
        try:
            found.append((times, _grid(times), notes))
        except ValueError as error:
            failures.append(error)
    if len(found) > 1:
        raise ValueError(
            f"column {column.name!r} has dates such as {column.iloc[0]!r}, which may be month first or day first; "
            "write them as year-month-day"
        )
    if not found:
        raise failures[0]
    return found[0]


def _readings(column: pd.Series) -> list[tuple[pd.Index, tuple[str, ...]]]:
    """The ways to read a column: two if all of it can be read month first and day first."""
    import pandas as pd

    if pd.api.types.is_numeric_dtype(column):
        finite = column.where(~column.isin([np.inf, -np.inf]))
        if finite.isna().any():
            _no_time(column, finite)
        if pd.api.types.is_integer_dtype(column):
            form = next((form for low, high, form in _INTEGERS if column.between(low, high).all()), None)
            dates = pd.to_datetime(column.astype(str), format=form, errors="coerce") if form else column
            column = dates if dates.notna().all() else column
        return [(pd.Index(column), ())]
    if pd.api.types.is_datetime64_any_dtype(column):
        if column.isna().any():
            _no_time(column, column)
        return [(_of_calendar(pd.DatetimeIndex(column)), ())]
    text = column.astype(str).str.strip().where(column.notna())
    text = text.str.replace(_QUARTER, r"\g<1>Q\g<2>", regex=True)
    offsets = text.str.extract(_OFFSET)["offset"]
    if (some := offsets.notna()).any() and not some.all():
        raise ValueError(
            f"column {column.name!r} has times with and without a UTC offset, such as {text[some].iloc[0]!r} and "
            f"{text[~some].iloc[0]!r}"
        )
    notes: tuple[str, ...] = ()
    if offsets.nunique() > 1:
        times = (_parsed(text, utc=True) or [_no_time(column, text)])[0]
        if np.median(np.diff(np.sort(times.to_numpy()))) < _DAY:
            return [(times, ("times have several UTC offsets; they are read as UTC",))]
        text = text.str.replace(_OFFSET, r"\g<minutes>", regex=True)
        notes = ("times have several UTC offsets; dates and times are those written, without the offset",)
    found = _parsed(text)
    if not found:
        _no_time(column, text)
    if len(found) > 1:
        return [(found[0], (*notes, "dates are read month first")), (found[1], (*notes, "dates are read day first"))]
    return [(_of_calendar(found[0]), notes)]


def _parsed(text: pd.Series, utc: bool = False) -> list[pd.DatetimeIndex]:
    """Text read as ISO 8601, with and without a time of day, or else by one format, month first and day first. Only
    formats that fit every row count."""
    import pandas as pd

    found: list[pd.DatetimeIndex] = []
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # about unknown formats, and formats for which dayfirst has no effect
        for form, day_first in (("ISO8601", False), (None, False), (None, True)):
            times = pd.to_datetime(text, errors="coerce", utc=utc, format=form, dayfirst=day_first)
            if times.notna().all():
                found.append(pd.DatetimeIndex(times))
            if found and form:
                break
    return found[:1] if len(found) == 2 and found[0].equals(found[1]) else found


def _of_calendar(times: pd.DatetimeIndex) -> pd.DatetimeIndex:
    """Times without their zone if they are days or more apart, because days of a zone may be shorter or longer."""
    far = times.tz is not None and np.median(np.diff(np.sort(times.tz_convert("UTC").to_numpy()))) >= _DAY
    return times.tz_localize(None) if far else times


def _no_time(column: pd.Series, text: pd.Series) -> Any:
    """Raise a ValueError that names the first row without a time, or with another format than the first."""
    import pandas as pd

    missing = text.isna()
    if not missing.any():
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            missing = pd.to_datetime(text, errors="coerce", utc=True).isna()
    row = int(missing.to_numpy().argmax())
    raise ValueError(
        f"column {column.name!r} has {shown(str(column.iloc[row]))} in row {row + 1}, which is not a time; name the "
        "column of times with --time"
    )


def _grid(times: pd.Index) -> pd.Index:
    """The shortest regular grid that contains all times."""
    import pandas as pd

    index = times.sort_values()
    if (again := index.duplicated()).any():
        raise ValueError(
            f"column {times.name!r} has {index[again][0]} more than once; keep one row for each time, or give one file "
            "for each series"
        )
    if len(index) < 3:
        raise ValueError(f"at least 3 rows are needed, got {len(index)}")
    if not isinstance(index, pd.DatetimeIndex):
        return _steps(index)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # that pandas will return another type, which works here too
        frequency = pd.infer_freq(index)
    if frequency is not None:
        grid = pd.date_range(index[0], index[-1], freq=frequency, name=index.name)
        if index.isin(grid).all():  # business hours are inferred from steps alone, whatever the hours and days
            return grid
    calendars: list[Any] = ["B", *(pd.DateOffset(months=n) for n in _MONTHS)]
    calendars += [f"{n}{unit}" for unit in ("ME", "MS", "BME", "BMS") for n in _MONTHS]
    grids: list[pd.Index] = [pd.date_range(index[0], index[-1], freq=offset, name=index.name) for offset in calendars]
    grids = [grid for grid in grids if len(grid) <= _MOST_ADDED * len(index) and index.isin(grid).all()]
    try:
        grids.append(_steps(index))
    except ValueError:
        if not grids:
            raise
    return min(grids, key=len)


def _steps(index: pd.Index) -> pd.Index:
    """The grid with the most frequent step of the sorted times."""
    import pandas as pd

    zoned = isinstance(index, pd.DatetimeIndex) and index.tz is not None
    values = (index.tz_convert("UTC") if zoned else index).to_numpy()  # type: ignore[missing-attribute]
    steps = np.diff(values)
    found, counts = np.unique(steps, return_counts=True)
    step = found[counts.argmax()]
    multiples = steps / step
    off = np.abs(multiples - np.round(multiples)) > 1e-6
    if off.any():
        _irregular(index, int(off.argmax()) + 1, step)
    size = int(np.round(multiples).sum()) + 1
    if size > _MOST_ADDED * len(index):
        _irregular(index, int(np.argmax(multiples)) + 1, step)
    if isinstance(index, pd.DatetimeIndex):
        return pd.date_range(index[0], periods=size, freq=pd.Timedelta(step), name=index.name)
    return pd.Index(index[0] + step * np.arange(size), name=index.name)


def _irregular(index: pd.Index, row: int, step: Any) -> None:
    import pandas as pd

    step = pd.Timedelta(step) if isinstance(step, np.timedelta64) else step
    raise ValueError(
        f"the times in column {index.name!r} are irregular: {index[row]} follows {index[row - 1]} (most rows are "
        f"{step} apart); resample the data to regular times, or name another column of times with --time"
    )
