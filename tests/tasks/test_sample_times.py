"""Series whose samples have times of their own, from tables to predictions and streams."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch

from lagwise.models import StreamingClassifier, StreamingRegressor, load_model
from lagwise.runs import evaluate_run, predict_run
from lagwise.training import load_recipe, train

BLOCK = (
    "model.block={name: prenorm, norm: batch, token_mixer: {name: gtu, expansion: 1, kernel: {name: s4d, modes: 4}}, "
    "channel_mixer: {name: mlp, expansion: 1}}"
)
SMALL = ["training.batch_size=8", "training.steps=2", "training.evaluate_every=2", "training.save_every=2"]
SMALL += ["model.initializer_range=0.3", "model.causal=true", BLOCK]


def wave(random: np.random.Generator, label: int, samples: int = 60) -> tuple[np.ndarray, np.ndarray]:
    """Times, at random, and a slow or a fast wave at these times."""
    times = random.exponential(0.5, samples).cumsum() + 1.7e9
    return times, np.sin((times - times[0]) * (0.5, 2.0)[label] + random.uniform(0, 6))


def small(name: str, source: Path, run: Path, *options: str) -> Path:
    recipe = load_recipe(name, [*SMALL, *options])
    recipe.data.source = str(source)
    recipe.model |= {"hidden_size": 8, "num_hidden_layers": 1}
    return Path(train(recipe, run, progress=False))


def test_recordings_with_a_column_of_times(tmp_path: Path) -> None:
    random = np.random.default_rng(0)
    for number in range(60):
        times, x = wave(random, number % 2)
        path = tmp_path / "data" / ("slow", "fast")[number % 2] / f"{number}.csv"
        path.parent.mkdir(parents=True, exist_ok=True)
        clock = pd.to_datetime(times, unit="s").strftime("%Y-%m-%d %H:%M:%S.%f")
        pd.DataFrame({"clock": clock, "x": x}).to_csv(path, index=False)
    run = small("series", tmp_path / "data", tmp_path / "run", "task.time=clock", "training.first_answer=none")
    model = load_model(run)[0]
    inputs = model.config.inputs
    assert (inputs["features"], inputs["stride"]) == (2, 1)
    assert inputs["time"] == pytest.approx(0.35, rel=0.1)  # the median of an exponential distribution
    assert evaluate_run(run, progress=False)["test"]["rows"] == 6
    times, x = wave(random, 1)
    path = tmp_path / "new.csv"
    pd.DataFrame({"clock": pd.to_datetime(times, unit="s"), "x": x}).to_csv(path, index=False)
    (row,) = predict_run(run, source=str(path), progress=False)

    def streamed(times: np.ndarray) -> torch.Tensor:
        stream = StreamingClassifier(model)
        return torch.cat([stream.push(x[at : at + 7], times[at : at + 7]) for at in range(0, 60, 7)])[-1]

    shares = [row[f"p({model.config.id2label[i]})"] for i in range(2)]
    np.testing.assert_allclose(streamed(times), shares, atol=1e-3)
    assert abs(streamed(3 * times)[0] - shares[0]) > 0.003
    pd.DataFrame({"x": x}).to_csv(path, index=False)
    with pytest.raises(ValueError, match=r"no 'clock'|'clock'"):
        predict_run(run, source=str(path), progress=False)


def test_records_with_lists_of_times_and_a_first_answer(tmp_path: Path) -> None:
    random = np.random.default_rng(0)
    rows = []
    for number in range(40):
        times, x = wave(random, number % 2, 40)
        rows.append({"input_values": x.tolist(), "at": times.tolist(), "label": ("slow", "fast")[number % 2]})
    data = tmp_path / "rows.jsonl"
    data.write_text("\n".join(map(json.dumps, rows)))
    run = small("series", data, tmp_path / "run", "task.time=at", "training.first_answer=only")
    assert evaluate_run(run, progress=False)["test"]["rows"] == 4
    run = small("series", data, tmp_path / "deep", "task.time=at", "training.first_answer=none")
    assert len(predict_run(run, source=str(data), progress=False)) == 40


def test_a_signal_for_a_signal_with_times(tmp_path: Path) -> None:
    random, root = np.random.default_rng(0), tmp_path / "data"
    root.mkdir()
    for number in range(12):
        times, x = wave(random, 0, 120)
        pd.DataFrame({"seconds": times, "x": x, "target": np.cumsum(x)}).to_csv(root / f"{number}.csv", index=False)
    options = ["task.stride=1", "task.delay=0", "task.window=0", "task.loss=mse", "data.length=60"]
    run = small("denoise", root, tmp_path / "run", *options, "task.time=seconds")
    assert evaluate_run(run, progress=False)["test"]["rows"] == 1
    (row,) = predict_run(run, source=str(root / "3.csv"), progress=False)
    table = pd.read_csv(root / "3.csv")
    stream = StreamingRegressor(load_model(run)[0])
    x, times = table["x"].to_numpy(), table["seconds"].to_numpy()
    pushed = torch.cat([stream.push(x[:50], times[:50]), stream.push(x[50:], times[50:]), stream.finish()])
    np.testing.assert_allclose(pushed, row["predicted"], atol=1e-4)


def test_labels_of_samples_with_times(tmp_path: Path) -> None:
    random, root = np.random.default_rng(0), tmp_path / "data"
    root.mkdir()
    for number in range(12):
        times, x = wave(random, number % 2, 100)
        pd.DataFrame({"t": times, "x": x, "label": np.where(x > 0, "up", "down")}).to_csv(
            root / f"{number}.csv", index=False
        )
    options = ["task.stride=1", "task.delay=0", "data.length=50", "task.time=t"]
    run = small("signal-steps", root, tmp_path / "run", *options)
    assert load_model(run)[0].config.inputs["time"] > 0
    assert np.isfinite(evaluate_run(run, progress=False)["test"]["accuracy"])
    assert len(predict_run(run, source=str(root / "0.csv"), progress=False)) == 1


@pytest.mark.parametrize(
    ("recipe", "options", "message"),
    [
        ("series", ["task.time=t", "task.stride=2"], "needs `stride=1`, got 2"),
        ("series", ["task.time=x"], "'x' is 'a', not a number"),
        ("series", ["task.time=label"], "must be a column of its own"),
        ("series", ["task.time=t", "task.features=[t]"], "must be a column of its own"),
        ("series", ["task.time=when"], "when"),
        ("series", ["task.time=t", "task.lines=true"], "lines are series"),
        ("series", ["task.time=falls"], r"sample 3 has the time 0\.5, which is not after"),
        ("series", ["task.time=some"], "sample 2 has no time"),
        ("series", ["task.time=t", "model.block={name: prenorm, token_mixer: {name: tcn}}"], "TCNMixer counts tokens"),
        ("denoise", ["task.time=t"], "`stride=1`, `delay=0`, `window=0`"),
        ("signal-steps", ["task.time=t", "task.stride=1", "task.augment={noise: 0.1}"], "no `augment`"),
    ],
)
def test_what_is_wrong_with_times_is_named(tmp_path: Path, recipe: str, options: list[str], message: str) -> None:
    for number in range(20):
        path = tmp_path / "data" / "ab"[number % 2] / f"{number}.csv"
        path.parent.mkdir(parents=True, exist_ok=True)
        cells: dict[str, Any] = {"t": [0, 1, 2.5], "v": [1, 2, number], "x": ["a", "b", "c"]}
        cells |= {"falls": [0, 1, 0.5], "some": [0, None, 2]}
        pd.DataFrame(cells).to_csv(path, index=False)
    features = [] if any("features" in option for option in options) else ["task.features=[v]"]
    made = load_recipe(recipe, [*SMALL, "training.first_answer=none", *features, *options])
    made.data.source = str(tmp_path / "data")
    with pytest.raises(ValueError, match=message):
        train(made, tmp_path / "run", progress=False)
