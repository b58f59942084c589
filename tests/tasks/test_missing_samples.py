"""Series with missing samples, from tables to predictions."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from numpy.random import Generator

from lagwise.models import load_model
from lagwise.runs import evaluate_run, predict_run
from lagwise.training import load_recipe, train

SMALL = ["model.hidden_size=8", "model.num_hidden_layers=1", "training.steps=6", "training.evaluate_every=6"]


def series(random: Generator, label: int) -> np.ndarray:
    """A slow or a fast wave, of which a fifth of the samples is missing."""
    x = np.sin(np.arange(64) * (0.2 + 0.5 * label) + random.uniform(0, 6)) + 0.1 * random.normal(size=64)
    return np.where(random.random(64) < 0.2, np.nan, x)


@pytest.mark.parametrize("first", ["none", "only"])
def test_classes_of_recordings_with_empty_cells(tmp_path: Path, first: str) -> None:
    random = np.random.default_rng(0)
    for number in range(40):
        path = tmp_path / "data" / ("slow", "fast")[number % 2] / f"{number}.csv"
        path.parent.mkdir(parents=True, exist_ok=True)
        cells = ["" if np.isnan(value) else f"{value:.4f}" for value in series(random, number % 2)]
        path.write_text("\n".join(["value,other", *(f"{cell},1" for cell in cells)]) + "\n")
    recipe = load_recipe("signal", ["task.stride=4", f"training.first_answer={first}", *SMALL])
    recipe.data.source = str(tmp_path / "data")
    run = tmp_path / "run"
    train(recipe, run)
    assert load_model(run)[0].config.inputs["gaps"]
    assert evaluate_run(run, progress=False)["test"]["rows"] == 4
    rows = predict_run(run, source=str(tmp_path / "data" / "fast"), progress=False)
    assert len(rows) == 20


def test_classes_of_samples_with_gaps_and_augmentation(tmp_path: Path) -> None:
    random = np.random.default_rng(0)
    x = np.stack([series(random, number % 2) for number in range(12)])
    labels = np.tile(np.arange(64) // 16 % 2, (12, 1))
    np.savez(tmp_path / "data.npz", input_values=x, label=labels)
    options = ["task.stride=4", "task.augment={filter: 0.3, noise: 0.1, stretch: 0.1}", "data.length=32", *SMALL]
    recipe = load_recipe("signal-steps", options)
    recipe.data.source = str(tmp_path / "data.npz")
    train(recipe, tmp_path / "run")
    found = evaluate_run(tmp_path / "run", progress=False)["test"]
    assert np.isfinite(found["accuracy"])


def test_a_model_trained_without_gaps_says_so(tmp_path: Path) -> None:
    random = np.random.default_rng(0)
    x = np.nan_to_num(np.stack([series(random, number % 2) for number in range(40)]))
    np.savez(tmp_path / "data.npz", input_values=x, label=np.arange(40) % 2)
    recipe = load_recipe("signal", ["task.stride=4", "training.first_answer=none", *SMALL])
    recipe.data.source = str(tmp_path / "data.npz")
    train(recipe, tmp_path / "run")
    with pytest.raises(ValueError, match="NaN at position 3, but the model was trained without gaps"):
        predict_run(tmp_path / "run", [{"input_values": [1, 2, 3, np.nan, 5]}], progress=False)
