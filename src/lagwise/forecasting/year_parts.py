"""Years with a quarter, a half, a month or an ISO week, and years of two digits."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from typing import Any, NamedTuple

import numpy as np
import pandas as pd

# Parts of years. The month in which a part begins is factor * (part - 1) + 1.
YEAR, _SHORT = r"(?P<year>\d{4})", r"(?P<year>\d{4}|\d\d)"
_PARTS = (
    (rf"^{YEAR}[ :./-]*(?:q|t|k|qtr )(?P<part>[1-4])$", 3),  # also trimestre and kvartal
    (rf"^(?:q|t|k|qtr )(?P<part>[1-4])[ :./'-]*{_SHORT}$", 3),
    (rf"^(?P<part>[1-4])[qtk][ :./'-]*{_SHORT}$", 3),
    (rf"^{YEAR}[ -]?[sh](?P<part>[12])$", 6),
    (rf"^{YEAR}[ -]?m(?P<part>0?[1-9]|1[0-2])$", 1),
    (rf"^m(?P<part>0?[1-9]|1[0-2])[ -]?{YEAR}$", 1),
    (rf"^{YEAR}\.(?P<part>0[1-9]|1[0-2])$", 1),
)
_NUMBER = r"(?P<part>0?[1-9]|[1-4]\d|5[0-3])"
_WEEK = rf"^{YEAR}[ -]*(?:w|wk|week|kw)[ -]?{_NUMBER}$"  # also Kalenderwoche
_YEAR_LAST = rf"^(?:w|wk|week|kw)[ -]?{_NUMBER}[ ,./-]+{YEAR}$"
_WEEK_NUMBER = rf"^{YEAR}(?P<part>0[1-9]|[1-4]\d|5[0-3])$"

#: Writes times as the table had them.
Writer = Callable[["pd.Index"], list[Any]]


class Reading(NamedTuple):
    """Times, what writes them in the same form, and a note on how they were read."""

    times: Any
    write: Writer
    order: str = ""  # what a date begins with: "day", "month" or "year"
    note: str = ""


def parts_of_years(text: pd.Series) -> Reading | None:
    """Quarters, half years, months and ISO weeks as numbers."""
    for pattern, factor in (*_PARTS, (_WEEK, 0), (_YEAR_LAST, 0), (_WEEK_NUMBER, 0)):
        first = re.match(pattern, text.iloc[0], re.IGNORECASE)
        if first is None:
            continue
        found = text.str.extract(pattern, flags=re.IGNORECASE)
        if found.isna().any(axis=None):
            continue
        years = centuries(found["year"].astype(int).to_numpy()) if len(found["year"].iloc[0]) == 2 else found["year"]
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

        return Reading(pd.DatetimeIndex(times), write)
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


def centuries(years: np.ndarray) -> np.ndarray:
    """Years of two digits in full: consecutive ones, of which the last is before 2050."""
    found = np.unique(years % 100)
    gaps = np.diff(np.append(found, found[0] + 100))
    last = int(found[gaps.argmax()])  # the largest gap follows it
    century = 2000 if last < 50 else 1900
    return np.where(years % 100 <= last, century, century - 100) + years % 100


def with_centuries(times: pd.DatetimeIndex) -> pd.DatetimeIndex:
    years = centuries(np.asarray(times.year))
    parts: Any = {name: getattr(times, name) for name in ("month", "day", "hour", "minute", "second", "microsecond")}
    made = pd.to_datetime({"year": years, **parts, "us": parts.pop("microsecond")}, errors="coerce")
    return pd.DatetimeIndex(made) if made.notna().all() else times


def plain_times(times: Iterable[object]) -> list[str]:
    """Dates as year-month-day, with a time of day unless all are midnight."""
    texts = [str(at) for at in times]
    midnight = r" 00:00:00$"
    return [re.sub(midnight, "", text) for text in texts] if all(re.search(midnight, t) for t in texts) else texts
