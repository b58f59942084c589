"""``lagwise forecast`` on the command line."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from typer.testing import CliRunner

from lagwise.cli.main import app

runner = CliRunner()


@pytest.fixture
def data(tmp_path: Path) -> Path:
    t, rng = np.arange(300), np.random.default_rng(0)
    times = pd.date_range("2024-01-01", periods=300, freq="h")
    load = np.sin(t * 2 * np.pi / 24) + 0.1 * rng.normal(size=300)
    frame = pd.DataFrame({"date": times, "load": load, "price": 3 * load + 7, "site": "A"})
    frame.loc[50:52, "load"] = np.nan
    frame.to_csv(tmp_path / "my.csv", index=False)
    return tmp_path / "my.csv"


def test_forecasts_with_intervals_and_a_plot(data: Path) -> None:
    out = data.with_name("next.csv")
    arguments = ["--data", data, "--time", "date", "--horizon", "24", "--columns", "load,price", "--out", out]
    result = runner.invoke(app, ["forecast", *map(str, arguments), "--look-back", "48"])
    assert result.exit_code == 0, result.output
    for words in (
        "300 rows of 2 series, 2024-01-01 to 2024-01-13 11:00:00",
        "note: 3 of 600 values are missing",
        "season: 24 rows",
        "in standard deviations, the mean of all series",
        "last value",
        "Chosen: ",
        "below repeating the last value",
        "90% interval",
        "2024-01-13 12:00:00",
        "24 rows of 2 series",
    ):
        assert words in result.output
    forecast = pd.read_csv(out, parse_dates=["date"], index_col="date")
    assert list(forecast) == ["load", "load_lower", "load_upper", "price", "price_lower", "price_upper"]
    assert list(forecast.index) == list(pd.date_range("2024-01-13 12:00", periods=24, freq="h"))
    true = np.sin(np.arange(300, 324) * 2 * np.pi / 24)
    assert np.abs(forecast["load"] - true).max() < 0.3
    assert np.mean((forecast["load_lower"] < true) & (true < forecast["load_upper"])) > 0.8
    assert out.with_suffix(".png").read_bytes().startswith(b"\x89PNG")


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--horizon", "24"], "column 'site' has 'A' in row 1, which is not a number"),
        (["--horizon", "200", "--columns", "load"], "horizon = 200 needs at least 401 rows"),
        (["--horizon", "24", "--columns", "load", "--look-back", "280"], "look_back = 280 is longer than"),
        (["--horizon", "24", "--model", "arima"], "unknown --model: 'arima'"),  # before the table is read
        (["--horizon", "24", "--time", "when"], "unknown column of times: 'when'"),
        (["--horizon", "24", "--time", "site"], "column 'site' has 'A' in row 1, which is not read as a time"),
    ],
)
def test_invalid_arguments(data: Path, arguments: list[str], message: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(data.parent)
    result = runner.invoke(app, ["forecast", "--data", str(data), *arguments])
    assert isinstance(result.exception, ValueError)
    assert message in str(result.exception)
    assert sorted(path.name for path in data.parent.iterdir()) == ["my.csv"]


def test_the_data_are_not_overwritten(data: Path) -> None:
    result = runner.invoke(app, ["forecast", "--data", str(data), "--horizon", "3", "--out", str(data)])
    assert result.exit_code == 2
    assert "would overwrite" in result.output


def test_long_tables(data: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(data.parent)
    table = pd.read_csv(data)[["date", "price"]]
    both = pd.concat(
        [table.assign(site="north"), table.iloc[100:].assign(site="south", price=lambda x: x["price"] / 9)]
    )
    both.to_csv("long.csv", index=False)
    options = ["--horizon", "24", "--coverage", ".8", "--non-negative", "--model", "ridge", "--look-back", "48"]
    result = runner.invoke(app, ["forecast", "--data", "long.csv", *options])
    assert result.exit_code == 0, result.output
    assert "note: series are told apart by 'site'; the column to forecast is 'price'" in result.output
    assert "48 rows of 2 series" in result.output
    forecast = pd.read_csv("long-forecast.csv")
    assert list(forecast) == ["site", "date", "price", "price_lower", "price_upper"]
    true = 3 * np.sin(np.arange(300, 324) * 2 * np.pi / 24) + 7
    assert np.abs(forecast["price"] - np.concatenate([true, true / 9])).max() < 1
    assert (forecast["price_lower"] < forecast["price"]).all()
    assert Path("long-forecast.png").is_file()
    more = ["--id", "site", "--columns", "price"]
    result = runner.invoke(app, ["forecast", "--data", "long.csv", "--horizon", "24", *more])
    assert result.exit_code == 2
    assert "with --id give --target" in result.output


def test_series_named_as_ends_of_intervals_are_refused(data: Path) -> None:
    table = pd.read_csv(data)
    table["load_lower"] = table["load"]
    table.to_csv(data, index=False)
    result = runner.invoke(app, ["forecast", "--data", str(data), "--horizon", "3", "--columns", "load,load_lower"])
    assert "'load_lower' has the name that intervals of 'load' get" in str(result.exception)


def test_the_names_of_forecasts_keep_points_and_need_no_matplotlib(data: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(data.parent)
    monkeypatch.setattr("lagwise.forecasting.writing.find_spec", lambda name: None)
    data.rename(data.with_name("my.2024.csv"))
    data.with_name("my.2024.tsv").write_text(data.with_name("my.2024.csv").read_text().replace(",", "\t"))
    for suffix in ("csv", "tsv"):
        options = ["--horizon", "1", "--columns", "load", "--model", "ridge", "--look-back", "20", "--period", "1"]
        result = runner.invoke(app, ["forecast", "--data", f"my.2024.{suffix}", *options])
        assert result.exit_code == 0, result.output
        assert "season" not in result.output
        assert "for a plot, pip install" in result.output
        assert "Written: my.2024-forecast.csv (1 row of 1 series)" in result.output


def test_forecasts_that_overflow_are_refused(data: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(data.parent)
    values = 1.7e308 * np.minimum(1, np.arange(1, 41) / 40)
    pd.DataFrame({"t": np.arange(40), "x": values}).to_csv("large.csv", index=False)
    result = runner.invoke(app, ["forecast", "--data", "large.csv", "--horizon", "9", "--look-back", "9"])
    assert "series 'x' exceed floating-point numbers" in str(result.exception)
    assert not Path("large-forecast.csv").exists()


def test_a_plot_that_cannot_be_drawn_loses_no_table(data: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(data.parent)
    frame = pd.DataFrame({"t": np.arange(60), "x": 1e308 * (1 + 0.5 * np.sin(np.arange(60) / 2))})
    frame["early"] = np.where(np.arange(60) < 30, 1.0, np.nan)
    frame.to_csv("large.csv", index=False)
    options = ["--data", "large.csv", "--horizon", "2", "--model", "ridge", "--look-back", "9"]
    result = runner.invoke(app, ["forecast", *options, "--columns", "x"])
    assert result.exit_code == 0, result.output
    assert "no plot (" in result.output
    assert np.isfinite(pd.read_csv("large-forecast.csv")["x"]).all()
    result = runner.invoke(app, ["forecast", *options, "--columns", "early"])
    assert result.exit_code == 0, result.output
    assert Path("large-forecast.png").is_file()


def test_a_name_with_a_comma_stands_in_quotes(data: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(data.parent)
    days = pd.date_range("2024-02-01", periods=40).strftime("%d/%m/%Y")
    frame = pd.DataFrame({"day": days, "Sales, EUR": np.arange(40) % 11, "Costs, EUR": 99.0})
    frame.to_csv("commas.csv", index=False)
    options = ["--horizon", "2", "--model", "ridge", "--date-order", "day", "--missing", "5, 6"]
    result = runner.invoke(app, ["forecast", "--data", "commas.csv", "--columns", '"Sales, EUR"', *options])
    assert result.exit_code == 0, result.output
    assert "values are missing" in result.output
    assert "Sales, EUR_lower" in pd.read_csv("commas-forecast.csv")
    result = runner.invoke(app, ["forecast", "--data", "commas.csv", *options[:-1], "many"])
    assert "--missing must be numbers" in result.output


def test_a_folder_that_cannot_be_written_fails_first(data: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("lagwise.forecasting.choose_forecaster", lambda *_, **__: pytest.fail("fitted"), raising=False)
    result = runner.invoke(app, ["forecast", "--data", str(data), "--horizon", "2", "--out", "/proc/x.csv"])
    assert result.exit_code != 0
    assert "not a folder that can be written to" in str(result.exception)
