"""Times of the rows of a table: read, and placed on a regular grid."""

from __future__ import annotations

import re
import warnings
from collections.abc import Iterable, Iterator
from datetime import datetime, timedelta, timezone
from typing import Any, NamedTuple

import numpy as np
import pandas as pd

from lagwise.extras import explained
from lagwise.forecasting.grids import Grid, regular_grid
from lagwise.tables import known, shown

#: Values of the option ``date_order``: the part that a date of three numbers begins with, and all parts in order.
DATE_ORDERS = {"day": ("day", "month", "year"), "month": ("month", "day", "year"), "year": ("year", "month", "day")}
_MINIMUM_TIMES = 3
_CENTURY_BREAK = 50  # years of two digits are from 1950 to 2049
_CLOCK = r"\d{1,2}:\d\d(?::\d\d(?:\.\d+)?)?(?:\s*[AaPp]\.?[Mm]\.?)?"
_CLOCK_FORMATS = ("%H:%M", "%H:%M:%S", "%H:%M:%S.%f", "%I:%M %p", "%I:%M:%S %p")
_UTC_OFFSET = r"(?P<clock>:\d\d(?:\.\d+)?)\s*(?P<offset>Z|[+-]\d\d(?::?\d\d)?)$"
_THREE_NUMBERS = rf"^(\d{{1,4}})[./-](\d{{1,2}})[./-](\d{{4}}|\d{{1,2}})(?:[T ]\s*({_CLOCK}))?$"
_YEAR, _MONTH = r"(?P<year>\d{4})", r"(?P<part>0?[1-9]|1[0-2])"
_WEEK = r"(?:w|wk|week|kw)[ -]?(?P<part>0?[1-9]|[1-4]\d|5[0-3])"
# Years with a part, and the number of months of a part; 0 for ISO weeks.
_PARTS_OF_YEARS = (
    (rf"{_YEAR}[ :./-]*[qtk](?P<part>[1-4])", 3),
    (rf"[qtk](?P<part>[1-4])[ :./-]*{_YEAR}", 3),
    (rf"(?P<part>[1-4])[qtk][ :./-]*{_YEAR}", 3),
    (rf"{_YEAR}[ -]?[sh](?P<part>[12])", 6),
    (rf"{_YEAR}[ -]?m{_MONTH}", 1),
    (rf"m?{_MONTH}[ ./-]{_YEAR}", 1),
    (rf"{_YEAR}[/-]{_MONTH}", 1),
    (r"(?P<year>(?:19|20)\d\d)\.(?P<part>0[1-9]|1[0-2])", 1),
    (rf"{_YEAR}[ -]*{_WEEK}(?:-1)?", 0),
    (rf"{_WEEK}[ ,./-]+{_YEAR}", 0),
)
# Dates as integers: the smallest, the largest, and their format.
_INTEGER_DATES = (
    (180001, 220012, "%Y%m"),
    (180001, 220053, "%G%V"),
    (100101, 991231, "%y%m%d"),
    (1800001, 2200366, "%Y%j"),
    (18000101, 22001231, "%Y%m%d"),
    (1900010100, 2100123123, "%Y%m%d%H"),
)
_EPOCH_SECONDS = (10**9, 25 * 10**8)  # from 2001 to 2049
_SPREADSHEET_DAYS = (30_000, 60_000)  # from 1982 to 2064
_REFUSED = (
    (r"(?i)\d{4}.*(?:/|\s-\s|\s–\s|\sto\s).*\d{4}-?\d*", "a span of time; keep its start"),
    (r"\b24:00(?::00)?$", "a time after the last of its day; write the midnight of the next day as 00:00"),
    (r":60(?:\.\d+)?$", "a leap second, which dates here do not have; write the second before it, or remove the row"),
)
_LANGUAGES = ("en", "de", "fr", "es", "it", "pt", "nl", "sv", "da", "nb", "pl", "ru")


class Times(NamedTuple):
    """The time of each row, the regular grid that contains these times, and notes on how they were read."""

    times: Any
    grid: Grid
    notes: tuple[str, ...]


class _Reading(NamedTuple):
    """Times, the order in which dates were read if there are several orders, and a note."""

    times: pd.Index
    order: str = ""
    note: str = ""


def regular_times(column: pd.Series, some: np.ndarray | None = None, date_order: str | None = None) -> Times:
    """Read the times of a column and find their regular grid (`lagwise.forecasting.grids.regular_grid`).

    Text is read by one rule for the whole column: ISO 8601; three numbers in the order ``date_order``; months by name,
    in twelve languages; quarters, half years, months and ISO weeks (2015-Q1, Q1 2015, 2015-S1, 2015M01, 01/2015,
    2015-W07). Integers such as 202401, 20240131 and 2024013123, and seconds to nanoseconds since 1970, are dates. Other
    numbers are steps, or years with a fraction.

    A date such as 01/02/2024 is read in the order that gives the shortest regular grid. Times with one UTC offset keep
    it, and times with several become UTC, but those at one local time of day are dates without an offset.

    Args:
        column: The times, in any order. A time may occur several times.
        some: Whether each row has any value, by default all. Only these rows determine the grid.
        date_order: ``day``, ``month`` or ``year``: what a date of three numbers begins with.

    ValueError names the place of a time that cannot be read, that has no date or year, or that is on no regular grid,
    and dates that may be read in several orders.
    """
    some = np.ones(len(column), dtype=bool) if some is None or not some.any() else some
    found, failures = [], []
    for reading in _readings(column, date_order):
        try:
            _check_years(reading.times, column)
            found.append((reading, _grid(reading.times.rename(column.name), some)))
        except ValueError as error:
            failures.append(error)
    if not found:
        raise failures[0]
    shortest = min(len(grid.times) for _, grid in found)
    best = [(reading, grid) for reading, grid in found if len(grid.times) == shortest]
    if len(best) > 1:
        orders = " or the ".join(reading.order for reading, _ in best)
        raise ValueError(
            f"column {column.name!r} has dates such as {column.iloc[0]!r}, which may have the {orders} first; say "
            "which with `date_order`, or write them as year-month-day"
        )
    reading, grid = best[0]
    notes = (reading.note, f"dates are read {reading.order} first" if len(found) + len(failures) > 1 else "")
    return Times(reading.times, grid, tuple(filter(None, notes)))


def is_clock(column: pd.Series) -> bool:
    """Whether a column has times of day, and no dates."""
    return bool(pd.api.types.is_string_dtype(column) and len(column) and column.str.fullmatch(_CLOCK).all())


def plain_times(times: Iterable[Any]) -> list[Any]:
    """Write dates as year-month-day, with a time of day unless all are at midnight. Numbers stay numbers."""
    times = list(times)
    if not all(isinstance(at, pd.Timestamp) for at in times):
        return [float(f"{at:.10g}") if isinstance(at, float) else int(at) for at in times]
    midnight, texts = " 00:00:00", [str(at) for at in times]
    return [text.removesuffix(midnight) for text in texts] if all(t.endswith(midnight) for t in texts) else texts


def _grid(times: pd.Index, some: np.ndarray) -> Grid:
    """Find the grid of the times of ``some`` rows, or if these have none, of all."""
    kept = times[some].unique()
    if len(kept) < _MINIMUM_TIMES:
        raise ValueError(f"at least {_MINIMUM_TIMES} rows are needed, got {len(kept)}")
    try:
        return regular_grid(kept)
    except ValueError:
        if some.all():
            raise
        return regular_grid(times.unique())


def _readings(column: pd.Series, date_order: str | None) -> list[_Reading]:
    """Read a whole column, in each order of day, month and year that fits it."""
    if date_order is not None:
        known(date_order, DATE_ORDERS, "date_order")
    if isinstance(column.dtype, pd.PeriodDtype):
        column = column.dt.to_timestamp()
    if pd.api.types.is_datetime64_any_dtype(column):
        if column.isna().any():
            raise _no_time(column, column.isna())
        times = pd.DatetimeIndex(column)
        local = times.tz_localize(None)
        return [_Reading(local if _is_one_clock(local) else times)]
    text = column.astype(str).str.strip().where(column.notna())
    if (missing := text.isna() | (text == "")).any():
        raise _no_time(column, missing)
    if (parts := _parts_of_years(column, text)) is not None:
        return [_Reading(parts)]
    numbers = pd.to_numeric(text.str.replace(",", ".", n=1, regex=False), errors="coerce")
    if numbers.notna().all():
        if (infinite := np.isinf(numbers)).any():
            raise _no_time(column, infinite)
        return [_Reading(_numbers_as_times(column, text, numbers))]
    return _text_as_times(column, text, date_order)


def _parts_of_years(column: pd.Series, text: pd.Series) -> pd.DatetimeIndex | None:
    """Read quarters, half years, months and ISO weeks; None if the text has another form."""
    for pattern, months in _PARTS_OF_YEARS:
        if not re.fullmatch(pattern, text.iloc[0], re.IGNORECASE):
            continue
        found = text.str.extract(f"^{pattern}$", flags=re.IGNORECASE)
        if found.isna().any(axis=None):
            continue
        if months:
            years, parts = found["year"].astype(int), found["part"].astype(int)
            times = pd.to_datetime({"year": years, "month": months * (parts - 1) + 1, "day": 1})
        else:
            times = pd.to_datetime(found["year"] + "-" + found["part"] + "-1", format="%G-%V-%u", errors="coerce")
        if times.isna().any():  # week 53 of a year that has 52
            raise _no_time(column, times.isna())
        if months == 1 and not re.search("[Mm]", text.iloc[0]):
            _check_quarters(column, pd.DatetimeIndex(times))
        return pd.DatetimeIndex(times)
    return None


def _check_quarters(column: pd.Series, months: pd.DatetimeIndex) -> None:
    """ValueError if months by number are January to April of several years, which may be quarters."""
    if set(months.month) == {1, 2, 3, 4} and len(set(months.year)) > 1:
        raise ValueError(
            f"column {column.name!r} has only the numbers 1 to 4 beside years, such as {column.iloc[0]}; write "
            f"quarters as {months[0].year}-Q1, and months with a day, as {months[0].year}-01-01"
        )


def _numbers_as_times(column: pd.Series, text: pd.Series, numbers: pd.Series) -> pd.Index:
    """Read numbers as dates, times since 1970, or steps."""
    if text.str.match(r"0\d").any():
        raise _unclear(column)
    if text.str.fullmatch(r"[12]\d{3}\.[1-4]").all():
        _check_quarters(column, pd.DatetimeIndex(pd.to_datetime(text, format="%Y.%m")))
    whole = bool(text.str.fullmatch(r"[+-]?\d{1,18}").all())
    if whole:
        integers = text.astype("int64")
        several = integers.nunique() > 1 and integers.diff().abs().max() > 1  # otherwise these count
        for low, high, form in _INTEGER_DATES:
            if not integers.between(low, high).all() or (form in ("%G%V", "%y%m%d") and not several):
                continue
            week = form == "%G%V"
            dates = pd.to_datetime(text + "1" * week, format=form + "%u" * week, errors="coerce")
            if dates.notna().all():
                if form == "%Y%m":
                    _check_quarters(column, pd.DatetimeIndex(dates))
                return pd.DatetimeIndex(dates)
        for power, unit in enumerate(("s", "ms", "us", "ns")):
            if integers.between(*(bound * 1000**power for bound in _EPOCH_SECONDS)).all():
                return pd.DatetimeIndex(pd.to_datetime(integers, unit=unit))  # type: ignore[no-matching-overload]
        numbers = integers
    steps = np.diff(np.unique(numbers))
    if numbers.between(*_SPREADSHEET_DAYS).all() and len(steps) and np.ptp(steps) > 1e-9 * steps.max():
        raise ValueError(
            f"column {column.name!r} has numbers such as {text.iloc[0]}, which may be days of a spreadsheet; write "
            "them as dates, such as 2024-01-31"
        )
    return pd.Index(numbers)


def _text_as_times(column: pd.Series, text: pd.Series, date_order: str | None) -> list[_Reading]:
    """Read text as dates, with a time of day and a UTC offset or without."""
    if is_clock(text):
        raise ValueError(
            f"column {column.name!r} has times of day without a date, such as {text.iloc[0]!r}; write date and time in "
            "one column, such as 2024-01-31 08:00"
        )
    offsets: Any = text.str.extract(_UTC_OFFSET)["offset"]
    some: Any = offsets.notna()
    if some.any() and not some.all():
        raise ValueError(
            f"column {column.name!r} has times with and without a UTC offset, such as {text[some].iloc[0]!r} and "
            f"{text[~some].iloc[0]!r}"
        )
    local = text.str.replace(_UTC_OFFSET, r"\g<clock>", regex=True)
    for pattern, what in _REFUSED:
        if (refused := local.str.contains(pattern)).any():
            row = int(refused.to_numpy().argmax())
            raise ValueError(f"column {column.name!r} has {shown(text.iloc[row])} in row {row + 1}, {what}")
    readings = list(_local_times(local, date_order))
    found = [reading for reading in readings if not reading.times.hasnans]
    if not found:
        missing = min((each.times.isna() for each in readings), key=lambda each: each.sum(), default=np.ones(1, bool))
        raise _unclear(column) if missing.all() and text.str.contains(r"\d").all() else _no_time(column, missing)
    return [_with_offsets(reading, offsets) if some.any() else reading for reading in found]


def _local_times(text: pd.Series, date_order: str | None) -> Iterator[_Reading]:
    """Read text without offsets as ISO 8601, three numbers in each possible order, or dates with names of months."""
    if text.str.match(r"\d{4}-\d\d").any():
        iso = pd.DatetimeIndex(pd.to_datetime(text, errors="coerce", format="ISO8601"))
        yield _Reading(iso)
        if not iso.hasnans:
            return
    parts = text.str.extract(_THREE_NUMBERS)
    for order in DATE_ORDERS if date_order is None else (date_order,):
        numbers = dict(zip(DATE_ORDERS[order], (parts[0], parts[1], parts[2]), strict=True))
        years, others = numbers["year"].dropna(), pd.concat([numbers["month"], numbers["day"]]).dropna()
        digits = set(years.str.len())
        if digits and digits <= {2, 4} and len(digits) == 1 and others.str.len().max() <= 2:
            year = numbers["year"].astype(float)
            numbers["year"] = year + (0 if digits == {4} else np.where(year < _CENTURY_BREAK, 2000, 1900))
            yield _Reading(_on_clock(pd.to_datetime(numbers, errors="coerce"), parts[3]), order)
    if text.str.contains("[A-Za-zÀ-ӿ]{3}").all() and not text.str.contains(r"\d[./-]\d").any():
        yield _Reading(_named_dates(text, date_order))


def _on_clock(days: pd.Series, clock: pd.Series) -> pd.DatetimeIndex:
    """Add times of day, by the format that fits them all, to days; none is midnight."""
    clock = clock.str.replace(r"\s*([AaPp])\.?([Mm])\.?$", r" \1\2", regex=True)
    if clock.notna().any():
        read = (pd.to_datetime(clock, format=form, errors="coerce") for form in _CLOCK_FORMATS)
        best = min(read, key=lambda each: each.isna().sum())
        days = days + (best - pd.Timestamp("1900-01-01")).where(clock.notna(), pd.Timedelta(0))
    return pd.DatetimeIndex(days)


def _named_dates(text: pd.Series, date_order: str | None) -> pd.DatetimeIndex:
    """Read dates with names of months in `_LANGUAGES`, NaT where dateparser finds none."""
    from pandas.tseries.api import guess_datetime_format  # type: ignore[missing-module-attribute]

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # about the order of day and month, which names decide
        form = guess_datetime_format(text.iloc[0])
    if form and re.search("%Y", form) and re.search("%[bB]", form):
        times = pd.DatetimeIndex(pd.to_datetime(text, errors="coerce", format=form))
        if not times.hasnans:
            return times
    try:
        from dateparser.date import DateDataParser
    except ModuleNotFoundError as error:
        raise explained(error, "forecast") from error
    settings = {
        "DATE_ORDER": "YMD" if date_order == "year" else "MYD",  # in Jan-15, 15 is a year
        "PARSERS": ["absolute-time"],
        "PREFER_DAY_OF_MONTH": "first",
        "RELATIVE_BASE": datetime(2000, 1, 1),
        "REQUIRE_PARTS": ["month", "year"],
    }
    parser = DateDataParser(languages=_LANGUAGES, try_previous_locales=True, settings=settings)
    codes, unique = pd.factorize(text)
    dates = [parser.get_date_data(each).date_obj for each in unique]
    dates = [None if at is None or at.tzinfo is not None else at for at in dates]  # names of zones are not unique
    if not text.str.contains(r"\d{4}").any():
        dates = [at and at.replace(year=at.year - 100 * (at.year >= 2000 + _CENTURY_BREAK)) for at in dates]
        several = text.str.contains(r"\d\D+\d").any()
        order = pd.Index([at for at in dates if at is not None])
        in_order = order.is_monotonic_increasing or order.is_monotonic_decreasing
        if not several and not (in_order and len({at.month for at in order}) > 1):
            dates = [None] * len(unique)  # days of a month, without a year
    return pd.DatetimeIndex(np.array(dates, dtype="datetime64[us]")[codes])


def _with_offsets(reading: _Reading, offsets: pd.Series) -> _Reading:
    """Give local times their UTC offsets, unless all are at the same time of day."""
    several = offsets.nunique() > 1
    if _is_one_clock(reading.times):
        note = "times have several UTC offsets; dates and times are those written, without the offset"
        return reading._replace(note=note if several else "")
    parts = offsets.str.extract(r"([+-])(\d\d):?(\d\d)?").fillna("0")
    minutes = (60 * parts[1].astype(int) + parts[2].astype(int)) * np.where(parts[0] == "-", -1, 1)
    utc = (reading.times - pd.to_timedelta(minutes.to_numpy(), unit="min")).tz_localize("UTC")
    if several:
        return reading._replace(times=utc, note="times have several UTC offsets; they are read as UTC")
    return reading._replace(times=utc.tz_convert(timezone(timedelta(minutes=int(minutes.iloc[0])))))


def _is_one_clock(local: Any) -> bool:
    """Whether all local times are at the same time of day, so that they are days or longer steps apart."""
    return bool(len((local - local.normalize()).unique()) == 1)


def _check_years(times: Any, column: pd.Series) -> None:
    """ValueError for years that nanoseconds in 64 bits do not have."""
    years = getattr(times, "year", None)
    if years is not None and not (years.min() >= 1678 and years.max() < 2262):
        row = int(np.flatnonzero((years < 1678) | (years > 2261))[0])
        raise ValueError(
            f"column {column.name!r} has {column.iloc[row]!r} in row {row + 1}; dates are of the Gregorian calendar, "
            "from 1678 to 2261"
        )


def _no_time(column: pd.Series, missing: Any) -> ValueError:
    row = int(np.asarray(missing).argmax())
    return ValueError(
        f"column {column.name!r} has {shown(str(column.iloc[row]))} in row {row + 1}, which is not a time; correct or "
        "remove the row, or name the column of times with `time`"
    )


def _unclear(column: pd.Series) -> ValueError:
    return ValueError(
        f"column {column.name!r} has times such as {shown(str(column.iloc[0]))}, whose day, month and year are not "
        "clear; write them as year-month-day, or name the column of times with `time`"
    )
