"""Parsing of times and detection of their grid."""

from __future__ import annotations

from typing import Any

import numpy as np
import pandas as pd
import pytest

from lagwise.forecasting.times import regular_times


def column(times: Any) -> pd.Series:
    return pd.Series(times, name="t")


def read(times: Any) -> tuple[pd.Index, pd.Index, tuple[str, ...]]:
    """The times, those of their grid, and notes."""
    made = regular_times(column(times))
    return made.times, made.grid.times, made.notes


def following(times: Any, count: int = 3) -> list[Any]:
    """The next times, as the table would have them."""
    made = regular_times(column(list(times)))
    return made.write(made.grid.following(count))


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
    with pytest.raises(ValueError, match=r"such as '0[13]/0[13]/2024', which may have the month or the day first"):
        read(days.strftime(form))


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


def test_quarters_in_words() -> None:
    for form in ("{}Q{}", "{} Q{}", "{}-q{}"):
        quarters = [form.format(2018 + i // 4, i % 4 + 1) for i in range(12) if i != 3]
        grid = read(quarters)[1]
        assert list(grid) == list(pd.date_range("2018-01-01", periods=12, freq="QS"))


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


def test_infinite_times_are_named() -> None:
    with pytest.raises(ValueError, match="inf"):
        read([0.0, 1.0, np.inf, 3.0])


WEEKS = pd.date_range("2014-12-22", periods=120, freq="W-MON")
QUARTERS = [f"Q{1 + i % 4} {2015 + i // 4}" for i in range(20)]


@pytest.mark.parametrize(
    ("times", "expected"),
    [
        (pd.date_range("2015-01-01", periods=60, freq="MS").strftime("%b-%y"), ["Jan-20", "Feb-20", "Mar-20"]),
        (pd.date_range("2015-01-01", periods=60, freq="MS").strftime("%y-%b"), ["20-Jan", "20-Feb", "20-Mar"]),
        (pd.date_range("1950-01-01", periods=240, freq="MS").strftime("%b %y"), ["Jan 70", "Feb 70", "Mar 70"]),
        (pd.date_range("1995-01-01", periods=120, freq="MS").strftime("%m/%y"), ["01/05", "02/05", "03/05"]),
        (pd.date_range("2015-01-01", periods=60).strftime("%d.%m.%y"), ["02.03.15", "03.03.15", "04.03.15"]),
        (pd.date_range("2015-01-01", periods=60).strftime("%y-%m-%d"), ["15-03-02", "15-03-03", "15-03-04"]),
        (pd.date_range("2015-01-01", periods=60).strftime("%d%m%Y"), ["02032015", "03032015", "04032015"]),
        (pd.date_range("2015-01-01", periods=24, freq="MS").strftime("%YM%m"), ["2017M01", "2017M02", "2017M03"]),
        (pd.date_range("2015-01-01", periods=24, freq="MS").strftime("%m.%Y"), ["01.2017", "02.2017", "03.2017"]),
        (WEEKS.strftime("%G-W%V"), ["2017-W15", "2017-W16", "2017-W17"]),
        (QUARTERS, ["Q1 2020", "Q2 2020", "Q3 2020"]),
        ([f"{i % 4 + 1}Q{15 + i // 4}" for i in range(20)], ["1Q20", "2Q20", "3Q20"]),
        ([f"{2015 + i // 2}-S{i % 2 + 1}" for i in range(10)], ["2020-S1", "2020-S2", "2021-S1"]),
        ([f"{1958 + (i + 2) / 12:.2f}" for i in range(60)], [1963.17, 1963.25, 1963.33]),
        ([1_704_067_200_000 + 60_000 * i for i in range(9)], [1_704_067_740_000, 1_704_067_800_000, 1_704_067_860_000]),
        (pd.date_range("2024-03-01", periods=9, freq="h").strftime("%d/%m/%Y %I %p"), None),
        (
            pd.date_range("2024-03-13", periods=9, freq="h").strftime("%m/%d/%Y %I:%M %p"),
            ["03/13/2024 09:00 AM", "03/13/2024 10:00 AM", "03/13/2024 11:00 AM"],
        ),
    ],
)
def test_times_as_people_write_them_continue_in_the_same_form(times: Any, expected: Any) -> None:
    if expected is None:
        with pytest.raises(ValueError, match="column 't' has "):
            following(times)
    else:
        assert following(times) == expected


@pytest.mark.parametrize("form", ["%H:%M", "%I:%M %p", "%H:%M:%S"])
def test_times_of_day_get_no_date(form: str) -> None:
    times = pd.date_range("2024-01-01 08:00", periods=9, freq="15min").strftime(form)
    with pytest.raises(ValueError, match="times of day without a date"):
        read(times)


def test_days_without_a_year_are_not_years() -> None:
    for form in ("%d-%b", "%b-%d", "%d.%m."):
        with pytest.raises(ValueError, match="are not clear"):
            read(pd.date_range("2015-01-01", periods=20).strftime(form))


@pytest.mark.parametrize(("zone", "freq"), [("Europe/Berlin", "h"), ("America/New_York", "15min")])
def test_hours_that_occur_twice_when_the_clock_goes_back(zone: str, freq: str) -> None:
    local = pd.date_range("2023-10-20", "2024-11-20", freq=freq, tz=zone).tz_localize(None)
    found, grid, notes = read(local)
    assert len(found) == len(local)
    assert list(grid) == list(pd.date_range(local[0], local[-1], freq=freq))
    assert "clock goes back" in notes[0]
    assert notes[0].count("2023-1") == notes[0].count("2024-1") == 1


def test_other_times_that_occur_twice_are_named() -> None:
    hours = list(pd.date_range("2024-06-01", periods=60, freq="h"))
    with pytest.raises(ValueError, match=r"has 2024-06-02 01:00:00 more than once.*UTC offset if the clock"):
        read([*hours, hours[25]])
    with pytest.raises(ValueError, match=r"has 2024-10-27 02:00:00 more than once"):
        read([*pd.date_range("2024-10-27", periods=60, freq="h"), *[pd.Timestamp("2024-10-27 02:00")] * 2])


@pytest.mark.parametrize("form", ["{y}-T{q}", "{y}T{q}", "T{q} {y}", "{q}T{y}", "{y}K{q}", "{y}:Q{q}", "{y} Qtr {q}"])
def test_quarters_of_other_languages(form: str) -> None:
    """The T of trimestre is not that of a time of day."""
    texts = [form.format(y=2015 + i // 4, q=i % 4 + 1) for i in range(15)]
    assert list(read(texts)[1]) == list(
        pd.date_range("2015-01-01", periods=12, freq="QS").append(pd.date_range("2018-01-01", periods=3, freq="QS"))
    )
    assert following(texts, 2) == [form.format(y=2018, q=4), form.format(y=2019, q=1)]


@pytest.mark.parametrize("form", ["{y}/{q}", "{q}/{y}", "{y}.{q}", "{y}0{q}", "{y}:{q}"])
def test_quarters_that_look_like_months_are_refused(form: str) -> None:
    with pytest.raises(ValueError, match=r"only the numbers 1 to 4 beside years.*write quarters as 2015-Q1"):
        regular_times(column([form.format(y=2015 + i // 4, q=i % 4 + 1) for i in range(15)]))


@pytest.mark.parametrize("form", ["{y}.{m:02d}", "M{m} {y}", "{y}/{m}"])
def test_months_as_numbers(form: str) -> None:
    texts = [form.format(y=2015 + i // 12, m=i % 12 + 1) for i in range(30)]
    assert list(read(texts)[1]) == list(pd.date_range("2015-01-01", periods=30, freq="MS"))


@pytest.mark.parametrize(
    ("freq", "form", "text"),
    [("W-MON", "%G%V", False), ("D", "%y%m%d", True), ("D", "%Y%j", False), ("MS", "%y%m%d", True)],
)
def test_short_dates_as_integers(freq: str, form: str, text: bool) -> None:
    times = pd.date_range("2015-11-02", periods=80, freq=freq)
    given = times.strftime(form)
    made = regular_times(column(given.astype("int64")))
    assert list(made.grid.times) == list(times)
    assert list(made.write(made.grid.times)) == [each if text or freq != "D" else int(each) for each in given]


def test_integers_that_might_be_dates_but_count_stay_numbers() -> None:
    assert list(regular_times(column(range(150101, 150129))).grid.times) == [*range(150101, 150129)]


@pytest.mark.parametrize("mark", ["/", " - ", " to "])
def test_spans_are_read_as_their_starts(mark: str) -> None:
    starts = pd.date_range("2015-01-05", periods=30, freq="7D")
    texts = [f"{at:%Y-%m-%d}{mark}{at + pd.Timedelta(days=6):%Y-%m-%d}" for at in starts]
    _, grid, notes = read(texts)
    assert list(grid) == list(starts)
    assert "read as their starts" in notes[0]
    assert following(texts, 1) == ["2015-08-03"]


def test_years_of_another_calendar_are_named() -> None:
    # before pandas 3 no time is later than the year 2262
    said = "; dates are of the Gregorian calendar" if int(pd.__version__.split(".")[0]) > 2 else ", which is not a time"
    with pytest.raises(ValueError, match=f"'01/01/2558' in row 1{said}"):
        regular_times(column(f"{at:%d/%m}/{at.year + 543}" for at in pd.date_range("2015-01-01", periods=40)))


def test_words_in_dates_are_not_guessed() -> None:
    for word in ("GMT+1", "EST", "week"):
        with pytest.raises(ValueError, match=r"column .* has "):
            regular_times(column(f"{at:%Y-%m-%d %H:%M} {word}" for at in pd.date_range("2015-01-01", periods=40)))


def sheet(times: pd.DatetimeIndex, decimals: int = 0) -> list[float]:
    """Days of a spreadsheet, as it writes them."""
    days = (times - pd.Timestamp("1899-12-30")) / pd.Timedelta(days=1)
    return [round(float(day), decimals) if decimals else round(day) for day in days]


@pytest.mark.parametrize(
    ("times", "decimals"),
    [
        (pd.date_range("2024-01-01", periods=63, freq="B"), 0),
        (pd.date_range("2018-01-01", periods=63, freq="MS"), 0),
        (pd.date_range("2024-01-01", periods=63, freq="h"), 6),
        (pd.date_range("2024-01-01", periods=63, freq="15min"), 8),
    ],
)
def test_days_of_spreadsheets_are_read_where_they_are_regular(times: pd.DatetimeIndex, decimals: int) -> None:
    days = sheet(times, decimals)
    found = regular_times(pd.Series(days[:60], name="t"))
    assert list(found.grid.times) == list(times[:60])
    assert "days of a spreadsheet" in found.notes[0]
    assert found.write(found.grid.following(3)) == pytest.approx(days[60:], abs=10**-decimals / 2)
    texts = regular_times(pd.Series([str(day) for day in days[:60]], name="t"))
    assert list(texts.grid.times) == list(times[:60])


def test_numbers_with_one_step_stay_numbers() -> None:
    found = regular_times(pd.Series(range(45000, 45060), name="t"))
    assert found.write(found.grid.following(2)) == [45060, 45061]
    assert found.notes == ()


@pytest.mark.parametrize(
    "form", ["W{1:02d} {0}", "W{1}/{0}", "Week {1}, {0}", "{0} week {1:02d}", "KW {1:02d}/{0}", "{0}-W{1:02d}"]
)
def test_weeks_with_words(form: str) -> None:
    weeks = [form.format(*at.isocalendar()[:2]) for at in pd.date_range("2019-12-02", periods=63, freq="W-MON")]
    found = regular_times(pd.Series(weeks[:60], name="t"))
    assert found.grid.times[0] == pd.Timestamp("2019-12-02")
    assert found.write(found.grid.following(3)) == weeks[60:]


def test_september_in_four_letters() -> None:
    months = pd.date_range("2018-01-01", periods=24, freq="MS")
    texts = [text.replace("Sep", "Sept.") for text in months.strftime("%b %Y")]
    assert list(regular_times(pd.Series(texts, name="t")).grid.times) == list(months)
