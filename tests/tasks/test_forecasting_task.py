"""Windows and splits of the forecasting task."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from lagwise.data.options import DataOptions
from lagwise.runs import predict_run
from lagwise.tasks.forecasting import Forecasting, SeriesParts, Windows


def opened(folder: Path, rows: int = 100, **options: object) -> SeriesParts:
    lines = [f"{i},{i},{'' if i == 50 else -i}" for i in range(rows)]
    (folder / "x.csv").write_text("\n".join(["t,a,b", *lines]))
    task = Forecasting(DataOptions(source=str(folder / "x.csv"), length=10), **{"horizon": 5, **options})
    return task.open(progress=False)


def test_parts_begin_a_look_back_earlier_and_are_standardized_by_training_rows(tmp_path: Path) -> None:
    data = opened(tmp_path)
    assert {name: len(part) for name, part in data.parts.items()} == {"train": 70, "valid": 20, "test": 30}
    train = np.arange(70)
    np.testing.assert_allclose(data.parts["valid"][:, 0], (np.arange(60, 80) - train.mean()) / train.std(), rtol=1e-5)
    first, last = (data._windows("test")[i] for i in (0, 15))
    scale = train.std()
    assert first["future_values"][0, 0] * scale + train.mean() == pytest.approx(80, abs=1e-3)
    assert last["future_values"][-1, 0] * scale + train.mean() == pytest.approx(99, abs=1e-3)
    assert len(data._windows("test")) == 2 * (20 - 5 + 1)
    assert np.isnan(data.parts["train"][50, 1])


def test_every_epoch_has_every_window_in_another_order() -> None:
    x = np.arange(30, dtype=np.float32).reshape(15, 2)
    windows = Windows(x, 4, 2, drawn=40, seed=3)
    firsts = [float(windows[i]["past_values"][0, 0]) for i in range(40)]
    assert sorted(firsts[:20]) == sorted(firsts[20:]) == sorted(x[:10].ravel())
    assert firsts[:20] != firsts[20:]
    assert [float(windows[i]["past_values"][0, 0]) for i in (31, 2)] == [firsts[31], firsts[2]]
    assert len(Windows(x, 4, 2, drawn=7, seed=None)) == 7


def test_tables_that_do_not_fit(tmp_path: Path) -> None:
    needs = r"`length` 10 and `horizon` 40 need 50 rows; the valid part .* has 20; make `horizon` smaller by 30"
    with pytest.raises(ValueError, match=needs):
        opened(tmp_path, horizon=40)
    with pytest.raises(ValueError, match=r"unknown column: 'c' .*known: a, b"):
        opened(tmp_path, columns=["c"])
    (tmp_path / "words.csv").write_text("name,a\nx,1\ny,2\nz,3\n")
    with pytest.raises(ValueError, match=r"not read as a time, .* name the column of times with `time`"):
        Forecasting(DataOptions(source=str(tmp_path / "words.csv"))).open()
    with pytest.raises(ValueError, match="forecasting needs series to learn from"):
        Forecasting(DataOptions())


def test_a_run_forecasts_the_continuation_of_a_table(runs: dict[str, Path], tmp_path: Path) -> None:
    """Forecasts are on the scale of the table, far from 0, and equal those for its last values. A gap near the end is
    allowed."""
    run = runs["forecasts"]
    times = pd.date_range("2024-01-01", periods=40, freq="h")
    table = pd.DataFrame({"time": times, "load": np.sin(np.arange(40) / 2) + 1e6, "price": np.cos(np.arange(40.0))})
    table.loc[38, "price"] = np.nan
    table.to_csv(tmp_path / "new.csv", index=False)
    made = predict_run(run, source=str(tmp_path / "new.csv"), progress=False)
    assert [row["time"] for row in made] == list(map(str, pd.date_range(times[-1], periods=7, freq="h")[1:]))
    assert [list(row) for row in made] == [["time", "load", "price"]] * 6
    for name in ("load", "price"):
        (alone,) = predict_run(run, [{"past_values": table[name].tolist()}], progress=False)
        np.testing.assert_allclose([row[name] for row in made], json.loads(alone["forecast"]), rtol=0, atol=1e-5)
    near = predict_run(run, [{"past_values": (table["load"] - 1e6).tolist()}], progress=False)[0]["forecast"]
    np.testing.assert_allclose([row["load"] - 1e6 for row in made], json.loads(near), atol=1e-5)
    table.loc[20:, "price"] = np.nan
    table.to_csv(tmp_path / "new.csv", index=False)
    with pytest.raises(ValueError, match=r"column 'price' of .* has no value in the last 16 rows"):
        predict_run(run, source=str(tmp_path / "new.csv"))
