"""The protocol of the forecasting benchmark."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from typer.testing import CliRunner

from lagwise.cli.main import app
from lagwise.forecasting import LagForecaster
from lagwise_papers.bench import forecasting as bench

PARTS = (300, 100, 107)


def series(rows: int) -> np.ndarray:
    return np.random.default_rng(0).normal(size=(rows, 2)).cumsum(0)


@pytest.mark.parametrize("logs", [False, True])
def test_every_test_window_is_scored_once(logs: bool) -> None:
    """107 test rows and a horizon of 10 give 98 windows, not a multiple of any usual batch size. None is dropped, and
    the result is the mean over exactly these windows. Logarithms are scored as values."""
    x = np.exp(series(600) / 20) if logs else series(600)
    options = {"look_back": 48, "logs": logs}
    cell = bench.run_benchmark(x, bench.Benchmark("made", PARTS), 10, options)
    assert cell["windows"] == 107 - 10 + 1
    forecaster = LagForecaster(10, validation=100, refit=False, **options).fit(x[:400])
    mean, deviation = x[:300].mean(0), x[:300].std(0)  # by the training part alone
    errors = []
    for start in range(400, 507 - 10 + 1):
        forecast = forecaster.predict(X=x[start - 48 : start])
        errors.append((forecast - x[start : start + 10]) / deviation)
    assert cell["mse"] == pytest.approx(np.mean(np.square(errors)))
    assert cell["mae"] == pytest.approx(np.mean(np.abs(errors)))
    assert logs or forecaster.mean_ == pytest.approx(mean)


def test_models_do_not_use_the_test_part() -> None:
    x = series(600)
    changed = x.copy()
    changed[400:] += 100
    cells = [bench.run_benchmark(each, bench.Benchmark("made", PARTS), 10, {"look_back": 48}) for each in (x, changed)]
    assert cells[0]["validation_mse"] == cells[1]["validation_mse"]
    assert cells[0]["mse"] != cells[1]["mse"]


def test_files_are_found_and_missing_files_are_named(tmp_path: Path) -> None:
    made = pd.DataFrame({"date": range(3), "a": [1.0, 2.0, 3.0]})
    made.to_csv(tmp_path / "exchange_rate.csv.xz", index=False)
    assert bench.read_benchmark(tmp_path, "exchange").tolist() == [[1.0], [2.0], [3.0]]
    with pytest.raises(FileNotFoundError, match=r"no national_illness\.csv, "):
        bench.read_benchmark(tmp_path, "illness")
    with pytest.raises(ValueError, match="ETTh1 must have at least 14400 rows, got 100"):
        bench.BENCHMARKS["ETTh1"].split(100)
    with pytest.raises(ValueError, match="unknown data set: 'ETTh'; did you mean"):
        bench.run_benchmarks(tmp_path, ["ETTh"])


def test_the_command_writes_a_table_and_results(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    made = bench.Benchmark("my", (150, 60, 80), (12, 24), 24, (12, 24))
    monkeypatch.setitem(bench.BENCHMARKS, "exchange", made)
    times = pd.date_range("2024-01-01", periods=300, freq="h")
    price = 3 * np.sin(np.arange(300) * 2 * np.pi / 24) + np.random.default_rng(0).normal(size=300)
    pd.DataFrame({"date": times, "price": price}).to_csv(tmp_path / "my.csv", index=False)
    out = tmp_path / "results.json"
    result = CliRunner().invoke(app, ["bench", "forecast", str(tmp_path), "--data", "exchange", "--out", str(out)])
    assert result.exit_code == 0, result.output
    assert "chosen by validation" in result.output
    cells = json.loads(out.read_text())["results"]["cells"]
    assert {(each["horizon"], each["windows"]) for each in cells} == {(12, 69), (24, 57)}
    assert len(cells) == 2 * len(bench.models(made, 12))
