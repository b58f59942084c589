"""The task of forecasting: its windows and its splits."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from lagwise.data.options import DataOptions
from lagwise.tasks.forecasting import Forecasting, Windows


def opened(folder: Path, rows: int = 100, **options: object) -> Forecasting:
    lines = [f"{i},{i},{'' if i == 50 else -i}" for i in range(rows)]
    (folder / "x.csv").write_text("\n".join(["t,a,b", *lines]))
    task = Forecasting(DataOptions(source=str(folder / "x.csv"), length=10), **{"horizon": 5, **options})
    task.open(progress=False)
    return task


def test_parts_begin_a_look_back_earlier_and_are_standardised_by_training_rows(tmp_path: Path) -> None:
    task = opened(tmp_path)
    assert {name: len(part) for name, part in task.parts.items()} == {"train": 70, "valid": 20, "test": 30}
    train = np.arange(70)
    np.testing.assert_allclose(task.parts["valid"][:, 0], (np.arange(60, 80) - train.mean()) / train.std(), rtol=1e-5)
    first, last = (task._windows("test")[i] for i in (0, 15))
    scale = train.std()
    assert first["future_values"][0, 0] * scale + train.mean() == pytest.approx(80, abs=1e-3)
    assert last["future_values"][-1, 0] * scale + train.mean() == pytest.approx(99, abs=1e-3)
    assert len(task._windows("test")) == 2 * (20 - 5 + 1)
    assert np.isnan(task.parts["train"][50, 1])


def test_every_epoch_sees_every_window_in_another_order() -> None:
    x = np.arange(30, dtype=np.float32).reshape(15, 2)
    windows = Windows(x, 4, 2, drawn=40, seed=3)
    firsts = [float(windows[i]["past_values"][0, 0]) for i in range(40)]
    assert sorted(firsts[:20]) == sorted(firsts[20:]) == sorted(x[:10].ravel())
    assert firsts[:20] != firsts[20:]
    assert [float(windows[i]["past_values"][0, 0]) for i in (31, 2)] == [firsts[31], firsts[2]]
    assert len(Windows(x, 4, 2, drawn=7, seed=None)) == 7


def test_tables_that_are_too_short(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"data.length 10 and task.horizon 40 need 50 rows; the valid part .* has 20"):
        opened(tmp_path, horizon=40)
    with pytest.raises(ValueError, match="forecasting needs series to learn from"):
        Forecasting(DataOptions())
