"""Regular grids: calendars, and times of the week at which something happens."""

from __future__ import annotations

from typing import Any

import numpy as np
import pandas as pd
import pytest

from lagwise.forecasting.grids import regular_grid


def monthly(day: int, start: str, count: int) -> pd.DatetimeIndex:
    """A day of each month, the last one of shorter months."""
    months = pd.period_range(start, periods=count, freq="M")
    return pd.DatetimeIndex([f"{m}-{min(day, m.days_in_month)}" for m in months])


@pytest.mark.parametrize("day", [1, 15, 28, 29, 30, 31])
@pytest.mark.parametrize(("start", "count"), [("2022-03", 15), ("2020-01", 40), ("2023-01", 15)])
def test_a_day_of_the_month_stays(day: int, start: str, count: int) -> None:
    times = monthly(day, start, count + 14)
    grid = regular_grid(times[:count].delete(4))
    assert list(grid.times) == list(times[:count])
    assert list(grid.following(14)) == list(times[count:])


CALENDARS: list[Any] = [
    *("SMS-15", "SME-15", "QE-JAN", "BQE-FEB", "WOM-3FRI", "YE-FEB", "W-THU", "2W-THU", "4h", "2B"),
    pd.offsets.LastWeekOfMonth(weekday=4),
]


@pytest.mark.parametrize("freq", [freq for freq in CALENDARS if freq != "2B"], ids=str)
def test_calendars(freq: Any) -> None:
    times = pd.date_range("2020-01-01", periods=50, freq=freq)
    grid = regular_grid(times[:40].delete(5))
    assert list(grid.times) == list(times[:40])
    assert list(grid.following(10)) == list(times[40:])


def every(freq: str, days: int) -> pd.DatetimeIndex:
    return pd.date_range("2024-01-01", periods=days * (pd.Timedelta(days=1) // pd.Timedelta(freq)), freq=freq)


OPEN: dict[str, tuple[str, int, Any]] = {
    "Sunday to Thursday": ("1D", 80, lambda t: t.dayofweek.isin([6, 0, 1, 2, 3])),
    "Monday, Wednesday, Friday": ("1D", 80, lambda t: t.dayofweek.isin([0, 2, 4])),
    "nine to five on weekdays": ("1h", 40, lambda t: (t.hour >= 9) & (t.hour < 17) & (t.dayofweek < 5)),
    "shorter on Saturdays": ("1h", 40, lambda t: (t.hour >= 9) & (t.hour < np.where(t.dayofweek == 5, 13, 17))),
    "no nights, for five days": ("5min", 5, lambda t: (t.hour >= 7) & (t.hour < 22)),
    "one hour a day": ("1min", 6, lambda t: t.hour == 12),
    "three times per day": ("1h", 20, lambda t: t.hour.isin([8, 12, 18])),
}


@pytest.mark.parametrize("name", OPEN)
def test_times_at_which_nothing_ever_happens_are_left_out(name: str) -> None:
    freq, days, is_open = OPEN[name]
    times = every(freq, days + 7)
    times = times[is_open(times)]
    count = int((times < times[0].normalize() + pd.Timedelta(days=days)).sum())
    grid = regular_grid(times[:count].delete(count // 2))
    assert list(grid.times) == list(times[:count])
    assert list(grid.following(len(times) - count)) == list(times[count:])


def test_rows_that_are_missing_here_and_there_are_no_calendar() -> None:
    rng = np.random.default_rng(0)
    for freq, days in (("1D", 60), ("1h", 15)):
        full = every(freq, days)
        kept = full[np.sort(np.append(rng.permutation(len(full) - 2)[: len(full) // 2] + 1, [0, len(full) - 1]))]
        grid = regular_grid(kept)
        assert list(grid.times) == list(full)


def test_an_outage_is_no_closing_time() -> None:
    times = every("1h", 21)
    grid = regular_grid(times.delete(slice(100, 190)))
    assert list(grid.times) == list(times)
    assert list(grid.following(2)) == list(times[-1] + pd.to_timedelta([1, 2], unit="h"))
