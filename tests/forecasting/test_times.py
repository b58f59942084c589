"""Parsing of times and detection of their grid."""

from __future__ import annotations

from typing import Any

import numpy as np
import pandas as pd
import pytest

from lagwise.forecasting.times import plain_times, regular_times


def column(times: Any) -> pd.Series:
    return pd.Series(times, name="t")


def read(times: Any) -> tuple[pd.Index, pd.Index, tuple[str, ...]]:
    """The times, those of their grid, and notes."""
    made = regular_times(column(times))
    return made.times, made.grid.times, made.notes


def without(freq: Any, rows: int = 30, start: str = "2019-01-01") -> pd.DatetimeIndex:
    """A calendar with a missing row."""
    return pd.date_range(start, periods=rows, freq=freq).delete(7)


@pytest.mark.parametrize(
    "freq", ["B", "ME", "MS", "BME", "BMS", "QE", "QS", "QE-JAN", "2MS", "YE", "YS-APR", "D", "W-WED", "h", "15min"]
)
@pytest.mark.parametrize("text", [False, True])
def test_one_missing_time_does_not_change_the_calendar(freq: str, text: bool) -> None:
    full = pd.date_range("2019-01-01", periods=31, freq=freq)
    given = without(freq)
    made = regular_times(column(given.strftime("%Y-%m-%d %H:%M:%S") if text else given))
    assert list(made.times) == list(given)
    assert list(made.grid.times) == list(full[:30])
    assert list(made.grid.following(1)) == list(full[30:])
    assert made.notes == ()


def test_any_day_of_the_month() -> None:
    months = pd.DatetimeIndex([pd.Timestamp(2020 + m // 12, m % 12 + 1, 15) for m in range(24)])
    assert list(read(months.delete(3))[1]) == list(months)
    quarters = months[::3]
    assert list(read(quarters.delete(3))[1]) == list(quarters)


@pytest.mark.parametrize("zone", ["Z", "+02:00", "+0530"])
def test_one_utc_offset_is_kept_for_hours_and_dropped_for_days(zone: str) -> None:
    hours = pd.date_range("2024-03-01", periods=50, freq="h")
    found, grid, notes = read(hours.strftime("%Y-%m-%dT%H:%M:%S") + zone)
    assert found.tz is not None
    assert (len(grid), grid[0].hour, notes) == (50, 0, ())
    days = pd.date_range("2024-03-01", periods=50, freq="D")
    found, grid, _ = read(days.strftime("%Y-%m-%d %H:%M") + zone)
    assert list(grid) == list(days)


def berlin(freq: str, rows: int, form: str = "%Y-%m-%dT%H:%M:%S%z") -> list[str]:
    """Times around the day on which clocks go forward."""
    return list(pd.date_range("2024-03-28", periods=rows, freq=freq, tz="Europe/Berlin").strftime(form))


def test_mixed_utc_offsets() -> None:
    found, grid, notes = read(berlin("h", 200))
    assert list(grid) == list(pd.date_range("2024-03-27 23:00", periods=200, freq="h", tz="UTC")) == list(found)
    assert notes == ("times have several UTC offsets; they are read as UTC",)
    _, grid, notes = read(berlin("D", 10))
    assert list(grid) == list(pd.date_range("2024-03-28", periods=10, freq="D"))
    assert "without the offset" in notes[0]
    zoned = pd.date_range("2024-03-28", periods=10, freq="D", tz="Europe/Berlin").delete(2)  # as of a .parquet
    assert list(read(zoned)[1]) == list(grid)
    mixed = [*berlin("h", 5), "2024-03-28T05:00:00"]
    with pytest.raises(ValueError, match=r"with and without a UTC offset, such as .*\+0100.* and .*05:00"):
        read(mixed)


@pytest.mark.parametrize("form", ["%d/%m/%Y", "%m/%d/%Y", "%d.%m.%Y %H:%M", "%m-%d-%Y", "%d %b %Y", "%Y-%m-%d"])
@pytest.mark.parametrize(("freq", "rows"), [("D", 40), ("MS", 40), ("h", 72)])
def test_days_and_months_in_either_order(form: str, freq: str, rows: int) -> None:
    times = pd.date_range("2023-02-01", periods=rows, freq=freq)
    if freq == "h":
        form = f"{form.split()[0]} %H:%M" if "%b" not in form else f"{form} %H:%M"
    found, grid, _ = read(times.strftime(form))
    assert list(found) == list(grid) == list(times)


@pytest.mark.parametrize("form", ["%d/%m/%Y", "%m/%d/%Y"])
def test_ambiguous_dates(form: str) -> None:
    days = pd.date_range("2024-03-01", periods=12, freq="D")
    with pytest.raises(
        ValueError,
        match=r"such as '0[13]/0[13]/2024', which may have the day or the month first; say which with `date_order`",
    ):
        read(days.strftime(form))
    order = "day" if form.startswith("%d") else "month"
    assert list(regular_times(column(days.strftime(form)), date_order=order).times) == list(days)
    with pytest.raises(ValueError, match="date_order"):
        regular_times(column(days.strftime(form)), date_order="week")


def test_dates_as_numbers_and_other_numbers() -> None:
    days = pd.date_range("2024-01-28", periods=9, freq="D")
    assert list(read([int(day.strftime("%Y%m%d")) for day in days])[1]) == list(days)
    months = pd.date_range("2021-11-01", periods=9, freq="MS")
    assert list(read([int(day.strftime("%Y%m")) for day in months if day.month != 1])[1]) == list(months)
    hours = pd.date_range("2023-12-31 20:00", periods=30, freq="h")
    assert list(read([int(hour.strftime("%Y%m%d%H")) for hour in hours])[1]) == list(hours)
    since_1970 = [1_700_000_000 + 3600 * i for i in range(9)]
    assert list(read(since_1970)[1]) == list(pd.date_range("2023-11-14 22:13:20", periods=9, freq="h"))
    numbered = [202398, 202399, 202400, 202401]  # 98 is no month
    assert list(read(numbered)[1]) == numbered
    years = [1990, 1991, 1993, 1994]
    assert list(read(years)[1]) == list(range(1990, 1995))
    seconds = np.arange(20) * 0.1
    found, grid, _ = read(np.delete(seconds, 4))
    np.testing.assert_allclose(grid, seconds)
    assert len(found) == 19


@pytest.mark.parametrize(("first", "days"), [(9, 7), (10, 5), (8, 5), (9, 5)])
def test_opening_hours_keep_every_row_at_its_time(first: int, days: int) -> None:
    """pandas infers business hours, which are 9 to 17 on weekdays, from steps of 1, 17 and 65 hours alone."""
    dates = [day for day in pd.date_range("2024-01-01", periods=35, freq="D") if day.dayofweek < days]
    times = [day + pd.Timedelta(hours=hour) for day in dates for hour in range(first, first + 8)]
    found, grid, _ = read(times)
    assert list(found) == times
    assert set(times) <= set(grid)


def test_an_offset_of_whole_hours() -> None:
    """As Postgres writes it, over a change of the clock."""
    times = pd.date_range("2024-03-30", periods=60, freq="h", tz="Europe/Berlin")
    texts = [time.strftime("%Y-%m-%d %H:%M:%S%z")[:-2] for time in times]
    assert {text[-3:] for text in texts} == {"+01", "+02"}
    assert list(read(texts)[1]) == list(times.tz_convert("UTC"))


@pytest.mark.parametrize("odd", ["31.12.2024", "soon", None])
def test_a_row_of_another_format_is_named(odd: str | None) -> None:
    times = list(pd.date_range("2024-03-01", periods=30, freq="D").strftime("%m/%d/%Y"))
    times[4] = odd
    with pytest.raises(ValueError, match=r"column 't' has .* in row 5, which is not a time"):
        read(times)


def test_dates_with_and_without_a_time_of_day() -> None:
    times = pd.date_range("2024-03-01", periods=30, freq="h")
    text = [str(time).removesuffix(" 00:00:00") for time in times]
    assert list(read(text)[1]) == list(times)


@pytest.mark.parametrize("form", ["{y}/{q}", "{q}/{y}", "{y}.{q}", "{y}0{q}"])
def test_quarters_that_look_like_months_are_refused(form: str) -> None:
    with pytest.raises(ValueError, match=r"only the numbers 1 to 4 beside years.*write quarters as 2015-Q1"):
        regular_times(column([form.format(y=2015 + i // 4, q=i % 4 + 1) for i in range(15)]))


@pytest.mark.parametrize("form", ["{y}.{m:02d}", "M{m} {y}", "{y}/{m}"])
def test_months_as_numbers(form: str) -> None:
    texts = [form.format(y=2015 + i // 12, m=i % 12 + 1) for i in range(30)]
    assert list(read(texts)[1]) == list(pd.date_range("2015-01-01", periods=30, freq="MS"))


def test_integers_that_might_be_dates_but_count_stay_numbers() -> None:
    assert list(regular_times(column(range(150101, 150129))).grid.times) == [*range(150101, 150129)]


def test_years_of_another_calendar_are_named() -> None:
    # before pandas 3 no time is later than the year 2262
    said = "; dates are of the Gregorian calendar" if int(pd.__version__.split(".")[0]) > 2 else ", which is not a time"
    with pytest.raises(ValueError, match=f"'01/01/2558' in row 1{said}"):
        regular_times(column(f"{at:%d/%m}/{at.year + 543}" for at in pd.date_range("2015-01-01", periods=40)))


def test_words_in_dates_are_not_guessed() -> None:
    for word in ("GMT+1", "EST", "week"):
        with pytest.raises(ValueError, match=r"column .* has "):
            regular_times(column(f"{at:%Y-%m-%d %H:%M} {word}" for at in pd.date_range("2015-01-01", periods=40)))


DAYS, MONTHS = pd.date_range("2015-11-02", periods=80), pd.date_range("2014-12-01", periods=30, freq="MS")
WEEKS, QUARTERS = (pd.date_range("2014-12-29", periods=60, freq=freq) for freq in ("W-MON", "QS-JAN"))
GERMAN = [
    "Januar",
    "Februar",
    "März",
    "April",
    "Mai",
    "Juni",
    "Juli",
    "August",
    "September",
    "Oktober",
    "November",
    "Dezember",
]
FRENCH = ["janv.", "févr.", "mars", "avril", "mai", "juin", "juil.", "août", "sept.", "oct.", "nov.", "déc."]
POLISH = [
    "stycznia",
    "lutego",
    "marca",
    "kwietnia",
    "maja",
    "czerwca",
    "lipca",
    "sierpnia",
    "września",
    "października",
    "listopada",
    "grudnia",
]


def quarters(form: str) -> list[str]:
    return [form.format(y=at.year, q=at.quarter) for at in QUARTERS]


@pytest.mark.parametrize(
    ("expected", "texts"),
    [
        (MONTHS, MONTHS.strftime("%b-%y")),
        (MONTHS, MONTHS.strftime("%y-%b")),
        (MONTHS, MONTHS.strftime("%b %Y")),
        (MONTHS, MONTHS.strftime("%b. %Y").str.replace("Sep.", "Sept.")),
        (MONTHS, MONTHS.strftime("%YM%m")),
        (MONTHS, [f"M{at.month} {at.year}" for at in MONTHS]),
        (MONTHS, MONTHS.strftime("%m.%Y")),
        (MONTHS, MONTHS.strftime("%Y.%m")),
        (MONTHS, MONTHS.strftime("%y%m%d")),
        (MONTHS, [f"{GERMAN[at.month - 1]} {at.year}" for at in MONTHS]),
        (MONTHS, [f"{FRENCH[at.month - 1]} {at.year}" for at in MONTHS]),
        (DAYS, [f"{at.day}. {GERMAN[at.month - 1]} {at.year}" for at in DAYS]),
        (DAYS, [f"{at.day} {POLISH[at.month - 1]} {at.year}" for at in DAYS]),
        (DAYS, DAYS.strftime("%a, %d %B %Y")),
        (DAYS, DAYS.strftime("%d.%m.%y")),
        (DAYS, DAYS.strftime("%y-%m-%d")),
        (DAYS, DAYS.strftime("%d.%m.%Y 00:00")),
        (DAYS, DAYS.strftime("%y%m%d")),
        (DAYS, DAYS.strftime("%Y%j")),
        (WEEKS, WEEKS.strftime("%G-W%V")),
        (WEEKS, WEEKS.strftime("Week %V, %G")),
        (WEEKS, WEEKS.strftime("KW %V/%G")),
        (WEEKS, WEEKS.strftime("%G%V")),
        (QUARTERS, quarters("{y}-Q{q}")),
        (QUARTERS, quarters("{y} q{q}")),
        (QUARTERS, quarters("Q{q} {y}")),
        (QUARTERS, quarters("{q}T{y}")),
        (QUARTERS, quarters("{y}-T{q}")),
        (pd.date_range("2015-01-01", periods=10, freq="6MS"), [f"{2015 + i // 2}-S{i % 2 + 1}" for i in range(10)]),
        (pd.date_range("2015-03-13", periods=9, freq="h"), [f"03/13/2015 {h or 12:02d}:00 AM" for h in range(9)]),
    ],
)
def test_times_as_people_write_them(expected: pd.DatetimeIndex, texts: Any) -> None:
    found, grid, _ = read(list(texts))
    assert list(found) == list(expected) == list(grid)


@pytest.mark.parametrize("digits", [2, 4, 6, 14])
@pytest.mark.parametrize("rows", [4, 12])
def test_years_with_a_fraction_are_exact(digits: int, rows: int) -> None:
    """As R writes months and quarters."""
    made = regular_times(column([f"{1973 + i / rows:.{digits}f}" for i in range(36)]))
    following = made.grid.following(2)
    assert list(following) == [1973 + i / rows for i in (36, 37)]
    assert plain_times(following) == [1973 + 36 / rows, round(1973 + 37 / rows, 6)]


@pytest.mark.parametrize(
    ("texts", "message"),
    [
        ([0.0, 1.0, np.inf, 3.0], "'inf' in row 3"),
        (["08:00", "08:15", "08:30"], "times of day without a date"),
        (["08:00 AM", "08:15 AM", "08:30 AM"], "times of day without a date"),
        ([f"{i}-Jan" for i in range(1, 28)], "in row 1, which is not a time|are not clear"),
        ([f"Jan-{i:02d}" for i in range(1, 28)], "in row 1, which is not a time|are not clear"),
        (["01.02.", "02.02.", "03.02."], "are not clear"),
        (["01012015", "02012015", "03012015"], "are not clear"),
        (["2015-01-05/2015-01-11", "2015-01-12/2015-01-18"], "row 1, a span of time; keep its"),
        (["2015-01-05 to 2015-01-11", "2015-01-12 to 2015-01-18"], "row 1, a span of time; keep its start"),
        (["2015-01-05 23:00", "2015-01-05 24:00", "2015-01-06 01:00"], "24:00' in row 2, .*write the midnight of"),
        (["2016-12-31 23:59:59", "2016-12-31 23:59:60", "2017-01-01 00:00:00"], ":60' in row 2, a leap second"),
        ([45292, 45293, 45296, 45297], "45292, which may be days of a spreadsheet"),
        ([45292.0, 45292.041667, 45292.083333, 45292.125], "days of a spreadsheet; write them as dates"),
    ],
)
def test_what_is_no_time_is_refused(texts: Any, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        read(texts)


def test_numbers_with_one_step_stay_numbers() -> None:
    assert plain_times(regular_times(column(range(45000, 45060))).grid.following(2)) == [45060, 45061]
