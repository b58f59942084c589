"""Parsing of times and detection of their grid."""

from __future__ import annotations

from typing import Any

import numpy as np
import pandas as pd
import pytest

from lagwise.forecasting.times import regular_times


def column(times: Any) -> pd.Series:
    return pd.Series(times, name="t")


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
    found, grid, notes = regular_times(column(given.strftime("%Y-%m-%d %H:%M:%S") if text else given))
    assert list(found) == list(given)
    assert list(grid) == list(full[:30])
    step: Any = grid.freq
    assert step is not None
    assert pd.date_range(grid[-1], periods=2, freq=step)[1] == full[30]
    assert notes == ()


def test_any_day_of_the_month() -> None:
    months = pd.DatetimeIndex([pd.Timestamp(2020 + m // 12, m % 12 + 1, 15) for m in range(24)])
    assert list(regular_times(column(months.delete(3)))[1]) == list(months)
    quarters = months[::3]
    assert list(regular_times(column(quarters.delete(3)))[1]) == list(quarters)


@pytest.mark.parametrize("zone", ["Z", "+02:00", "+0530"])
def test_one_utc_offset_is_kept_for_hours_and_dropped_for_days(zone: str) -> None:
    hours = pd.date_range("2024-03-01", periods=50, freq="h")
    found, grid, notes = regular_times(column(hours.strftime("%Y-%m-%dT%H:%M:%S") + zone))
    assert found.tz is not None
    assert (len(grid), grid[0].hour, notes) == (50, 0, ())
    days = pd.date_range("2024-03-01", periods=50, freq="D")
    found, grid, _ = regular_times(column(days.strftime("%Y-%m-%d %H:%M") + zone))
    assert list(grid) == list(days)


def berlin(freq: str, rows: int, form: str = "%Y-%m-%dT%H:%M:%S%z") -> list[str]:
    """Times around the day on which clocks go forward."""
    return list(pd.date_range("2024-03-28", periods=rows, freq=freq, tz="Europe/Berlin").strftime(form))


def test_mixed_utc_offsets() -> None:
    found, grid, notes = regular_times(column(berlin("h", 200)))
    assert list(grid) == list(pd.date_range("2024-03-27 23:00", periods=200, freq="h", tz="UTC")) == list(found)
    assert notes == ("times have several UTC offsets; they are read as UTC",)
    _, grid, notes = regular_times(column(berlin("D", 10)))
    assert list(grid) == list(pd.date_range("2024-03-28", periods=10, freq="D"))
    assert "without the offset" in notes[0]
    zoned = pd.date_range("2024-03-28", periods=10, freq="D", tz="Europe/Berlin").delete(2)  # as of a .parquet
    assert list(regular_times(column(zoned))[1]) == list(grid)
    mixed = [*berlin("h", 5), "2024-03-28T05:00:00"]
    with pytest.raises(ValueError, match=r"with and without a UTC offset, such as .*\+0100.* and .*05:00"):
        regular_times(column(mixed))


@pytest.mark.parametrize("form", ["%d/%m/%Y", "%m/%d/%Y", "%d.%m.%Y %H:%M", "%m-%d-%Y", "%d %b %Y", "%Y-%m-%d"])
@pytest.mark.parametrize(("freq", "rows"), [("D", 40), ("MS", 40), ("h", 72)])
def test_days_and_months_in_either_order(form: str, freq: str, rows: int) -> None:
    times = pd.date_range("2023-02-01", periods=rows, freq=freq)
    if freq == "h":
        form = f"{form.split()[0]} %H:%M" if "%b" not in form else f"{form} %H:%M"
    found, grid, _ = regular_times(column(times.strftime(form)))
    assert list(found) == list(grid) == list(times)


@pytest.mark.parametrize("form", ["%d/%m/%Y", "%m/%d/%Y"])
def test_ambiguous_dates(form: str) -> None:
    days = pd.date_range("2024-03-01", periods=12, freq="D")
    with pytest.raises(ValueError, match=r"such as '03/01/2024'|such as '01/03/2024'.*month first or day first"):
        regular_times(column(days.strftime(form)))


def test_dates_as_numbers_and_other_numbers() -> None:
    days = pd.date_range("2024-01-28", periods=9, freq="D")
    assert list(regular_times(column([int(day.strftime("%Y%m%d")) for day in days]))[1]) == list(days)
    months = pd.date_range("2021-11-01", periods=9, freq="MS")
    assert list(regular_times(column([int(day.strftime("%Y%m")) for day in months if day.month != 1]))[1]) == list(
        months
    )
    hours = pd.date_range("2023-12-31 20:00", periods=30, freq="h")
    assert list(regular_times(column([int(hour.strftime("%Y%m%d%H")) for hour in hours]))[1]) == list(hours)
    since_1970 = [1_700_000_000 + 3600 * i for i in range(9)]
    assert list(regular_times(column(since_1970))[1]) == since_1970
    numbered = [202398, 202399, 202400, 202401]  # 98 is no month
    assert list(regular_times(column(numbered))[1]) == numbered
    years = [1990, 1991, 1993, 1994]
    assert list(regular_times(column(years))[1]) == list(range(1990, 1995))
    seconds = np.arange(20) * 0.1
    found, grid, _ = regular_times(column(np.delete(seconds, 4)))
    np.testing.assert_allclose(grid, seconds)
    assert len(found) == 19


@pytest.mark.parametrize(("first", "days"), [(9, 7), (10, 5), (8, 5), (9, 5)])
def test_opening_hours_keep_every_row_at_its_time(first: int, days: int) -> None:
    """pandas infers business hours, which are 9 to 17 on weekdays, from steps of 1, 17 and 65 hours alone."""
    dates = [day for day in pd.date_range("2024-01-01", periods=35, freq="D") if day.dayofweek < days]
    times = [day + pd.Timedelta(hours=hour) for day in dates for hour in range(first, first + 8)]
    found, grid, _ = regular_times(column(times))
    assert list(found) == times
    assert set(times) <= set(grid)


def test_an_offset_of_whole_hours() -> None:
    """As Postgres writes it, over a change of the clock."""
    times = pd.date_range("2024-03-30", periods=60, freq="h", tz="Europe/Berlin")
    texts = [time.strftime("%Y-%m-%d %H:%M:%S%z")[:-2] for time in times]
    assert {text[-3:] for text in texts} == {"+01", "+02"}
    assert list(regular_times(column(texts))[1]) == list(times.tz_convert("UTC"))


def test_quarters_in_words() -> None:
    for form in ("{}Q{}", "{} Q{}", "{}-q{}"):
        quarters = [form.format(2018 + i // 4, i % 4 + 1) for i in range(12) if i != 3]
        grid = regular_times(column(quarters))[1]
        assert list(grid) == list(pd.date_range("2018-01-01", periods=12, freq="QS"))


@pytest.mark.parametrize("odd", ["31.12.2024", "soon", None])
def test_a_row_of_another_format_is_named(odd: str | None) -> None:
    times = list(pd.date_range("2024-03-01", periods=30, freq="D").strftime("%m/%d/%Y"))
    times[4] = odd
    with pytest.raises(ValueError, match=r"column 't' has .* in row 5, which is not a time"):
        regular_times(column(times))


def test_dates_with_and_without_a_time_of_day() -> None:
    times = pd.date_range("2024-03-01", periods=30, freq="h")
    text = [str(time).removesuffix(" 00:00:00") for time in times]
    assert list(regular_times(column(text))[1]) == list(times)


def test_infinite_times_are_named() -> None:
    with pytest.raises(ValueError, match="inf"):
        regular_times(column([0.0, 1.0, np.inf, 3.0]))
