"""Regular grids of times."""

from __future__ import annotations

import pandas as pd
import pytest

from lagwise.forecasting.grids import regular_grid
from lagwise.forecasting.times import regular_times


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


@pytest.mark.parametrize(
    "freq",
    [
        "B",
        "ME",
        "MS",
        "BME",
        "BMS",
        "QE",
        "QS",
        "QE-JAN",
        "BQE",
        "2MS",
        "YE",
        "YS-APR",
        "YE-FEB",
        "D",
        "W-WED",
        "h",
        "15min",
    ],
)
@pytest.mark.parametrize("text", [False, True])
def test_one_missing_time_does_not_change_the_calendar(freq: str, text: bool) -> None:
    full = pd.date_range("2019-01-01", periods=40, freq=freq)
    given = full[:30].delete(7)
    made = regular_times(pd.Series(given.strftime("%Y-%m-%d %H:%M:%S") if text else given, name="t"))
    assert list(made.times) == list(given)
    assert list(made.grid.times) == list(full[:30])
    assert list(made.grid.following(10)) == list(full[30:])
    assert made.notes == ()


def test_rows_that_are_missing_here_and_there_change_no_step() -> None:
    full = pd.date_range("2024-01-01", periods=60)
    kept = full[full.dayofweek.isin([6, 0, 1, 2, 3])]
    assert list(regular_grid(kept).times) == list(full[: len(regular_grid(kept).times)])
    outage = pd.date_range("2024-01-01", periods=21 * 24, freq="h").delete(slice(100, 190))
    assert list(regular_grid(outage).following(2)) == list(outage[-1] + pd.to_timedelta([1, 2], unit="h"))
