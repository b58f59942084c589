"""Times of the rows of a table: read, and placed on a regular grid."""

# One concept: every form of time is told from all the others, so their readings stand together.

from __future__ import annotations

import re
import warnings
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import numpy as np
import pandas as pd

from lagwise.forecasting.clock_changes import clock_zone, repeated_days, repeated_note
from lagwise.forecasting.grids import Grid, regular_grid
from lagwise.forecasting.month_names import BETWEEN, in_english
from lagwise.forecasting.time_numbers import numbers_as_times
from lagwise.forecasting.year_parts import (
    YEAR,
    Reading,
    Writer,
    parts_of_years,
    plain_times,
    with_centuries,
)
from lagwise.tables import shown

_OFFSET = r"(?P<minutes>:\d\d(?:\.\d+)?)\s*(?P<offset>Z|[+-]\d\d(?::?\d\d)?)$"  # the UTC offset after a time of day
_END_OF_DAY = r"\b24:00(?=(?::00)?$)"
_DAY = np.timedelta64(23, "h")  # the shortest
_CLOCK = r"(?i)^\s*\d{1,2}:\d\d(:\d\d(\.\d+)?)?(\s*[ap]\.?m\.?)?\s*$"
_TIME_OF_DAY = r"(?P<clock>[T ]\s*\d{1,2}:\d\d(?P<seconds>:\d\d(?P<fraction>\.\d+)?)?(?P<half>\s*[ap]m)?)?$"
_MONTH_OR_QUARTER = rf"^(?:{YEAR}[ ./:-]?0?(?P<part>[1-4])|0?(?P<first>[1-4])[ ./-](?P<second>\d{{4}}))$"
_SPAN = (r"\s+(?:-|–|to)\s+", r"\s*/\s*")  # between the start and the end of a time
# Words that dates may have; others would be guessed, as the T of 2015-T1 (a quarter) as that of a time of day.
_WORDS = (
    r"(?i)(?:mon|tue|wed|thu|fri|sat|sun|jan|feb|mar|apr|may|jun|jul|aug|sep|oct|nov|dec)[a-z]*|"
    r"(?<=\d)(?:st|nd|rd|th)\b|\bof\b|[ap]\.?m\.?|(?<=\d)T(?=\d\d)|\b(?:utc|gmt)\b(?!\s*[+-])|(?<=\d)z$"
)
#: The name of a month, also shortened.
MONTH_NAME = r"(?i)(jan|feb|mar|apr|may|jun|jul|aug|sep|oct|nov|dec)[a-z]*\.?"

_SEPTEMBER = r"(?i)\bsept\b\.?"  # short for September, as Python's formats do not have it

_FIRST = {"Y": "year", "y": "year", "G": "year", "m": "month", "b": "month", "B": "month", "d": "day"}


class Times(NamedTuple):
    """The time of each row, the regular grid that contains them all, notes on how they were read, the function that
    writes times in the same form, and a zone whose clock changes they show, if they are local and show some."""

    times: Any
    grid: Grid
    notes: tuple[str, ...]
    write: Writer
    zone: str | None = None


def regular_times(column: pd.Series, some: np.ndarray | None = None) -> Times:
    """The times of a column, and their regular grid (`lagwise.forecasting.grids.regular_grid`).

    Numbers are times on a scale of their own, except for integers such as 202401, 20240131, 240131, 2024031 (a day of
    the year), 202453 (an ISO week) and 2024013123 (an hour), seconds, milli-, micro- and nanoseconds since 1970, and,
    where that gives a shorter grid, days of a spreadsheet such as 45292.5. Text is read by one format: dates with years
    of four or two digits, months by name or number, quarters (2015-Q1, Q1 2015, 1Q15; also T and K), half years
    (2015-S1), months (2015M01, 2015.01), ISO weeks (2015-W07, week 7 2015), and spans (2015-01-05/2015-01-11), which
    are read as their starts. Dates that may be read in several ways, such as 01/02/2024,
    are read in the one that gives times on a regular grid. Years of two digits are the latest before 2050. Times with
    one UTC offset keep it if steps are shorter than a day. With several offsets, days and longer steps follow the local
    calendar, and shorter ones are in UTC. Local times that occur twice at the end of summer time may do so.

    some: whether each row has any value, by default all. Rows without one say nothing about the times at which
    something happens, so the grid is that of the others, up to the last row that is on it.

    ValueError for a time that cannot be read, has no date or year, or occurs twice, dates that may be read in several
    ways, and times on no regular grid; it names the place.
    """
    found, failures = [], []
    for reading in _readings(column):
        try:
            _check_years(reading.times, column)
            notes, grid = _placed(reading.times.rename(column.name), some)
        except ValueError as error:
            failures.append(error)
            continue
        found.append((len(grid.times), reading, Times(reading.times, grid, tuple(notes), reading.write)))
    if not found:
        raise failures[0]
    shortest = min(size for size, *_ in found)
    best = [(reading, made) for size, reading, made in found if size == shortest]
    if len(best) > 1 and all(reading.order for reading, _ in best):
        raise ValueError(
            f"column {column.name!r} has dates such as {column.iloc[0]!r}, which may have the "
            f"{' or the '.join(reading.order for reading, _ in best)} first; write them as year-month-day"
        )
    reading, made = best[0]
    order = (f"dates are read {reading.order} first",) if len(found) + len(failures) > 1 and reading.order else ()
    notes = (*((reading.note,) if reading.note else ()), *order, *made.notes)
    return made._replace(notes=notes, zone=clock_zone(made.times, made.grid.times))


def is_clock(column: pd.Series) -> bool:
    """Whether a column has times of day, and no dates."""
    return bool(pd.api.types.is_string_dtype(column) and len(column) and column.str.match(_CLOCK).all())


def _placed(times: Any, some: np.ndarray | None) -> tuple[list[str], Grid]:
    """Notes on times that occur twice, and the grid."""
    if some is None or some.all():
        return repeated_note(repeated_days(times)), regular_grid(times.unique())
    try:
        notes, grid = repeated_note(repeated_days(times[some])), regular_grid(times[some].unique())
    except ValueError:
        return _placed(times, None)
    if times.max() > grid.times[-1]:
        longer = grid.make(grid.times[0], times.max(), None).rename(times.name)
        grid = Grid(longer[longer <= times[times.isin(longer)].max()], grid.make)
    return notes, grid


def _readings(column: pd.Series) -> list[Reading]:
    """The ways to read a column: several if all of it can be read in several orders of day, month and year."""
    if pd.api.types.is_datetime64_any_dtype(column):
        if column.isna().any():
            _no_time(column, column)
        return [Reading(_of_calendar(pd.DatetimeIndex(column)), plain_times)]
    if pd.api.types.is_numeric_dtype(column):
        _check_quarters(column, column.astype(str))
        return _numeric(column, column.astype(str))
    text = column.astype(str).str.strip().where(column.notna())
    _check_quarters(column, text)
    if (starts := _starts(text)) is not None:
        note = f"times are spans such as {text.iloc[0]}; they are read as their starts"
        starts.name = column.name
        return [reading._replace(note=note) for reading in _readings(starts)]
    eight = text.str.fullmatch(r"\d{8}").all() and pd.to_datetime(text, format="%Y%m%d", errors="coerce").isna().any()
    months = r"(0?[1-9]|1[0-2])\.(19|20)\d\d", r"(19|20)\d\d\.(0[1-9]|1[0-2])"  # as 01.2024 and 2024.01
    if not eight and not any(text.str.fullmatch(each).all() for each in months):
        numbers = pd.to_numeric(text.str.replace(",", ".", n=1, regex=False), errors="coerce")
        if numbers.notna().all():
            return _numeric(numbers.rename(str(column.name)), text)
    if text.isna().any():
        _no_time(column, text)
    text = text.str.replace(_SEPTEMBER, "Sep", regex=True)
    if is_clock(text):
        raise ValueError(
            f"column {column.name!r} has times of day without a date, such as {text.iloc[0]!r}; write date and time in "
            "one column, such as 2024-01-31 08:00"
        )
    if parts := parts_of_years(text):
        return [parts]
    if (english := in_english(text)) is not None:
        found = _dates(column, english.text)
        return [
            each._replace(write=lambda times, each=each: list(map(english.back, each.write(times)))) for each in found
        ]
    return _dates(column, text)


def _numeric(column: pd.Series, text: pd.Series) -> list[Reading]:
    """`numbers_as_times`; a missing or infinite one is an error."""
    finite = column.where(~column.isin([np.inf, -np.inf]))
    if finite.isna().any():
        _no_time(column, finite)
    return numbers_as_times(column, text)


def _check_quarters(column: pd.Series, text: pd.Series) -> None:
    """ValueError for years with a number that is 1 to 4 in each: quarters, but 2010/1 may as well be January."""
    found = text.str.extract(_MONTH_OR_QUARTER)
    years, parts = found["year"].combine_first(found["second"]), found["part"].combine_first(found["first"])
    if years.isna().any() or years.nunique() < 2 or parts.nunique() < 4:
        return
    raise ValueError(
        f"column {column.name!r} has only the numbers 1 to 4 beside years, such as {text.iloc[0]}; write quarters as "
        f"{years.iloc[0]}-Q1, and months with a day, as {years.iloc[0]}-01-01"
    )


def _starts(text: pd.Series) -> pd.Series | None:
    """The starts of spans such as 2015-01-05/2015-01-11; None if these are none."""
    for mark in _SPAN:
        parts = text.str.split(mark, n=1, expand=True, regex=True)
        if parts.shape[1] == 2 and parts.apply(lambda part: part.str.contains(r"\d{4}")).eq(True).all(axis=None):
            shapes = parts.apply(lambda part: part.str.replace(r"\d+", "0", regex=True))
            if (shapes[0] == shapes[1]).all():
                return parts[0]
    return None


def _dates(column: pd.Series, text: Any) -> list[Reading]:
    """The ways to read text as dates, with a time of day or without. 24:00 is the next day's midnight."""
    offsets: Any = text.str.extract(_OFFSET)["offset"]
    some: Any = offsets.notna()
    if bool(some.any()) and not some.all():
        raise ValueError(
            f"column {column.name!r} has times with and without a UTC offset, such as {text[some].iloc[0]!r} and "
            f"{text[~some].iloc[0]!r}"
        )
    note = ""
    ends = text.str.contains(_END_OF_DAY)
    if ends.any():
        text = text.str.replace(_END_OF_DAY, "00:00", regex=True)
        note = "24:00 is the midnight at the end of the day"
    if offsets.nunique() > 1:
        times: Any = pd.to_datetime(text, errors="coerce", utc=True, format="ISO8601")
        times = pd.DatetimeIndex(times if times.notna().all() else pd.to_datetime(text, errors="coerce", utc=True))
        if times.hasnans:
            _no_time(column, text)
        if np.median(np.diff(np.sort(times.to_numpy()))) < _DAY:
            return [Reading(times, plain_times, note="times have several UTC offsets; they are read as UTC")]
        text = text.str.replace(_OFFSET, r"\g<minutes>", regex=True)
        note = "times have several UTC offsets; dates and times are those written, without the offset"
    found: list[Reading] = []
    for reading in _parsed(text):
        if ends.any():
            reading = reading._replace(times=reading.times + pd.to_timedelta(ends.to_numpy().astype(int), unit="D"))
        if not any(reading.times.equals(each.times) for each in found):
            found.append(reading._replace(times=_of_calendar(reading.times), note=note))
    if not found:
        _no_time(column, text)
    return found


def _parsed(text: pd.Series) -> Iterator[Reading]:
    """Text read as ISO 8601, with and without a time of day; or else by the formats that its first row may have; or
    else as pandas reads it. Only formats that fit every row count."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # about unknown formats, and formats for which dayfirst has no effect
        if text.str.match(r"\d{4}").all():
            times = pd.to_datetime(text, errors="coerce", format="ISO8601")
            if times.notna().all():
                yield Reading(pd.DatetimeIndex(times), _as_first(text, pd.DatetimeIndex(times)))
                return
        formats, any_found, unpadded = date_formats(text.iloc[0]), False, _unpadded(text)
        for form in formats:
            times = pd.to_datetime(text, errors="coerce", format=form)
            if times.notna().all():
                index = pd.DatetimeIndex(times)
                if re.match("%[aA]", form) and (index.strftime("%a").str.lower() != text.str[:3].str.lower()).any():
                    continue  # another weekday
                if "%y" in form:
                    index = with_centuries(index)
                    if "%d" not in form and not _are_months(index):  # days of a month, without a year
                        continue
                any_found = True
                yield Reading(index, lambda times, form=form: unpadded(_text(times, form)), _order(form))
        if any_found or formats or not text.str.contains(r"\d{4}").all():
            return
        if text.str.replace(_WORDS, "", regex=True).str.contains(r"[^\W\d_]", regex=True).any():
            return
        for day_first in (False, True):
            times = pd.to_datetime(text, errors="coerce", dayfirst=day_first)
            if times.notna().all():
                yield Reading(pd.DatetimeIndex(times), plain_times, "day" if day_first else "month")


def _as_first(text: Any, times: pd.DatetimeIndex) -> Writer:
    """Writes ISO 8601 as the table has it, if all its rows have the same form."""
    from pandas.tseries.api import guess_datetime_format  # type: ignore[missing-module-attribute]

    form = {4: "%Y", 7: "%Y-%m"}.get(len(text.iloc[0])) or guess_datetime_format(text.iloc[0])
    if form and not re.search("%[zf]", form) and _text(times[[0, -1]], form) == text.iloc[[0, -1]].tolist():
        return lambda times: _text(times, form)
    return plain_times


def date_formats(text: str) -> list[str]:
    """The formats that a date such as 31.12.15, Jan-15 or 12/31/2015 1:00 PM may have, except ISO 8601."""
    clock = re.search(f"(?i){_TIME_OF_DAY}", text)
    date, after = text, ""
    if clock is not None and clock["clock"]:
        date = text[: clock.start()]
        after = clock["clock"][0] + ("%I" if clock["half"] else "%H") + ":%M"
        after += (":%S" if clock["seconds"] else "") + (".%f" if clock["fraction"] else "")
        after += (" %p" if clock["half"][0] == " " else "%p") if clock["half"] else ""
    date = date.strip()
    weekday = re.match(r"(?i)(mon|tue|wed|thu|fri|sat|sun)[a-z]*[,.]?\s+", date)
    before = ""
    if weekday:
        before = ("%a" if len(weekday[0].strip(" ,.")) == 3 else "%A") + weekday[0][len(weekday[0].rstrip(" ,.")) :]
        date = date[weekday.end() :]
    named, word = re.search(MONTH_NAME, date), ""
    if named:
        word = "%b" if len(named[0].rstrip(".")) == 3 else "%B"
        date = date[: named.start()] + "\0" + date[named.start() + len(named[0].rstrip(".")) :]
    if re.fullmatch(r"\d{8}", date):
        return [f"%d%m%Y{after}", f"%m%d%Y{after}"]
    if re.fullmatch(r"\d{4}-W\d\d-\d", date):
        return [f"%G-W%V-%u{after}"]
    numbers = re.findall(r"\d+", date)
    if re.search(r"[^\d\0 ./,'-]", re.sub(BETWEEN, "", date)) or not all(
        len(number) in (1, 2, 4) for number in numbers
    ):
        return []
    short = [len(number) < 4 for number in numbers]
    orders: list[str] = []
    if named and len(numbers) == 1:
        orders = ["y" if short[0] else "Y"]
    elif named and len(numbers) == 2:
        orders = ["dy", "yd"] if all(short) else ["dY" if short[0] else "Yd"]
    elif not named and len(numbers) == 2:
        orders = ["my", "ym"] if all(short) else ["mY" if short[0] else "Ym"]
    elif not named and len(numbers) == 3:
        orders = ["mdy", "dmy", "ymd"] if all(short) else ["mdY", "dmY"] if short[0] else ["Ymd"]
    made = []
    for order in orders:
        parts = iter(order)
        form = re.sub(r"\d+", lambda _, parts=parts: f"%{next(parts)}", date)
        made.append(before + (form.replace("\0", word) if named else form) + after)
    return made


def _text(times: Any, form: str) -> list[str]:
    return list(times.strftime(form))


def _unpadded(text: Any) -> Callable[[list[str]], list[str]]:
    """Drops the zero before days and months of one digit, and before hours, where text has none."""
    parts = [rf"(?<![\d:]){{}}{after}" for after in (r"(?=[./, -])", "(?=:)")]
    dropped = [
        each.format(r"0(\d)")
        for each in parts
        if text.str.contains(each.format("[1-9]")).any() and not text.str.contains(each.format(r"0\d")).any()
    ]

    def write(texts: list[str]) -> list[str]:
        for pattern in dropped:
            texts = [re.sub(pattern, r"\1", each) for each in texts]
        return texts

    return write


def _order(form: str) -> str:
    """What a date of this format begins with."""
    return next(name for mark in re.findall("%([A-Za-z])", form) if (name := _FIRST.get(mark)))


def _are_months(times: pd.DatetimeIndex) -> bool:
    """Whether times read as year and month are in order, and not all in one month of the year."""
    return (times.is_monotonic_increasing or times.is_monotonic_decreasing) and len(set(times.month)) > 1


def _of_calendar(times: pd.Index) -> Any:
    """Times without their zone if they are days or more apart, because days of a zone may be shorter or longer."""
    if not isinstance(times, pd.DatetimeIndex) or times.tz is None:
        return times
    far = np.median(np.diff(np.sort(times.tz_convert("UTC").to_numpy()))) >= _DAY
    return times.tz_localize(None) if far else times


def _check_years(times: Any, column: pd.Series) -> None:
    """ValueError for years that nanoseconds in 64 bits do not have."""
    years = getattr(times, "year", None)
    if years is not None and not (years.min() >= 1678 and years.max() < 2262):
        row = int(np.flatnonzero((years < 1678) | (years > 2261))[0])
        raise ValueError(
            f"column {column.name!r} has {column.iloc[row]!r} in row {row + 1}; dates are of the Gregorian calendar, "
            "from 1678 to 2261"
        )


def _no_time(column: pd.Series, text: pd.Series) -> Any:
    """Raise a ValueError that names the first row without a time, or with another format than the first."""
    missing = text.isna()
    if not missing.any():
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            read = (pd.to_datetime(text, errors="coerce", utc=True, format=form) for form in date_formats(text.iloc[0]))
            missing = min((times.isna() for times in read), key=lambda found: found.sum(), default=missing)
            if not missing.any():
                missing = pd.to_datetime(text, errors="coerce", utc=True).isna()
    if not missing.any() or (
        missing.all() and text.str.contains(r"\d").all() and not text.str.contains(r"\d{4}").any()
    ):
        raise ValueError(
            f"column {column.name!r} has times such as {shown(str(text.iloc[0]))}, whose day, month and year are not "
            "clear; write them as year-month-day, or name the column of times with `time`"
        )
    row = int(missing.to_numpy().argmax())
    raise ValueError(
        f"column {column.name!r} has {shown(str(column.iloc[row]))} in row {row + 1}, which is not a time; correct or "
        "remove the row, or name the column of times with `time`"
    )
