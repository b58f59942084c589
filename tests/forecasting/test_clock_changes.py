from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from lagwise.forecasting import LagForecaster, read_series, write_forecast
from lagwise.forecasting.clock_changes import clock_zone


def _local(zone: str, begin: str, hours: int, freq: str = "h") -> pd.DatetimeIndex:
    return pd.date_range(begin, periods=hours, freq=freq, tz=zone).tz_localize(None)


@pytest.mark.parametrize(
    ("zone", "begin"),
    [
        ("Europe/Berlin", "2024-10-20"),
        ("Europe/London", "2024-03-25"),
        ("America/New_York", "2024-03-05"),
        ("Australia/Sydney", "2024-10-01"),
    ],
)
@pytest.mark.parametrize("freq", ["h", "15min"])
def test_the_zone_is_found_by_an_hour_that_occurs_twice_or_is_missing(zone: str, begin: str, freq: str) -> None:
    times = _local(zone, begin, 1500, freq)
    grid = pd.date_range(times[0], times[-1], freq=freq)
    assert clock_zone(times, grid) == zone


def test_no_zone_is_found_without_a_change_or_with_other_gaps() -> None:
    grid = pd.date_range("2024-03-25", periods=400, freq="h")
    assert clock_zone(grid, grid) is None
    assert clock_zone(grid.delete(list(range(140, 160))), grid) is None  # around the change in spring, but a day long
    assert clock_zone(grid.delete(50), grid) is None
    quarters = pd.date_range("2024-03-25", periods=1600, freq="15min")
    assert clock_zone(quarters.delete(list(range(560, 640))), quarters) is None
    assert clock_zone(grid.tz_localize("UTC"), grid) is None


@pytest.mark.parametrize("long", [False, True])
def test_the_hour_that_does_not_exist_is_no_gap_and_not_forecast(tmp_path: Path, long: bool) -> None:
    times = _local("Europe/Berlin", "2023-03-20", 24 * 370)
    rows = pd.DataFrame({"time": times.strftime("%Y-%m-%d %H:%M"), "load": np.sin(np.arange(len(times)))})
    if long:
        rows = pd.concat([rows.assign(place=place) for place in ("a", "b")])
    rows.to_csv(tmp_path / "load.csv", index=False)
    table = read_series(tmp_path / "load.csv", ids=["place"] if long else None)
    assert any("does not exist on 2023-03-26" in note for note in table.notes)
    assert not any("missing" in note for note in table.notes)
    hours = 24 * 10
    forecaster = LagForecaster(hours, 48, penalty=0.1, shared=True).fit(table.values)
    made, _ = write_forecast(table, forecaster, tmp_path / "out.csv")
    written = pd.read_csv(tmp_path / "out.csv")
    night = written.time[written.time.str.startswith("2024-03-31")].str[-5:].tolist()
    assert night[:3] == ["00:00", "01:00", "03:00"]
    assert len(written) == (hours - 1) * (2 if long else 1) == len(made)


def test_columns_of_the_future_need_no_value_where_the_clock_goes_forward(tmp_path: Path) -> None:
    times = _local("Europe/Berlin", "2023-10-20", 24 * 170)
    known = int(np.argmax(times >= pd.Timestamp("2024-03-30")))
    rows = pd.DataFrame({"time": times, "load": np.sin(np.arange(len(times))), "holiday": 0})
    rows.loc[known:, "load"] = np.nan
    rows.to_csv(tmp_path / "load.csv", index=False)
    table = read_series(tmp_path / "load.csv", beside={"future": ["holiday"]})
    columns = table.columns(72)
    assert columns is not None
    assert columns.future is not None
    assert not np.isnan(columns.future[-72:]).any()


def test_notes_on_hours_that_occur_twice_name_those_of_every_series(tmp_path: Path) -> None:
    parts = []
    for name, year in (("a", 2021), ("b", 2022)):
        times = _local("Europe/Berlin", f"{year}-10-25", 24 * 20)
        parts.append(pd.DataFrame({"id": name, "time": times.strftime("%Y-%m-%d %H:%M"), "y": np.arange(480.0)}))
    whole = pd.date_range("2021-10-25", "2022-11-13", freq="h")
    parts.append(pd.DataFrame({"id": "c", "time": whole.strftime("%Y-%m-%d %H:%M"), "y": 1.0 + np.arange(len(whole))}))
    pd.concat(parts).to_csv(tmp_path / "long.csv", index=False)
    (note,) = (note for note in read_series(tmp_path / "long.csv").notes if "twice" in note)
    assert "2021-10-31, 2022-10-30" in note
