"""Times in text: dates, periods of a year, clocks and UTC offsets."""

from __future__ import annotations

import calendar
import re
from typing import Any

import numpy as np
import pandas as pd

from lagwise.extras import explained
from lagwise.tables import shown

#: Values of the option ``date_order``, the part that a date of three numbers begins with, and the indices of its year,
#: month and day.
DATE_ORDERS = {"day": (2, 1, 0), "month": (2, 0, 1), "year": (0, 1, 2)}
_CENTURY_BREAK = 50  # years of two digits are from 1950 to 2049
CLOCK = r"\d{1,2}:\d\d(?::\d\d(?:\.\d+)?)?(?:\s*[AaPp]\.?[Mm]\.?)?"
_UTC_OFFSET = r"(?P<clock>:\d\d(?:\.\d+)?)\s*(?P<offset>Z|[+-]\d\d(?::?\d\d)?)$"
_THREE_NUMBERS = r"(\d{1,4})[./-](\d{1,2})[./-](\d{4}|\d{1,2})"
# Periods of a year: how they are written, how as a date, and the format of that.
_PERIODS: tuple[tuple[str, Any, str], ...] = (
    (r"(\d{4})[ -]?Q([1-4])", lambda text: f"{text[1]}-{3 * int(text[2]) - 2}", "%Y-%m"),
    (r"Q([1-4])[ -]?(\d{4})", lambda text: f"{text[2]}-{3 * int(text[1]) - 2}", "%Y-%m"),
    (r"(\d{4})[ -]?M(\d{1,2})", r"\1-\2", "%Y-%m"),
    (r"(\d{4})[ -]?W(\d{1,2})", r"\1-\2-1", "%G-%V-%u"),
)
_INTEGER_DATES = {"%Y%m": (180001, 220012), "%Y%m%d": (18000101, 22001231)}
_EPOCH = {"s": (10**9, 25 * 10**8), "ms": (10**12, 25 * 10**11)}  # from 2001 to 2049
_NAMED = ("%d-%b-%Y", "%b-%d-%Y", "%Y-%b-%d", "%b-%Y", "%Y-%b", "%d-%b-%y", "%b-%y", "%y-%b")
_WORD = r"[^\W\d_]+"
_LANGUAGES = ("en", "de", "fr", "es", "it", "pt", "nl", "sv", "da", "nb", "pl", "ru")


def read_dates(column: pd.Series, date_order: str | None = None) -> tuple[dict[str, Any], str]:
    """Read a whole column, in each order of day, month and year that fits it ("" if there is but one), and note what
    became of UTC offsets."""
    if isinstance(column.dtype, pd.PeriodDtype):
        column = column.dt.to_timestamp()
    if pd.api.types.is_datetime64_any_dtype(column):
        times = pd.DatetimeIndex(column)
        _check(column, times)
        local = times.tz_localize(None)
        return {"": local if _is_one_clock(local) else times}, ""
    text = column.astype(str).str.strip().where(column.notna(), "")
    for pattern, date, form in _PERIODS:
        if text.str.fullmatch(pattern, case=False).all():
            dates = text.str.replace(pattern, date, case=False, regex=True)
            return {"": _check(column, _as_dates(dates, form))}, ""
    numbers = pd.to_numeric(text, errors="coerce")
    if numbers.notna().all() and not text.str.fullmatch(r"0\d{7}").any():  # 01022015
        return {"": _numbers_as_times(column, text, numbers)}, ""
    if text.str.match(r"\d{4}-\d\d").all():
        return _iso_times(column, text)
    parts = text.str.extract(rf"(?s)^(.*?)(?:[T, ]\s*({CLOCK}))?$")
    days = _days(parts[0], date_order)
    clocks = "1900-01-01 " + parts[1].fillna("0:00").str.replace(".M", "M").str.replace(r"(?<=[ap])\.|\.$", "")
    clock = pd.to_datetime(clocks, format="mixed", errors="coerce") - pd.Timestamp("1900-01-01")
    by_order = {order: each + pd.TimedeltaIndex(clock) for order, each in days.items()}
    _check(column, min(by_order.values(), key=lambda each: np.count_nonzero(each.isna())))
    return {order: each for order, each in by_order.items() if not each.hasnans}, ""


def _as_dates(text: pd.Series, form: str) -> pd.DatetimeIndex:
    return pd.DatetimeIndex(pd.to_datetime(text, format=form, errors="coerce"))


def _numbers_as_times(column: pd.Series, text: pd.Series, numbers: pd.Series) -> pd.Index:
    """Read numbers as dates, times since 1970, or steps."""
    _check(column, pd.Index(numbers.where(~np.isinf(numbers))))
    if not text.str.fullmatch(r"[+-]?\d{1,18}").all():
        return pd.Index(numbers)
    integers = text.astype("int64")
    for form, bounds in _INTEGER_DATES.items():
        if integers.between(*bounds).all() and not (dates := _as_dates(text, form)).hasnans:
            return dates
    for unit, bounds in _EPOCH.items():
        if integers.between(*bounds).all():
            return pd.DatetimeIndex(pd.to_datetime(integers, unit=unit))  # type: ignore[no-matching-overload]
    return pd.Index(integers)


def _iso_times(column: pd.Series, text: pd.Series) -> tuple[dict[str, Any], str]:
    """Read ISO 8601: with one UTC offset, with several as UTC, or at one local time of day without."""
    offsets: Any = text.str.extract(_UTC_OFFSET)["offset"]
    zoned: Any = offsets.notna()
    local = _check(column, _as_dates(text.str.replace(_UTC_OFFSET, r"\g<clock>", regex=True), "ISO8601"))
    if zoned.any() and not zoned.all():
        raise ValueError(
            f"column {column.name!r} has times with and without a UTC offset, such as {text[zoned].iloc[0]!r} and "
            f"{text[~zoned].iloc[0]!r}"
        )
    if not zoned.any() or _is_one_clock(local):
        return {"": local}, ""
    several = offsets.nunique() > 1
    times = pd.DatetimeIndex(pd.to_datetime(text, format="ISO8601", utc=several))
    return {"": times}, "times have several UTC offsets; they are read as UTC" if several else ""


def _days(text: pd.Series, date_order: str | None) -> dict[str, pd.DatetimeIndex]:
    """Read dates of three numbers in each possible order, or with names of months; NaT elsewhere."""
    by_order: dict[str, pd.DatetimeIndex] = {}
    numbers = text.str.extract(f"^{_THREE_NUMBERS}$")
    for order in DATE_ORDERS if date_order is None else (date_order,):
        year, month, day = (numbers[index] for index in DATE_ORDERS[order])
        if year.str.len().isin([2, 4]).any() and not pd.concat([month, day]).str.len().gt(2).any():
            century = pd.Series(np.where(pd.to_numeric(year) < _CENTURY_BREAK, "20", "19"), year.index)
            year = year.where(year.str.len() == 4, century + year)
            by_order[order] = _as_dates(year + "-" + month + "-" + day, "%Y-%m-%d")
    return by_order or {"": _named_dates(text)}


def _named_dates(text: pd.Series) -> pd.DatetimeIndex:
    """Read dates with names of months in `_LANGUAGES`, NaT elsewhere. Other words, such as days of the week, do not
    count."""
    names = {name.lower() for each in text.unique() for name in re.findall(_WORD, each)}
    months = {name.lower(): calendar.month_abbr[i] for i, name in enumerate(calendar.month_name) if i}
    months |= {name.lower(): name for name in calendar.month_abbr[1:]}
    if others := {name for name in names - months.keys() if len(name) > 2}:
        try:
            from dateparser.date import DateDataParser
        except ModuleNotFoundError as error:
            raise explained(error, "forecast") from error
        settings = {"PARSERS": ["absolute-time"], "REQUIRE_PARTS": ["year", "month", "day"]}
        parser = DateDataParser(languages=_LANGUAGES, try_previous_locales=True, settings=settings)
        read = {name: parser.get_date_data(f"1 {name} 2000").date_obj for name in others}
        months |= {name: calendar.month_abbr[at.month] for name, at in read.items() if at is not None}
    english = text.str.replace(_WORD, lambda name: months.get(name[0].lower(), ""), regex=True)
    english = english.str.replace(r"\W+", "-", regex=True).str.strip("-")
    dates = min((_as_dates(english, form) for form in _NAMED), key=lambda each: np.count_nonzero(each.isna()))
    if text.str.contains(r"\d{4}|\d\D+\d").any() or (dates.is_monotonic_increasing and dates.month.nunique() > 1):
        return dates
    return _as_dates(english, "")  # the only number may be the day


def _is_one_clock(local: pd.DatetimeIndex) -> bool:
    """Whether all local times are at the same time of day, so that they are days or longer steps apart."""
    return bool(len((local - local.normalize()).unique()) == 1)


def _check(column: pd.Series, times: Any) -> Any:
    """Return times; ValueError for a row without one, or in a year that nanoseconds in 64 bits do not have."""
    years = times.year if isinstance(times, pd.DatetimeIndex) else pd.Index([2000] * len(times))
    wrong = np.asarray(times.isna() | (years < 1678) | (years > 2261))
    if wrong.any():
        row = int(wrong.argmax())
        raise ValueError(
            f"column {column.name!r} has {shown(str(column.iloc[row]))} in row {row + 1}, which is not read as a time, "
            "such as 2024-01-31 08:00; correct or remove the row, name the column of times with `time`, or read the "
            "table with pandas and give the DataFrame to read_series"
        )
    return times
