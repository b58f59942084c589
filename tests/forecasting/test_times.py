"""Reading of times, their grids, and numbers."""

from __future__ import annotations

from typing import Any

import numpy as np
import pandas as pd
import pytest

from lagwise.forecasting.tables import outlier_notes, to_numbers
from lagwise.forecasting.times import plain_times, regular_grid, regular_times


def column(times: Any) -> pd.Series:
    return pd.Series(times, name="t")


def read(times: Any) -> tuple[pd.Index, pd.Index, tuple[str, ...]]:
    """The times, those of their grid, and notes."""
    regular = regular_times(column(times))
    return regular.times, regular.grid.times, regular.notes


@pytest.mark.parametrize("zone", ["Z", "+02:00", "+0530", "+01"])
def test_one_utc_offset_is_kept_for_hours_and_dropped_for_days(zone: str) -> None:
    hours = pd.date_range("2024-03-01", periods=50, freq="h")
    actual, grid, notes = read(hours.strftime("%Y-%m-%dT%H:%M:%S") + zone)
    assert actual.tz is not None
    assert (len(grid), grid[0].hour, notes) == (50, 0, ())
    days = pd.date_range("2024-03-01", periods=50, freq="D")
    assert list(read(days.strftime("%Y-%m-%d %H:%M") + zone)[1]) == list(days)


def berlin(freq: str, rows: int) -> list[str]:
    """Times around the day on which clocks go forward."""
    times = pd.date_range("2024-03-28", periods=rows, freq=freq, tz="Europe/Berlin")
    return list(times.strftime("%Y-%m-%dT%H:%M:%S%z"))


def test_mixed_utc_offsets() -> None:
    actual, grid, notes = read(berlin("h", 200))
    assert list(grid) == list(pd.date_range("2024-03-27 23:00", periods=200, freq="h", tz="UTC")) == list(actual)
    assert notes == ("times have several UTC offsets; they are read as UTC",)
    days = pd.date_range("2024-03-28", periods=10, freq="D")
    assert list(read(berlin("D", 10))[1]) == list(days)
    zoned = pd.date_range("2024-03-28", periods=10, freq="D", tz="Europe/Berlin").delete(2)  # as of a .parquet
    assert list(read(zoned)[1]) == list(days)
    with pytest.raises(ValueError, match=r"with and without a UTC offset, such as .*\+0100.* and .*05:00"):
        read([*berlin("h", 5), "2024-03-28T05:00:00"])


@pytest.mark.parametrize("form", ["%d/%m/%Y", "%m/%d/%Y", "%d.%m.%Y %H:%M", "%m-%d-%Y", "%d %b %Y", "%Y-%m-%d"])
@pytest.mark.parametrize(("freq", "rows"), [("D", 40), ("MS", 40), ("h", 72)])
def test_days_and_months_in_either_order(form: str, freq: str, rows: int) -> None:
    times = pd.date_range("2023-02-01", periods=rows, freq=freq)
    form = f"{form.removesuffix(' %H:%M')} %H:%M" if freq == "h" else form
    actual, grid, _ = read(times.strftime(form))
    assert list(actual) == list(grid) == list(times)


@pytest.mark.parametrize("form", ["%d/%m/%Y", "%m/%d/%Y"])
def test_ambiguous_dates(form: str) -> None:
    days = pd.date_range("2024-03-01", periods=12, freq="D")
    with pytest.raises(ValueError, match=r"may have the day or the month first; say which with `date_order`"):
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
    for unit in (1, 1000):
        since_1970 = [unit * (1_700_000_000 + 3600 * i) for i in range(9)]
        assert list(read(since_1970)[1]) == list(pd.date_range("2023-11-14 22:13:20", periods=9, freq="h"))
    for numbers in ([202398, 202399, 202400, 202401], [*range(150101, 150129)], [f"{i:03d}" for i in range(60)]):
        assert list(read(numbers)[1]) == list(map(int, numbers))  # 98 is no month
    assert list(read([1990, 1991, 1993, 1994])[1]) == list(range(1990, 1995))
    seconds = np.arange(20) * 0.1
    np.testing.assert_allclose(read(np.delete(seconds, 4))[1], seconds)


@pytest.mark.parametrize("odd", ["31.12.2024", "soon", None])
def test_a_row_of_another_format_is_named(odd: str | None) -> None:
    times = list(pd.date_range("2024-03-01", periods=30, freq="D").strftime("%m/%d/%Y"))
    times[4] = odd
    with pytest.raises(ValueError, match=r"column 't' has .* in row 5, which is not read as a time.* with pandas"):
        read(times)


def test_dates_with_and_without_a_time_of_day() -> None:
    times = pd.date_range("2024-03-01", periods=30, freq="h")
    for texts in (times.strftime("%Y-%m-%d %H:%M:%S"), times.strftime("%d.%m.%Y %H:%M:%S")):
        assert list(read(texts.str.removesuffix(" 00:00:00"))[1]) == list(times)


def names(text: str) -> list[str]:
    return text.split()


DAYS, MONTHS = pd.date_range("2015-11-02", periods=80), pd.date_range("2014-12-01", periods=30, freq="MS")
WEEKS, QUARTERS = (pd.date_range("2014-12-29", periods=60, freq=freq) for freq in ("W-MON", "QS-JAN"))
GERMAN = names("Januar Februar März April Mai Juni Juli August September Oktober November Dezember")
FRENCH = names("janv. févr. mars avril mai juin juil. août sept. oct. nov. déc.")
POLISH = names("stycznia lutego marca kwietnia maja czerwca lipca sierpnia września października listopada grudnia")


@pytest.mark.parametrize(
    ("expected", "texts"),
    [
        (MONTHS, MONTHS.strftime("%b-%y")),
        (MONTHS, MONTHS.strftime("%y-%b")),
        (MONTHS, MONTHS.strftime("%b %Y")),
        (MONTHS, MONTHS.strftime("%b. %Y").str.replace("Sep.", "Sept.")),
        (MONTHS, MONTHS.strftime("%YM%m")),
        (MONTHS, [f"{GERMAN[at.month - 1]} {at.year}" for at in MONTHS]),
        (MONTHS, [f"{FRENCH[at.month - 1]} {at.year}" for at in MONTHS]),
        (DAYS, [f"{at.day}. {GERMAN[at.month - 1]} {at.year}" for at in DAYS]),
        (DAYS, [f"{at.day} {POLISH[at.month - 1]} {at.year}" for at in DAYS]),
        (DAYS, DAYS.strftime("%a, %d %B %Y")),
        (DAYS, DAYS.strftime("%d.%m.%y")),
        (DAYS, DAYS.strftime("%y-%m-%d")),
        (DAYS, DAYS.strftime("%d.%m.%Y 00:00")),
        (DAYS, DAYS.strftime("%Y/%m/%d 00:00:00.0000")),
        (WEEKS, WEEKS.strftime("%G-W%V")),
        (QUARTERS, [f"{at.year}-Q{at.quarter}" for at in QUARTERS]),
        (QUARTERS, [f"{at.year} q{at.quarter}" for at in QUARTERS]),
        (QUARTERS, [f"Q{at.quarter} {at.year}" for at in QUARTERS]),
        (pd.date_range("2015-03-13", periods=9, freq="h"), [f"03/13/2015 {h or 12:02d}:00 AM" for h in range(9)]),
        (pd.date_range("2015-03-13", periods=9, freq="h"), [f"3/13/15 {h or 12}:00 a.m." for h in range(9)]),
    ],
)
def test_times_as_people_write_them(expected: pd.DatetimeIndex, texts: Any) -> None:
    actual, grid, _ = read(list(texts))
    assert list(actual) == list(expected) == list(grid)


@pytest.mark.parametrize("digits", [2, 4, 6, 14])
@pytest.mark.parametrize("rows", [4, 12])
def test_years_with_a_fraction_as_r_writes_them(digits: int, rows: int) -> None:
    regular = regular_times(column([f"{1973 + i / rows:.{digits}f}" for i in range(36)]))
    following = regular.grid.following(2)
    np.testing.assert_allclose(following, [1973 + i / rows for i in (36, 37)], rtol=1e-12)
    assert plain_times(following) == [1973 + 36 / rows, round(1973 + 37 / rows, 6)]


WEEKDAYS = [at for at in pd.date_range("2024-01-01", periods=900, freq="h") if at.dayofweek < 5 and 9 <= at.hour < 17]


@pytest.mark.parametrize(
    ("texts", "message"),
    [
        ([0.0, 1.0, np.inf, 3.0], "'inf' in row 3"),
        (["08:00", "08:15", "08:30"], "'08:00' in row 1, which is not read"),
        ([f"{i}-Jan" for i in range(1, 28)], "in row 1, which is not read"),
        ([f"Jan-{i:02d}" for i in range(1, 28)], "in row 1, which is not read"),
        ([f"{i}-Jan" for i in range(1, 28)] + [f"{i}-Feb" for i in range(1, 28)], "in row 1, which is not read"),
        (["01.02.", "02.02.", "03.02."], "in row 1, which is not read"),
        (["01012015", "02012015", "03012015"], "in row 1, which is not read"),
        (["2015-01-05/2015-01-11", "2015-01-12/2015-01-18"], "in row 1, which is not read"),
        (["2015-01-05 23:00", "2015-01-05 24:00", "2015-01-06 01:00"], "24:00' in row 2"),
        (["2016-12-31 23:59:59", "2016-12-31 23:59:60", "2017-01-01 00:00:00"], ":60' in row 2"),
        ([f"{at:%Y-%m-%d %H:%M} EST" for at in DAYS], "in row 1, which is not read"),
        ([f"{at:%d/%m}/{at.year + 543}" for at in DAYS], "2558' in row 1, which is not read"),
        ([f"2015/{i}" for i in range(1, 5)], "'2015/1' in row 1, which is not read"),
        ([f"{2015 + i // 4}.{i % 4 + 1}" for i in range(15)], "irregular: 2016.1 follows 2015.4"),
        ([f"{2015 + i // 4}0{i % 4 + 1}" for i in range(15)], "irregular"),
        ([f"{2015 + i // 12}.{i % 12 + 1:02d}" for i in range(40)], "irregular: 2016.01 follows 2015.12"),
        (list(WEEKS.strftime("%G%V")), "irregular: 201501 follows|irregular: 201601 follows 201553"),
        (WEEKDAYS, "irregular: 2024-01-08 09:00:00 follows 2024-01-05 16:00:00 .*resample the data to regular times"),
    ],
)
def test_what_is_not_plain_is_refused(texts: Any, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        read(texts)


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


@pytest.mark.parametrize("freq", names("B ME MS BME BMS QE QS QE-JAN BQE 2MS YE YS-APR YE-FEB D W-WED h 15min"))
@pytest.mark.parametrize("text", [False, True])
def test_one_missing_time_does_not_change_the_calendar(freq: str, text: bool) -> None:
    full = pd.date_range("2019-01-01", periods=40, freq=freq)
    given = full[:30].delete(7)
    regular = regular_times(pd.Series(given.strftime("%Y-%m-%d %H:%M:%S") if text else given, name="t"))
    assert list(regular.times) == list(given)
    assert list(regular.grid.times) == list(full[:30])
    assert list(regular.grid.following(10)) == list(full[30:])
    assert regular.notes == ()


def test_rows_that_are_missing_here_and_there_change_no_step() -> None:
    full = pd.date_range("2024-01-01", periods=60)
    kept = full[full.dayofweek.isin([6, 0, 1, 2, 3])]
    assert list(regular_grid(kept).times) == list(full[: len(regular_grid(kept).times)])
    outage = pd.date_range("2024-01-01", periods=21 * 24, freq="h").delete(slice(100, 190))
    assert list(regular_grid(outage).following(2)) == list(outage[-1] + pd.to_timedelta([1, 2], unit="h"))


def cells(*texts: str) -> pd.Series:
    return pd.Series(texts, name="y", dtype=str)


def test_numbers_percentages_and_truths() -> None:
    assert to_numbers(cells("1.5", "", "1,200"), ".").tolist()[::2] == [1.5, 1200]
    assert to_numbers(cells("True", "false", "TRUE"), ".").tolist() == [1, 0, 1]
    assert to_numbers(cells("5%", "7,5%"), ",").tolist() == [5, 7.5]


@pytest.mark.parametrize("texts", [("1.5", "1,2,3"), ("1", "true"), ("1", "5%"), ("1", "inf"), ("1", "n/k")])
def test_other_text_is_named_by_column_and_row(texts: tuple[str, ...]) -> None:
    with pytest.raises(ValueError, match=rf"column 'y' has '{texts[1]}' in row 2, which is not a number"):
        to_numbers(cells(*texts), ".")


WAVE = 20 + 3 * np.sin(np.arange(300) * 2 * np.pi / 7)


@pytest.mark.parametrize("code", [-999, 999999, 1e20])
def test_codes_for_missing_values_are_noted_and_named_by_an_option(code: float) -> None:
    values = WAVE.copy()
    values[[40, 41, 120]] = code
    (note,) = outlier_notes("y", values)
    assert f"has {code:g} in row 41 and 2 more" in note
    assert "name it with `missing`" in note
    numbers = to_numbers(pd.Series(values, name="y"), ".", [code])
    assert np.flatnonzero(np.isnan(numbers)).tolist() == [40, 41, 120]
    with pytest.raises(ValueError, match="no value at all"):
        to_numbers(pd.Series([1, 1], name="y"), ".", [1])


@pytest.mark.parametrize(
    "values",
    [
        np.where(np.arange(200) % 100 == 50, 99, 5 + np.arange(200) % 36),  # promotions
        np.arange(0, 3000, 3) - 999,
        WAVE,
        np.full(30, 99),
        [9, 99, 5],
    ],
)
def test_values_that_are_no_codes_have_no_note(values: np.ndarray) -> None:
    assert outlier_notes("y", np.asarray(values, dtype=float)) == []
