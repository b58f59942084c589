"""Columns beside the series of tables."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest

from lagwise.forecasting import read_series

HORIZON = 7
DAYS = pd.date_range("2024-01-01", periods=80 + HORIZON, freq="D")


def retail(*rows: int) -> pd.DataFrame:
    """Sales of series of different lengths that promotions double, with the promotions of the horizon below."""
    rng, parts = np.random.default_rng(0), []
    for i, (name, n) in enumerate(zip(("a", "b", "c"), rows, strict=False)):
        promo = rng.random(len(DAYS)) < 0.3
        sales = 10.0 * (i + 1) * (1 + promo) + rng.normal(size=len(DAYS))
        sales[-HORIZON:] = np.nan
        day = np.where(DAYS.dayofweek == 6, "sunday", np.where(DAYS.day == 1, "first", ""))
        frame = pd.DataFrame({"shop": name, "date": DAYS, "sales": sales, "promo": promo.astype(int), "day": day})
        parts.append(frame.assign(size=100 * i, region="north" if i else "south").iloc[80 - n :])
    return pd.concat(parts)


def read(folder: Path, frame: pd.DataFrame, **options: Any) -> Any:
    frame.to_csv(folder / "data.csv", index=False)
    return read_series(folder / "data.csv", **options)


BESIDE = {"future": ["promo", "day"], "static": ["size", "region"]}


def test_columns_are_aligned_with_their_series(tmp_path: Path) -> None:
    frame = retail(80, 50)
    ended = frame[(frame["shop"] == "b") | (frame["date"] < "2024-03-16")]  # 5 days earlier, and 2 days of the future
    ended.loc[(ended["shop"] == "a") & (ended["date"] > "2024-03-08"), "sales"] = np.nan
    table = read(tmp_path, ended, target="sales", beside=BESIDE)
    assert table.frame.shape == (80, 2)
    columns = table.columns(HORIZON)
    assert columns.future.shape == (87, 2, 3)  # promo, day=first, day=sunday
    assert columns.static.tolist() == [[0, 0, 1], [100, 1, 0]]
    promo = frame[frame["shop"] == "a"].set_index("date")["promo"]
    assert columns.future[-14:, 0, 0].tolist() == promo["2024-03-02":"2024-03-15"].tolist()
    first, sunday = columns.future[:, 1, 1], columns.future[:, 1, 2]
    assert np.flatnonzero(first == 1).tolist() == [31, 60]  # 1 February and 1 March; 1 January is before the series
    assert DAYS[np.flatnonzero(sunday == 1)].dayofweek.unique().tolist() == [6]


def test_columns_of_a_table_with_a_column_for_each_series(tmp_path: Path) -> None:
    one = retail(80)[["date", "sales", "promo"]].assign(other=lambda x: 2 * x["sales"])
    table = read(tmp_path, one, beside={"future": ["promo"]})
    assert list(table.frame) == ["sales", "other"]
    assert len(table.frame) == 80
    assert list(table.next_times(2)) == list(DAYS[80:82])
    columns = table.columns(HORIZON)
    assert np.array_equal(columns.future[:, 0, 0], one["promo"])
    assert np.array_equal(columns.future[:, 0], columns.future[:, 1])
    past = read(tmp_path, one.iloc[:80], columns=["sales"], beside={"past": ["other"]})
    assert list(past.frame) == ["sales"]
    assert np.array_equal(past.columns(HORIZON).past[:, 0, 0], one["other"].iloc[:80])


@pytest.mark.parametrize(
    ("change", "beside", "message"),
    [
        (
            lambda x: x.iloc[:-2],
            {"future": ["promo"]},
            "of the future has no value at 2024-03-26 for series 'b'",
        ),
        (lambda x: x, {"future": ["price"]}, "unknown future column: 'price'"),
        (lambda x: x, {"future": ["promo"], "past": ["promo"]}, "column 'promo' has two uses"),
        (lambda x: x, {"future": ["sales"]}, "column 'sales' has two uses"),
        (lambda x: x, {"static": ["promo"]}, "column 'promo' is not static: series 'a' has several values"),
        (
            lambda x: x.assign(promo=np.where(x["shop"] == "a", np.nan, 1)),
            {"past": ["promo"]},
            "column 'promo' has no value for",
        ),
        (
            lambda x: x.assign(note=[f"{row}x" for row in range(len(x))]),
            {"past": ["note"]},
            "column 'note' has '0x' in row 1",
        ),
    ],
)
def test_errors_name_column_and_series(tmp_path: Path, change: Any, beside: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        read(tmp_path, change(retail(80, 60)), target="sales", ids=["shop"], beside=beside).columns(HORIZON)


def test_static_columns_need_a_long_table(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="static columns need a table with a row for each series and time"):
        read(tmp_path, retail(80)[["date", "sales", "size"]], beside={"static": ["size"]})
