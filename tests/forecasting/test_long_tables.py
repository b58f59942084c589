"""Tables with a row for each series and time, and what is written."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest

from lagwise.forecasting import LagForecaster, read_series, write_forecast

DAYS = pd.date_range("2024-01-01", periods=60, freq="D")


def sales(*rows: int, **columns: Any) -> pd.DataFrame:
    """Series of the last days, of different lengths, in any order."""
    parts = [
        pd.DataFrame({"store": name, "date": DAYS[60 - n :], "sales": 100 * i + np.arange(n) % 7 + 1.0})
        for i, (name, n) in enumerate(zip("abc", rows, strict=False))
    ]
    return pd.concat(parts).assign(**columns).sample(frac=1, random_state=0)


def read(folder: Path, frame: pd.DataFrame, **options: Any) -> Any:
    frame.to_csv(folder / "data.csv", index=False)
    return read_series(folder / "data.csv", **options)


def test_series_are_found_by_themselves(tmp_path: Path) -> None:
    table = read(tmp_path, sales(60, 40, 20))
    assert sorted(table.frame.columns) == ["a", "b", "c"]
    assert table.target == "sales"
    assert "told apart by 'store'; the column to forecast is 'sales'" in table.notes[0]
    assert table.frame.notna().sum().to_dict() == {"a": 60, "b": 40, "c": 20}
    assert table.frame["b"].dropna().tolist() == (100 + np.arange(40) % 7 + 1.0).tolist()
    given = read(tmp_path, sales(60, 40, 20), time="date", ids=["store"], target="sales")
    pd.testing.assert_frame_equal(given.frame, table.frame)
    assert not any("told apart" in note for note in given.notes)


def test_times_follow_a_column_of_labels(tmp_path: Path) -> None:
    frame = sales(60, 40)
    german = frame.set_axis(["filiale", "datum", "umsatz"], axis=1)
    assert read(tmp_path, german, ids=["filiale"]).frame.index.name == "datum"
    with pytest.raises(ValueError, match="name the column of times with `time`"):
        read(tmp_path, german)
    numbers = frame.assign(date=frame["date"].dt.dayofyear, store=frame["store"].map({"a": 1, "b": 2}))
    table = read(tmp_path, numbers.set_axis(["id", "t", "y"], axis=1))
    assert list(table.ids["id"].astype(int)) in ([1, 2], [2, 1])
    assert table.frame.index.name == "t"


def test_numbers_and_several_columns_tell_series_apart(tmp_path: Path) -> None:
    frame = sales(60, 40, 20).assign(item=lambda x: x["store"].map({"a": 1, "b": 1, "c": 2}), store="north")
    with pytest.raises(ValueError, match=r"series 'north / 1': column 'date' has 2024-.* more than once"):
        read(tmp_path, frame, ids=["store", "item"], target="sales")
    frame = pd.concat([sales(60).assign(item=1), sales(50).assign(item=2)])
    table = read(tmp_path, frame, ids=["store", "item"], target="sales")
    assert list(table.ids) == ["store", "item"]
    assert sorted(table.frame.columns) == ["a / 1", "a / 2"]


def test_each_series_is_forecast_from_its_own_end(tmp_path: Path) -> None:
    frame = sales(60, 40)
    frame = frame[(frame["store"] == "a") | (frame["date"] < "2024-02-20")]
    table = read(tmp_path, frame)
    assert table.values.shape == (60, 2)
    assert not np.isnan(table.values[-30:]).any()
    forecaster = LagForecaster(7, 7, model={"name": "seasonal", "period": 7}, shared=True, validation=14)
    made, _ = write_forecast(table, forecaster.fit(table.values), tmp_path / "out.csv")
    made = pd.read_csv(tmp_path / "out.csv")
    assert list(made) == ["store", "date", "sales", "sales_lower", "sales_upper"]
    own = made[made["store"] == "b"]
    assert list(own["date"]) == [f"2024-02-{day}" for day in range(20, 27)]
    assert list(made[made["store"] == "a"]["date"]) == [f"2024-03-0{day}" for day in range(1, 8)]
    np.testing.assert_allclose(own["sales"], 100 + np.arange(30, 37) % 7 + 1.0)


@pytest.mark.parametrize(
    ("change", "options", "message"),
    [
        (lambda x: x.assign(store=x["store"].where(x.index != 3)), {"ids": ["store"]}, "'store' has no value in row"),
        (lambda x: pd.concat([x, x.iloc[:1]]), {"ids": ["store"]}, r"series '.': column 'date' has .* more than once"),
        (lambda x: x, {"ids": ["shop"]}, "unknown column of ids: 'shop'"),
        (lambda x: x, {"ids": ["store"], "target": "sale"}, "did you mean 'sales'"),
        (lambda x: x.assign(price=1.5, stock=2), {}, "name the column .* with `target`; .*'sales', 'price', 'stock'"),
        (lambda x: x.assign(sales="x"), {"ids": ["store"], "target": "sales"}, "column 'sales' has 'x' in row 1"),
        (
            lambda x: pd.DataFrame({"store": list("aabbcc"), "date": DAYS[:6], "sales": 1.0}),
            {"ids": ["store"]},
            "no series has 3 values; '.' has 2",
        ),
        (lambda x: x.assign(store=1), {}, "name the columns that tell series apart with `id`"),
    ],
)
def test_errors_name_the_place(tmp_path: Path, change: Any, options: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        read(tmp_path, change(sales(60, 40, 20)), **options)


def test_short_series_are_named_and_left_out(tmp_path: Path) -> None:
    table = read(tmp_path, sales(60, 40, 2))
    assert sorted(table.frame.columns) == ["a", "b"]
    assert any("series 'c' has fewer than 3 values; no forecast is made" in note for note in table.notes)


def test_missing_values_and_codes(tmp_path: Path) -> None:
    frame = sales(60, 40)
    frame.loc[frame["date"] == "2024-02-10", "sales"] = -999
    frame = frame[frame["date"] != "2024-02-12"]
    assert any("'sales' has -999 in row" in note for note in read(tmp_path, frame).notes)
    table = read(tmp_path, frame, missing=[-999])
    assert table.frame["a"].isna().sum() == 2
    assert any(note.startswith("4 of 100 values are missing") for note in table.notes)


@pytest.mark.parametrize(("freq", "zone"), [("h", "UTC"), ("D", None)])
def test_series_may_have_zones_of_their_own(tmp_path: Path, freq: str, zone: str | None) -> None:
    parts = []
    for name in ("Europe/Berlin", "America/New_York"):
        times = [at.isoformat() for at in pd.date_range("2024-01-10", periods=90, freq=freq, tz=name)]
        parts.append(pd.DataFrame({"site": name, "time": times, "y": np.arange(90.0)}))
    table = read(tmp_path, pd.concat(parts), ids=["site"])
    assert str(table.frame.index.tz) == str(zone)
    assert len(table.frame) == (96 if zone else 90)
    assert table.frame.count().tolist() == [90, 90]


def test_series_of_other_steps_are_named(tmp_path: Path) -> None:
    parts = (("a", DAYS), ("b", DAYS[2::7]))
    frame = pd.concat(pd.DataFrame({"id": i, "day": t, "y": np.arange(len(t))}) for i, t in parts)
    with pytest.raises(ValueError, match="series 'b' has other steps than the table, one row for every 7 of its times"):
        read(tmp_path, frame)


def test_ids_are_mentioned_where_no_time_repeats(tmp_path: Path) -> None:
    frame = pd.DataFrame({"store": ["a"] * 30 + ["b"] * 30, "date": DAYS, "sales": np.arange(60.0)})
    with pytest.raises(
        ValueError, match=r"'store' has 'a' in row 1.* name with `id` the column that tells series apart"
    ):
        read(tmp_path, frame)
    assert list(read(tmp_path, frame, ids=["store"]).frame) == ["a", "b"]
