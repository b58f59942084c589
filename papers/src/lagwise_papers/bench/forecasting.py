"""Long-horizon forecasting on the usual data sets, with the protocol of published tables."""

from __future__ import annotations

import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.lib.stride_tricks import sliding_window_view

from lagwise.forecasting import LagForecaster
from lagwise.progress import progress_bar
from lagwise.tables import known

HORIZONS = (96, 192, 336, 720)
LOGS = "ridge of logarithms, look-backs averaged"


@dataclass(frozen=True)
class Benchmark:
    """A data set.

    Args:
        file: File name without its suffix.
        split_rows: Rows of the training, validation and test parts; by default 70, 10 and 20 percent.
        horizons: Forecast horizons.
        look_back: Longest look-back of single models.
        look_backs: Look-backs of averaged models.
        logs: Whether values are above 0, and forecasts of their logarithms are a row of the table.
    """

    file: str
    split_rows: tuple[int, int, int] | None = None
    horizons: tuple[int, ...] = HORIZONS
    look_back: int = 720
    look_backs: tuple[int, ...] = (96, 192, 336, 720, 1440)
    logs: bool = False

    def split(self, rows: int) -> tuple[int, int, int]:
        """Return the ends of the training, validation and test parts."""
        if self.split_rows is None:
            train, test = int(rows * 0.7), int(rows * 0.2)
            return train, rows - test, rows
        train, valid, test = self.split_rows
        if rows < train + valid + test:
            raise ValueError(f"{self.file} must have at least {train + valid + test} rows, got {rows}")
        return train, train + valid, train + valid + test


_HOURS, _QUARTERS = (8640, 2880, 2880), (34560, 11520, 11520)
BENCHMARKS = {
    "ETTh1": Benchmark("ETTh1", _HOURS),
    "ETTh2": Benchmark("ETTh2", _HOURS),
    "ETTm1": Benchmark("ETTm1", _QUARTERS),
    "ETTm2": Benchmark("ETTm2", _QUARTERS),
    "weather": Benchmark("weather"),
    "exchange": Benchmark("exchange_rate", look_backs=(1, 30, 96, 336, 720)),
    "illness": Benchmark("national_illness", None, (24, 36, 48, 60), 104, (26, 52, 78, 104), logs=True),
}

# Mean squared errors averaged over the four horizons, as published, with the drop_last bug corrected where needed.
PUBLISHED = {
    "TimesNet": {"ETTh1": 0.458, "ETTh2": 0.414, "ETTm1": 0.400, "ETTm2": 0.291},
    "DLinear": {"ETTh1": 0.444, "ETTh2": 0.409, "ETTm1": 0.358, "ETTm2": 0.282},
    "PatchTST": {"ETTh1": 0.424, "ETTh2": 0.343, "ETTm1": 0.352, "ETTm2": 0.257},
    "DUET": {
        "ETTh1": 0.398,
        "ETTh2": 0.334,
        "ETTm1": 0.338,
        "ETTm2": 0.248,
        "weather": 0.218,
        "exchange": 0.280,
        "illness": 1.616,
    },
    "FITS": {"ETTh1": 0.407, "ETTh2": 0.333, "ETTm1": 0.355, "ETTm2": 0.249, "weather": 0.218},
}


def models(benchmark: Benchmark, horizon: int) -> dict[str, dict[str, Any]]:
    """Return the options of the compared forecasters, by their names in tables."""
    one, kernels = {"look_back": benchmark.look_back}, 12
    small = {**one, "shared": True}
    logs = {LOGS: {"look_back": benchmark.look_backs, "logs": True}} if benchmark.logs else {}
    return {
        "ridge": one,
        "ridge, look-backs averaged": {"look_back": benchmark.look_backs},
        "ridge, look-backs averaged, four folds": {"look_back": benchmark.look_backs, "folds": 4},
        "ridge, look-backs averaged, fitted again": {"look_back": benchmark.look_backs, "refit": True},
        **logs,
        f"{kernels} Toeplitz kernels": {**small, "model": "toeplitz", "kernels": kernels},
        "Toeplitz kernel": {**small, "model": "toeplitz"},
    }


def read_benchmark(folder: Path, name: str) -> np.ndarray:
    """Read a data set from its .csv, .csv.xz or .csv.gz file; FileNotFoundError if there is none.

    Returns:
        Values ``(rows, series)``.
    """
    import pandas as pd

    file = BENCHMARKS[name].file
    for suffix in (".csv", ".csv.xz", ".csv.gz"):
        if (path := folder / f"{file}{suffix}").is_file():
            return pd.read_csv(path).drop(columns="date").to_numpy(np.float64)
    raise FileNotFoundError(f"no {file}.csv, {file}.csv.xz or {file}.csv.gz in {str(folder)!r}")


def run_benchmark(x: np.ndarray, benchmark: Benchmark, horizon: int, options: Mapping[str, Any]) -> dict[str, Any]:
    """Fit and score one model on one data set and horizon.

    Weights are fitted on the training part, and options are chosen on the validation part, or with ``folds`` also on
    blocks of the training part by maps from the rows around them; with ``refit`` weights are then fitted again to both
    parts. All windows of the test part are scored, with stride 1; the first begins one look-back before that part.

    Args:
        x: Values ``(rows, series)``.
        benchmark: The data set's description.
        horizon: Forecast horizon.
        options: Options of `LagForecaster`.
    """
    train, valid, test = benchmark.split(len(x))
    began = time.perf_counter()
    settings: dict[str, Any] = {"refit": False, **options}
    forecaster = LagForecaster(horizon, validation=valid - train, **settings).fit(x[:valid])
    seconds = time.perf_counter() - began
    look_back = forecaster.maps_.shape[1]
    tested = x[valid - look_back : test]
    scores = forecaster.evaluate(tested)
    if forecaster.logs:  # its scores are those of logarithms
        restored: dict[str, Any] = _restored(forecaster, tested, x[:train].std(0))
        scores = scores._replace(**restored)
    return {
        "mse": scores.mse,
        "mae": scores.mae,
        "coverage": scores.coverage,
        "windows": scores.windows,
        "validation_mse": forecaster.validation_error_,
        "folds": forecaster.folds,
        "parameters": forecaster.n_parameters_,
        "shared": bool(forecaster.shared_),
        "fit_seconds": seconds,
    }


def _restored(forecaster: LagForecaster, x: np.ndarray, scale: np.ndarray) -> dict[str, float]:
    """Compute the errors of values, of a forecaster of logarithms."""
    look_back, horizon = forecaster.maps_.shape[1:]
    starts = np.arange(look_back, len(x) - horizon + 1)
    targets = sliding_window_view(x, horizon, axis=0)[starts].transpose(0, 2, 1)
    errors = targets * np.expm1(forecaster.errors_at(x, starts)) / scale
    return {"mse": float((errors**2).mean()), "mae": float(np.abs(errors).mean())}


def run_benchmarks(
    folder: Path, names: Sequence[str], only: Sequence[str] = (), *, progress: bool = True
) -> list[dict[str, Any]]:
    """Run every model, or ``only`` some, on every horizon of the named data sets, one row each; ValueError for an
    unknown name."""
    for name in names:
        known(name, BENCHMARKS, "data set")
    for name in only:
        known(name, models(BENCHMARKS["illness"], HORIZONS[0]), "model")
    data = {name: read_benchmark(folder, name) for name in names}
    cells = [(name, horizon) for name in names for horizon in BENCHMARKS[name].horizons]
    rows = []
    for name, horizon in progress_bar(cells, desc="forecasting", unit="cell", show=progress):
        options = models(BENCHMARKS[name], horizon)
        for model in [label for label in only or options if label in options]:
            scores = run_benchmark(data[name], BENCHMARKS[name], horizon, options[model])
            rows.append({"data": name, "horizon": horizon, "model": model, **scores})
    return rows


def best_by_validation(rows: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Select the row of each cell with the lowest validation error, without those of several folds or of logarithms,
    whose errors are not those of the same values."""
    cells: dict[tuple[str, int], dict[str, Any]] = {}
    for row in rows:
        best = cells.get((row["data"], row["horizon"]))
        if (
            row.get("folds", 1) == 1
            and row["model"] != LOGS
            and (best is None or row["validation_mse"] < best["validation_mse"])
        ):
            cells[row["data"], row["horizon"]] = dict(row)
    return list(cells.values())


def table_rows(rows: Sequence[Mapping[str, Any]]) -> tuple[list[str], list[list[str]]]:
    """Format errors averaged over horizons, by model and data set, with published figures: a header and rows of
    text."""
    names = list(dict.fromkeys(row["data"] for row in rows))
    means: dict[str, dict[str, float]] = {}
    for label, model_rows in _labelled(rows):
        errors_by_data = {n: [r["mse"] for r in model_rows if r["data"] == n] for n in names}
        means[label] = {n: float(np.mean(errors)) for n, errors in errors_by_data.items() if errors}
    sizes = {label: max(row["parameters"] for row in model_rows) for label, model_rows in _labelled(rows)}
    for label, figures in PUBLISHED.items():
        means[f"{label} (published)"] = dict(figures)
    ett = [name for name in names if name.startswith("ETT")]
    head = ["", *names, *(["ETT"] if len(ett) == 4 else []), "parameters"]
    lines = []
    for label, figures in means.items():
        cells = [f"{figures[n]:.3f}" if n in figures else "" for n in names]
        if len(ett) == 4:
            cells.append(f"{np.mean([figures[n] for n in ett]):.4f}" if all(n in figures for n in ett) else "")
        lines.append([label, *cells, f"{sizes[label]:,}" if label in sizes else ""])
    return head, lines


def coverage_rows(rows: Sequence[Mapping[str, Any]]) -> tuple[list[str], list[list[str]]]:
    """Format shares of test values within the intervals, averaged over horizons: a header and rows of text."""
    names = list(dict.fromkeys(row["data"] for row in rows))
    lines = []
    for model in dict.fromkeys(row["model"] for row in rows):
        model_rows = [row for row in rows if row["model"] == model]
        coverages = [[row["coverage"] for row in model_rows if row["data"] == name] for name in names]
        lines.append([model, *(f"{np.mean(values):.3f}" if values else "" for values in coverages)])
    return ["", *names], lines


def _labelled(rows: Sequence[Mapping[str, Any]]) -> Iterable[tuple[str, Sequence[Mapping[str, Any]]]]:
    for model in dict.fromkeys(row["model"] for row in rows):
        yield model, [row for row in rows if row["model"] == model]
    if best := best_by_validation(rows):
        yield "chosen by validation", best
