"""Times of the rows of a table: read, and placed on a regular grid."""

# One concept: every form of time is told from all the others, so their readings stand together.

from __future__ import annotations

import re
import warnings
from collections.abc import Callable, Iterable, Iterator
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from lagwise.forecasting.grids import Grid, regular_grid
from lagwise.tables import shown

if TYPE_CHECKING:
    import pandas as pd

_OFFSET = r"(?P<minutes>:\d\d(?:\.\d+)?)\s*(?P<offset>Z|[+-]\d\d(?::?\d\d)?)$"  # the UTC offset after a time of day
# Dates as integers. Those with an hour are from 1900 to 2100.
_INTEGERS = (
    (180001, 220012, "%Y%m"),
    (1800001, 2200366, "%Y%j"),
    (10**7, 10**8, "%Y%m%d"),
    (1900010100, 2100123123, "%Y%m%d%H"),
)
_SINCE_1970: Any = (("s", 10**9), ("ms", 10**12), ("us", 10**15), ("ns", 10**18))  # from 2001, up to 2.5 times as much
_SHEET, _SHEETS = "1899-12-30", (20_000, 80_000)  # day 0 of spreadsheets, and their days from 1954 to 2119
_FRACTION = 4  # decimals of a day number with a time of day
_DAY = np.timedelta64(23, "h")  # the shortest
_CLOCK_MONTHS = (3, 4, 10, 11)  # in which clocks go back, in the south or the north, on a Sunday
_CLOCK = r"(?i)^\s*\d{1,2}:\d\d(:\d\d(\.\d+)?)?(\s*[ap]\.?m\.?)?\s*$"
_TIME_OF_DAY = r"(?P<clock>[T ]\s*\d{1,2}:\d\d(?P<seconds>:\d\d(?P<fraction>\.\d+)?)?(?P<half>\s*[ap]m)?)?$"
# Parts of years. The month in which a part begins is factor * (part - 1) + 1.
_YEAR, _SHORT = r"(?P<year>\d{4})", r"(?P<year>\d{4}|\d\d)"
_PARTS = (
    (rf"^{_YEAR}[ :./-]*(?:q|t|k|qtr )(?P<part>[1-4])$", 3),  # also trimestre and kvartal
    (rf"^(?:q|t|k|qtr )(?P<part>[1-4])[ :./'-]*{_SHORT}$", 3),
    (rf"^(?P<part>[1-4])[qtk][ :./'-]*{_SHORT}$", 3),
    (rf"^{_YEAR}[ -]?[sh](?P<part>[12])$", 6),
    (rf"^{_YEAR}[ -]?m(?P<part>0?[1-9]|1[0-2])$", 1),
    (rf"^m(?P<part>0?[1-9]|1[0-2])[ -]?{_YEAR}$", 1),
    (rf"^{_YEAR}\.(?P<part>0[1-9]|1[0-2])$", 1),
)
_NUMBER = r"(?P<part>0?[1-9]|[1-4]\d|5[0-3])"
_WEEK = rf"^{_YEAR}[ -]*(?:w|wk|week|kw)[ -]?{_NUMBER}$"  # also Kalenderwoche
_YEAR_LAST = rf"^(?:w|wk|week|kw)[ -]?{_NUMBER}[ ,./-]+{_YEAR}$"
_WEEK_NUMBER = rf"^{_YEAR}(?P<part>0[1-9]|[1-4]\d|5[0-3])$"
_MONTH_OR_QUARTER = rf"^(?:{_YEAR}[ ./:-]?0?(?P<part>[1-4])|0?(?P<first>[1-4])[ ./-](?P<second>\d{{4}}))$"
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

#: Writes times as the table had them.
Writer = Callable[["pd.Index"], list[Any]]


class Times(NamedTuple):
    """The time of each row, the regular grid that contains them all, notes on how they were read, and the function that
    writes times in the same form."""

    times: Any
    grid: Grid
    notes: tuple[str, ...]
    write: Writer


class _Reading(NamedTuple):
    times: Any
    write: Writer
    order: str = ""  # what a date begins with: "day", "month" or "year"
    note: str = ""


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
            note, grid = _placed(reading.times.rename(column.name), some)
        except ValueError as error:
            failures.append(error)
            continue
        found.append((len(grid.times), reading, Times(reading.times, grid, (note,) if note else (), reading.write)))
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
    return made._replace(notes=(*((reading.note,) if reading.note else ()), *order, *made.notes))


def is_clock(column: pd.Series) -> bool:
    """Whether a column has times of day, and no dates."""
    import pandas as pd

    return bool(pd.api.types.is_string_dtype(column) and len(column) and column.str.match(_CLOCK).all())


def _placed(times: Any, some: np.ndarray | None) -> tuple[str, Grid]:
    """A note on times that occur twice, and the grid."""
    if some is None or some.all():
        return repeated(times), regular_grid(times.unique())
    try:
        note, grid = repeated(times[some]), regular_grid(times[some].unique())
    except ValueError:
        return _placed(times, None)
    if times.max() > grid.times[-1]:
        longer = grid.make(grid.times[0], times.max(), None).rename(times.name)
        grid = Grid(longer[longer <= times[times.isin(longer)].max()], grid.make)
    return note, grid


def _readings(column: pd.Series) -> list[_Reading]:
    """The ways to read a column: several if all of it can be read in several orders of day, month and year."""
    import pandas as pd

    if pd.api.types.is_datetime64_any_dtype(column):
        if column.isna().any():
            _no_time(column, column)
        return [_Reading(_of_calendar(pd.DatetimeIndex(column)), plain_times)]
    if pd.api.types.is_numeric_dtype(column):
        _check_quarters(column, column.astype(str))
        return _of_numbers(column, column.astype(str))
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
            return _of_numbers(numbers.rename(str(column.name)), text)
    if text.isna().any():
        _no_time(column, text)
    text = text.str.replace(_SEPTEMBER, "Sep", regex=True)
    if is_clock(text):
        raise ValueError(
            f"column {column.name!r} has times of day without a date, such as {text.iloc[0]!r}; write date and time in "
            "one column, such as 2024-01-31 08:00"
        )
    if parts := _parts_of_years(text):
        return [parts]
    return _dates(column, text)


def _check_quarters(column: pd.Series, text: pd.Series) -> None:
    """ValueError for years with a number that is 1 to 4 in each: quarters, but 2010/1 may as well be January."""
    found = text.str.extract(_MONTH_OR_QUARTER)
    years, parts = found["year"].fillna(found["second"]), found["part"].fillna(found["first"])
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


def _of_numbers(column: pd.Series, text: pd.Series) -> list[_Reading]:
    """Numbers as dates, times since 1970, or themselves; and as days of a spreadsheet, if they may be those."""
    import pandas as pd

    finite = column.where(~column.isin([np.inf, -np.inf]))
    if finite.isna().any():
        _no_time(column, finite)
    whole = bool((column == column.round()).all()) and float(column.abs().max()) < 2**63
    if whole and not text.str.contains(r"[.,e]", regex=True).any():
        integers = column.astype("int64")
        for low, high, form in _INTEGERS:
            if integers.between(low, high).all():
                dates = pd.to_datetime(integers.astype(str), format=form, errors="coerce")
                if dates.notna().all():
                    return [_Reading(pd.DatetimeIndex(dates), lambda times, form=form: _whole(_text(times, form)))]
        if text.str.fullmatch(r"\d{6}").all() and integers.diff().abs().max() > 1:
            dates = pd.to_datetime(text, format="%y%m%d", errors="coerce")
            if dates.notna().all():
                return [_Reading(_with_centuries(pd.DatetimeIndex(dates)), lambda times: _text(times, "%y%m%d"))]
            if weeks := _parts_of_years(text):
                return [weeks]
        for unit, least in _SINCE_1970:
            if integers.between(least, int(2.5 * least)).all():
                dates = pd.DatetimeIndex(pd.to_datetime(integers, unit=unit))
                return [
                    _Reading(
                        dates, lambda times, unit=unit: _whole(pd.DatetimeIndex(times).as_unit(unit).astype("int64"))
                    )
                ]
        return [_Reading(pd.Index(integers), lambda times: list(times)), *_of_sheets(integers, 0)]
    decimals = int(text.str.extract(r"[.,](\d+)$")[0].str.len().fillna(0).max())
    plain = _Reading(pd.Index(column), lambda times: [round(float(at), max(decimals, 1)) for at in times])
    sheet = _of_sheets(column, decimals)
    return sheet if sheet and decimals >= _FRACTION else [plain, *sheet]


def _of_sheets(column: pd.Series, decimals: int) -> list[_Reading]:
    """Numbers as days of a spreadsheet, with a fraction for the time of day, to the second."""
    import pandas as pd

    if not column.between(*_SHEETS).all():
        return []
    start, day = pd.Timestamp(_SHEET), pd.Timedelta(days=1)
    times = pd.DatetimeIndex(start + pd.to_timedelta(column.to_numpy() * 86_400, unit="s")).round("s")

    def write(times: pd.Index) -> list[Any]:
        days = [(at - start) / day for at in times]
        return [round(each, decimals) if decimals else round(each) for each in days]

    return [_Reading(times, write, note=f"numbers such as {column.iloc[0]} are read as days of a spreadsheet")]


def _text(times: Any, form: str) -> list[str]:
    return list(times.strftime(form))


def _whole(values: Any) -> list[int]:
    return [int(value) for value in values]


def plain_times(times: Iterable[object]) -> list[str]:
    """Dates as year-month-day, with a time of day unless all are midnight."""
    texts = [str(at) for at in times]
    midnight = r" 00:00:00$"
    return [re.sub(midnight, "", text) for text in texts] if all(re.search(midnight, t) for t in texts) else texts


def _parts_of_years(text: pd.Series) -> _Reading | None:
    """Quarters, half years, months and ISO weeks as numbers."""
    import pandas as pd

    for pattern, factor in (*_PARTS, (_WEEK, 0), (_YEAR_LAST, 0), (_WEEK_NUMBER, 0)):
        first = re.match(pattern, text.iloc[0], re.IGNORECASE)
        if first is None:
            continue
        found = text.str.extract(pattern, flags=re.IGNORECASE)
        if found.isna().any(axis=None):
            continue
        years = _centuries(found["year"].astype(int).to_numpy()) if len(found["year"].iloc[0]) == 2 else found["year"]
        years, parts = pd.Series(np.asarray(years)).astype(int), found["part"].astype(int).reset_index(drop=True)
        if factor:
            times = pd.to_datetime({"year": years, "month": factor * (parts - 1) + 1, "day": 1})
        else:
            times = pd.to_datetime(
                years.astype(str) + "-" + parts.astype(str) + "-1", format="%G-%V-%u", errors="coerce"
            )
            if times.isna().any():  # week 53 of a year that has 52
                continue
            if pattern == _WEEK_NUMBER and years.nunique() == 1:  # numbers
                continue
        width = int(found["part"].str.len().min())  # 2 for M01, 1 for M1

        def write(times: pd.Index, first: Any = first, factor: int = factor, width: int = width) -> list[str]:
            calendar = times.isocalendar()  # type: ignore[missing-attribute]
            pairs = [
                (at.year, (at.month - 1) // factor + 1) if factor else (year, week)
                for at, year, week in zip(times, calendar["year"], calendar["week"], strict=True)
            ]
            return [_filled(first, year, part, width) for year, part in pairs]

        return _Reading(pd.DatetimeIndex(times), write)
    return None


def _filled(match: re.Match[str], year: int, part: int, width: int) -> str:
    """The matched text with another year and part."""
    digits = match.end("year") - match.start("year")
    values = {"year": f"{year:04d}"[-digits:], "part": f"{part:0{width}d}"}
    made, end = "", 0
    for name in sorted(values, key=match.start):
        made += match.string[end : match.start(name)] + values[name]
        end = match.end(name)
    return made + match.string[end:]


def _centuries(years: np.ndarray) -> np.ndarray:
    """Years of two digits in full: consecutive ones, of which the last is before 2050."""
    found = np.unique(years % 100)
    gaps = np.diff(np.append(found, found[0] + 100))
    last = int(found[gaps.argmax()])  # the largest gap follows it
    century = 2000 if last < 50 else 1900
    return np.where(years % 100 <= last, century, century - 100) + years % 100


def _dates(column: pd.Series, text: Any) -> list[_Reading]:
    offsets: Any = text.str.extract(_OFFSET)["offset"]
    some: Any = offsets.notna()
    if bool(some.any()) and not some.all():
        raise ValueError(
            f"column {column.name!r} has times with and without a UTC offset, such as {text[some].iloc[0]!r} and "
            f"{text[~some].iloc[0]!r}"
        )
    note = ""
    if offsets.nunique() > 1:
        import pandas as pd

        times: Any = pd.to_datetime(text, errors="coerce", utc=True, format="ISO8601")
        times = pd.DatetimeIndex(times if times.notna().all() else pd.to_datetime(text, errors="coerce", utc=True))
        if times.hasnans:
            _no_time(column, text)
        if np.median(np.diff(np.sort(times.to_numpy()))) < _DAY:
            return [_Reading(times, plain_times, note="times have several UTC offsets; they are read as UTC")]
        text = text.str.replace(_OFFSET, r"\g<minutes>", regex=True)
        note = "times have several UTC offsets; dates and times are those written, without the offset"
    found: list[_Reading] = []
    for reading in _parsed(text):
        if not any(reading.times.equals(each.times) for each in found):
            found.append(reading._replace(times=_of_calendar(reading.times), note=note))
    if not found:
        _no_time(column, text)
    return found


def _parsed(text: pd.Series) -> Iterator[_Reading]:
    """Text read as ISO 8601, with and without a time of day; or else by the formats that its first row may have; or
    else as pandas reads it. Only formats that fit every row count."""
    import pandas as pd

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # about unknown formats, and formats for which dayfirst has no effect
        if text.str.match(r"\d{4}").all():
            times = pd.to_datetime(text, errors="coerce", format="ISO8601")
            if times.notna().all():
                yield _Reading(pd.DatetimeIndex(times), _as_first(text, pd.DatetimeIndex(times)))
                return
        formats, any_found = _formats(text.iloc[0]), False
        for form in formats:
            times = pd.to_datetime(text, errors="coerce", format=form)
            if times.notna().all():
                index = pd.DatetimeIndex(times)
                if "%y" in form:
                    index = _with_centuries(index)
                    if "%d" not in form and not _are_months(index):  # days of a month, without a year
                        continue
                any_found = True
                yield _Reading(index, lambda times, form=form: _text(times, form), _order(form))
        if any_found or formats or not text.str.contains(r"\d{4}").all():
            return
        if text.str.replace(_WORDS, "", regex=True).str.contains(r"[^\W\d_]", regex=True).any():
            return
        for day_first in (False, True):
            times = pd.to_datetime(text, errors="coerce", dayfirst=day_first)
            if times.notna().all():
                yield _Reading(pd.DatetimeIndex(times), plain_times, "day" if day_first else "month")


def _as_first(text: Any, times: pd.DatetimeIndex) -> Writer:
    """Writes ISO 8601 as the table has it, if all its rows have the same form."""
    from pandas.tseries.api import guess_datetime_format  # type: ignore[missing-module-attribute]

    form = {4: "%Y", 7: "%Y-%m"}.get(len(text.iloc[0])) or guess_datetime_format(text.iloc[0])
    if form and not re.search("%[zf]", form) and _text(times[[0, -1]], form) == text.iloc[[0, -1]].tolist():
        return lambda times: _text(times, form)
    return plain_times


def _formats(text: str) -> list[str]:
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
    if re.search(r"[^\d\0 ./,'-]", date) or not all(len(number) in (1, 2, 4) for number in numbers):
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


def _order(form: str) -> str:
    """What a date of this format begins with."""
    return next(name for mark in re.findall("%([A-Za-z])", form) if (name := _FIRST.get(mark)))


def _are_months(times: pd.DatetimeIndex) -> bool:
    """Whether times read as year and month are in order, and not all in one month of the year."""
    return (times.is_monotonic_increasing or times.is_monotonic_decreasing) and len(set(times.month)) > 1


def _with_centuries(times: pd.DatetimeIndex) -> pd.DatetimeIndex:
    import pandas as pd

    years = _centuries(np.asarray(times.year))
    parts: Any = {name: getattr(times, name) for name in ("month", "day", "hour", "minute", "second", "microsecond")}
    made = pd.to_datetime({"year": years, **parts, "us": parts.pop("microsecond")}, errors="coerce")
    return pd.DatetimeIndex(made) if made.notna().all() else times


def _of_calendar(times: pd.Index) -> Any:
    """Times without their zone if they are days or more apart, because days of a zone may be shorter or longer."""
    import pandas as pd

    if not isinstance(times, pd.DatetimeIndex) or times.tz is None:
        return times
    far = np.median(np.diff(np.sort(times.tz_convert("UTC").to_numpy()))) >= _DAY
    return times.tz_localize(None) if far else times


def repeated(times: Any) -> str:
    """A note on the hours that occur twice because clocks went back; ValueError for other times that occur twice, and
    for fewer than 3."""
    import pandas as pd

    again = times[times.duplicated()]
    if len(again):
        if not _clock_went_back(times, again):
            dated = isinstance(times, pd.DatetimeIndex)
            local = dated and times.tz is None and (times != times.normalize()).any()
            offset = ", write local times with their UTC offset if the clock was changed" if local else ""
            offset = offset if local else ", join year and month, or date and time, if they are in several columns"
            raise ValueError(
                f"column {times.name!r} has {again.sort_values()[0]} more than once; keep one row for each time"
                f"{offset}, or name the column that tells series apart with `id`"
            )
        days = sorted({f"{at:%Y-%m-%d}" for at in again})
        return (
            f"times occur twice on {', '.join(days[:3])}{', ...' if len(days) > 3 else ''}, where the clock goes back "
            "at the end of summer time; the mean of both rows stands for them"
        )
    if len(times) < 3:
        raise ValueError(f"at least 3 rows are needed, got {len(times)}")
    return ""


def _check_years(times: Any, column: pd.Series) -> None:
    """ValueError for years that nanoseconds in 64 bits do not have."""
    years = getattr(times, "year", None)
    if years is not None and not (years.min() >= 1678 and years.max() < 2262):
        row = int(np.flatnonzero((years < 1678) | (years > 2261))[0])
        raise ValueError(
            f"column {column.name!r} has {column.iloc[row]!r} in row {row + 1}; dates are of the Gregorian calendar, "
            "from 1678 to 2261"
        )


def _clock_went_back(times: Any, again: Any) -> bool:
    """Whether the times that occur twice are one whole hour of a night, once a year."""
    import pandas as pd

    if not isinstance(times, pd.DatetimeIndex) or times.tz is not None or again.duplicated().any():
        return False
    again = again.sort_values()
    nights = again.normalize().unique()
    if len(nights) > 1 and (nights[1:] - nights[:-1]).min() < pd.Timedelta(days=150):
        return False
    step = pd.Series(times.sort_values().unique()).diff().mode()[0]
    hour = again.floor("h")
    whole = pd.Series(1, index=again).groupby(hour).sum() * step == pd.Timedelta(hours=1)
    sunday = (again + pd.Timedelta(hours=1)).dayofweek == 6  # or the last hour of Saturday
    night = ((again.hour <= 4) | (again.hour == 23)) & sunday & again.month.isin(_CLOCK_MONTHS)
    return bool(whole.all() and night.all() and len(hour.unique()) == len(nights))


def _no_time(column: pd.Series, text: pd.Series) -> Any:
    """Raise a ValueError that names the first row without a time, or with another format than the first."""
    import pandas as pd

    missing = text.isna()
    if not missing.any():
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            read = (pd.to_datetime(text, errors="coerce", utc=True, format=form) for form in _formats(text.iloc[0]))
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
