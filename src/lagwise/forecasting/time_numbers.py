"""Numbers as times: dates written as integers, times since 1970, and day numbers of spreadsheets."""

from __future__ import annotations

from typing import Any

import pandas as pd

from lagwise.forecasting.year_parts import Reading, parts_of_years, with_centuries

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


def numbers_as_times(column: pd.Series, text: pd.Series) -> list[Reading]:
    """Numbers as dates, times since 1970, or themselves; and as days of a spreadsheet, if they may be those."""
    whole = bool((column == column.round()).all()) and float(column.abs().max()) < 2**63
    if whole and not text.str.contains(r"[.,e]", regex=True).any():
        integers = column.astype("int64")
        for low, high, form in _INTEGERS:
            if integers.between(low, high).all():
                dates = pd.to_datetime(integers.astype(str), format=form, errors="coerce")
                if dates.notna().all():
                    return [Reading(pd.DatetimeIndex(dates), lambda times, form=form: _whole(_text(times, form)))]
        if text.str.fullmatch(r"\d{6}").all() and integers.diff().abs().max() > 1:
            dates = pd.to_datetime(text, format="%y%m%d", errors="coerce")
            if dates.notna().all():
                return [Reading(with_centuries(pd.DatetimeIndex(dates)), lambda times: _text(times, "%y%m%d"))]
            if weeks := parts_of_years(text):
                return [weeks]
        for unit, least in _SINCE_1970:
            if integers.between(least, int(2.5 * least)).all():
                dates = pd.DatetimeIndex(pd.to_datetime(integers, unit=unit))
                return [
                    Reading(
                        dates, lambda times, unit=unit: _whole(pd.DatetimeIndex(times).as_unit(unit).astype("int64"))
                    )
                ]
        return [Reading(pd.Index(integers), lambda times: list(times)), *_of_sheets(integers, 0)]
    decimals = int(text.str.extract(r"[.,](\d+)$")[0].str.len().fillna(0).max())
    plain = Reading(pd.Index(column), lambda times: [round(float(at), max(decimals, 1)) for at in times])
    sheet = _of_sheets(column, decimals)
    return sheet if sheet and decimals >= _FRACTION else [plain, *sheet]


def _of_sheets(column: pd.Series, decimals: int) -> list[Reading]:
    """Numbers as days of a spreadsheet, with a fraction for the time of day, to the second."""
    if not column.between(*_SHEETS).all():
        return []
    start, day = pd.Timestamp(_SHEET), pd.Timedelta(days=1)
    times = pd.DatetimeIndex(start + pd.to_timedelta(column.to_numpy() * 86_400, unit="s")).round("s")

    def write(times: pd.Index) -> list[Any]:
        days = [(at - start) / day for at in times]
        return [round(each, decimals) if decimals else round(each) for each in days]

    return [Reading(times, write, note=f"numbers such as {column.iloc[0]} are read as days of a spreadsheet")]


def _whole(values: Any) -> list[int]:
    return [int(value) for value in values]


def _text(times: Any, form: str) -> list[str]:
    return list(times.strftime(form))
