"""Tables as people bring them: stock prices, sales with promotions, and half-hourly visits with a calendar.

    pip install vega_datasets
    python benchmarks/user_tables.py FOLDER --out benchmarks/results/user-tables-cpu.json

writes ``stocks.csv`` (real monthly prices of five companies, one row per company and month, from vega_datasets),
``sales.csv`` (simulated: 60 series of two years of days, with prices, promotions and holidays) and ``visits.csv``
(simulated: the opening hours of 130 days, with holidays and terms), and scores forecasts of their last rows with
observed values, as ``lagwise forecast`` makes them, from the rows before, with and without columns.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pandas as pd

from lagwise.analysis.timing import save_results
from lagwise.cli.terminal import print_table
from lagwise.forecasting import choose_forecaster, read_series
from lagwise.forecasting.seasons import season

ORIGINS = 3


class Table(NamedTuple):
    """A table, the column to forecast, the ids and the columns beside it by kind, and the rows to forecast."""

    frame: pd.DataFrame
    time: str
    target: str
    ids: tuple[str, ...]
    beside: dict[str, tuple[str, ...]]
    horizon: int


def stocks() -> Table:
    from vega_datasets import local_data  # type: ignore[missing-import]

    frame = local_data.stocks()
    frame["date"] = pd.to_datetime(frame.date).dt.strftime("%b %Y")
    return Table(frame, "date", "price", ("symbol",), {}, 6)


def sales(days: int = 730, ahead: int = 28) -> Table:
    """Sales of five items in twelve shops: a week, a level that wanders, elastic prices, promotions and holidays."""
    draw = np.random.default_rng(0)
    dates = pd.date_range("2023-01-02", periods=days + ahead)
    holiday = np.isin(dates.strftime("%m-%d"), ["01-01", "05-01", "12-24", "12-25", "12-26"]).astype(int)
    week = 1 + np.array([-0.2, -0.15, -0.1, 0, 0.3, 0.5, -0.35])[dates.dayofweek]
    parts = []
    for shop in range(12):
        size = np.exp(draw.normal(0, 0.5))
        place = ("city", "mall")[shop % 2]
        for item in range(5):
            promotion = np.repeat(draw.random(len(dates) // 7 + 1) < 0.15, 7)[: len(dates)].astype(int)
            price = np.round((3 + item) * (1 - 0.25 * promotion) * (1 + 0.02 * (dates.year - 2023)), 2)
            level = 20 * size * np.exp(np.cumsum(draw.normal(0, 0.01, len(dates))))
            lift = np.exp(
                0.5 * promotion - 1.2 * np.log(price / (3 + item)) + (0.3 if place == "mall" else 0) * holiday
            )
            sold = draw.poisson(level * week * lift * (1 - 0.6 * holiday)).astype(float)
            sold[days:] = np.nan
            columns = {"shop": f"S{shop:02}", "place": place, "item": f"item {item}", "date": dates, "sold": sold}
            parts.append(pd.DataFrame({**columns, "price": price, "promotion": promotion, "holiday": holiday}))
    beside = {"future": ("price", "promotion", "holiday"), "static": ("place",)}
    return Table(pd.concat(parts), "date", "sold", ("shop", "item"), beside, ahead)


def visits(days: int = 130, ahead: int = 144) -> Table:
    """Visits of a library in half hours, 8 to 20 o'clock on Monday to Saturday; fewer on holidays and out of term."""
    draw = np.random.default_rng(1)
    every = pd.date_range("2024-01-08", periods=48 * (days + 8), freq="30min")
    times = every[(every.dayofweek < 6) & (every.hour >= 8) & (every.hour < 20)]
    rows = int((times < every[48 * days]).sum())
    times = times[: rows + ahead]
    hour = times.hour + times.minute / 60
    day = np.exp(-0.5 * ((hour - 11) / 1.5) ** 2) + 0.8 * np.exp(-0.5 * ((hour - 16) / 2) ** 2)
    number = (times.normalize() - times[0].normalize()).days
    holiday = np.isin(number, [18, 46, 67, 83, 100, 113, 131, 134]).astype(int)
    term = ((number // 7) % 6 < 4).astype(int)
    expected = 60 * day * (1 + 0.5 * term) * (1 - 0.7 * holiday) * np.where(times.dayofweek == 5, 0.5, 1)
    count = draw.poisson(expected).astype(float)
    count[rows:] = np.nan
    columns = {"time": times.strftime("%d.%m.%Y %H:%M"), "visits": count, "holiday": holiday, "term": term}
    return Table(pd.DataFrame(columns), "time", "visits", (), {"future": ("holiday", "term")}, ahead)


TABLES = {"stocks": stocks, "sales": sales, "visits": visits}


def score(path: Path, table: Table, use: bool) -> dict[str, Any]:
    """Errors of the last observed rows, forecast from the rows before, in units of the target, and those of repeating
    the last season; the share within 90 percent intervals."""
    read = read_series(
        path, table.time, ids=table.ids or None, target=table.target, beside=table.beside if use else None
    )
    period, values, horizon = season(read.frame), read.values, table.horizon
    errors, naive, inside, began = [], [], [], time.process_time()
    columns = read.columns(horizon)
    for back in range(ORIGINS, 0, -1):
        cut = len(values) - back * horizon
        before, true = values[:cut], values[cut:][:horizon]
        own = None if columns is None else columns.first(cut, horizon)
        chosen = choose_forecaster(before, horizon, period=period, nonnegative=True, columns=own)[0].forecaster
        made, (lower, upper) = chosen.predict(), chosen.predict_interval()
        errors.append(np.nanmean(np.abs(made - true)))
        inside.append(np.nanmean(np.where(np.isnan(true), np.nan, (lower <= true) & (true <= upper))))
        naive.append(np.nanmean(np.abs(before[np.arange(cut - period, cut)[np.arange(horizon) % period]] - true)))
    return {
        "series": values.shape[1],
        "rows": len(values),
        "horizon": horizon,
        "error": float(np.mean(errors)),
        "seasonal_naive": float(np.mean(naive)),
        "coverage": float(np.mean(inside)),
        "seconds": (time.process_time() - began) / ORIGINS,
    }


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--out", type=Path, required=True)
    options = parser.parse_args(arguments)
    options.folder.mkdir(parents=True, exist_ok=True)
    rows: list[dict[str, Any]] = []
    for name, make in TABLES.items():
        table, path = make(), options.folder / f"{name}.csv"
        table.frame.to_csv(path, index=False)
        for use in (False, True) if table.beside else (False,):
            rows.append({"table": name, "columns": use, **score(path, table, use)})
    lines = [
        (
            row["table"] + (", with columns" if row["columns"] else ""),
            *(str(row[key]) for key in ("series", "rows", "horizon")),
            *(f"{row[key]:.3f}" for key in ("error", "seasonal_naive")),
            f"{row['coverage']:.2f}",
            f"{row['seconds']:.1f}",
        )
        for row in rows
    ]
    head = ("table", "series", "rows", "horizon", "error", "seasonal naive", "coverage", "processor seconds")
    print_table("Mean absolute error", head, lines)
    save_results(options.out, "python benchmarks/user_tables.py FOLDER", {"rows": rows})


if __name__ == "__main__":
    main()
