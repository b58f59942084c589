"""Sounds of other sampling rates than those of training, from files to predictions.

tests/models/test_rates.py holds that a model at another rate is right; here each file gets the model of its own rate.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from scipy.io import wavfile

from lagwise.models import StreamingClassifier, StreamingRegressor, load_model
from lagwise.runs import evaluate_run, predict_run
from lagwise.training import load_recipe, make_task, train
from lagwise.training.setup import completed

CONTINUOUS = (
    "model.block={name: prenorm, norm: batch, token_mixer: {name: gtu, expansion: 1, kernel: {name: s4d, modes: 4}}, "
    "channel_mixer: {name: mlp, expansion: 1}}"
)
SMALL = ["training.batch_size=8", "training.steps=2", "training.evaluate_every=2", "training.save_every=2"]
SAMPLES = ["task.stride=1", "task.delay=0", "data.length=300", "model.causal=true", "model.initializer_range=0.3"]


def write(path: Path, x: np.ndarray, rate: int) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    wavfile.write(path, rate, x.astype(np.float32))


def tone(number: int, hertz: float, rate: int = 8000) -> np.ndarray:
    """A twentieth of a second."""
    random = np.random.default_rng(number)
    wave = np.sin(2 * np.pi * hertz * random.uniform(0.9, 1.1) / rate * np.arange(rate // 20) + random.uniform(0, 6))
    return 0.3 * wave + 0.02 * random.normal(size=len(wave))


def small(recipe: str, source: Path, *options: str) -> Any:
    made = load_recipe(recipe, [*SMALL, *options])
    made.data.source = str(source)
    made.model |= {"hidden_size": 8, "num_hidden_layers": 1}
    return made


@pytest.fixture
def sounds(tmp_path: Path) -> Path:
    for number in range(40):
        name, hertz = (("low", 150.0), ("high", 600.0))[number % 2]
        write(tmp_path / "sounds" / name / f"{number}.wav", tone(number, hertz), 8000)
    return tmp_path / "sounds"


@pytest.fixture
def others(tmp_path: Path) -> Path:
    """Sounds of three rates."""
    for number, rate in enumerate((4000, 8000, 16000)):
        write(tmp_path / "new" / ("low", "high")[number % 2] / f"{rate}.wav", tone(number, 300, rate), rate)
    return tmp_path / "new"


def models(run: Path, rows: list[dict[str, Any]]) -> Any:
    """Each row, its samples, and the run's model at the rate of its file."""
    for row in rows:
        rate = int(Path(row["file"]).stem) / 8000
        yield row, torch.tensor(np.asarray(row["input_values"]), dtype=torch.float32), load_model(run, rate=rate)[0]


def test_every_sound_is_classified_at_its_own_rate(sounds: Path, others: Path, tmp_path: Path) -> None:
    options = ("task.stride=1", "training.first_answer=none", "model.initializer_range=0.3", CONTINUOUS)
    run = train(small("signal", sounds, *options), tmp_path / "run", progress=False)
    rows = predict_run(run, source=str(others), progress=False)
    for row, x, model in models(run, rows):
        with torch.no_grad():
            shares = model(input_values=x[None]).logits[0].softmax(0)
        found = [row[f"p({model.config.id2label[i]})"] for i in range(2)]
        assert found == pytest.approx(shares.tolist(), abs=1e-5)
    right = np.mean([row["predicted"] == row["label"] for row in rows])
    assert evaluate_run(run, source=str(others), progress=False)["test"]["accuracy"] == pytest.approx(right)


def test_sounds_of_a_training_have_their_own_rates(sounds: Path) -> None:
    for number in range(0, 40, 2):
        write(sounds / "low" / f"{number}.wav", tone(number, 150, 16000), 16000)
    made = small("signal", sounds, "task.stride=1", "model.causal=true", CONTINUOUS)
    recipe, data = completed(made, make_task(made).open(progress=False))
    assert recipe.task["rate"] == 8000
    examples = data.training_examples(4, 8, 0)
    batch = data.collate([examples[i] for i in range(32)])
    lengths = batch["attention_mask"].sum(1) if "attention_mask" in batch else None
    assert lengths is not None
    assert torch.equal(batch["token_time"][:, 0], torch.where(lengths == 800, 0.5, 1.0))
    assert {*lengths.tolist()} == {400, 800}


@pytest.mark.slow
def test_a_model_that_counts_samples_names_what_does(sounds: Path, others: Path, tmp_path: Path) -> None:
    alone = "training.first_answer=none"
    run = train(small("signal", sounds, "task.stride=4", alone), tmp_path / "run", progress=False)
    for call in (predict_run, evaluate_run):
        with pytest.raises(ValueError, match=r"4000 Hz, the model was trained at 8000 Hz; resample .* stride of 1"):
            call(run, source=str(others), progress=False)
    first = train(small("signal", sounds, "training.first_answer=only"), tmp_path / "first", progress=False)
    with pytest.raises(ValueError, match=r"trained at 8000 Hz; resample .*first answer"):
        predict_run(first, source=str(others), progress=False)
    with pytest.raises(ValueError, match="have a sampling rate of 8000 Hz, not 16000"):
        train(small("signal", sounds, "task.stride=1", "task.rate=16000", alone), tmp_path / "other", progress=False)
    write(sounds / "low" / "a.wav", np.ones(400), 16000)
    for options, message in (
        (("task.stride=1", alone), r"rates of 8000 and 16000 Hz; .* is a TCNMixer, which counts samples; resample"),
        (("task.stride=4", alone, CONTINUOUS), r"rates of 8000 and 16000 Hz; .* stride of 1: this one reads 4 samples"),
        (("training.first_answer=only",), r"a first answer counts samples, but sounds .* 8000 and 16000 Hz; resample"),
    ):
        with pytest.raises(ValueError, match=message):
            train(small("signal", sounds, *options), tmp_path / "other", progress=False)


def test_signals_of_other_rates_are_answered_at_theirs(tmp_path: Path, others: Path) -> None:
    for number in range(10):
        x = tone(number, 200)
        write(tmp_path / "pairs" / "noisy" / f"{number}.wav", x, 8000)
        write(tmp_path / "pairs" / "clean" / f"{number}.wav", 2 * x, 8000)
    options = ("task.window=0", "task.loss=mse", *SAMPLES, CONTINUOUS)
    run = train(small("denoise", tmp_path / "pairs", *options), tmp_path / "run", progress=False)
    for row, x, model in models(run, predict_run(run, source=str(others), progress=False)):
        stream = StreamingRegressor(model)
        expected = torch.cat([stream.push(x), stream.finish()])
        np.testing.assert_allclose(row["predicted"], expected, atol=1e-5)


def test_samples_are_labelled_at_the_rate_of_their_file(sounds: Path, others: Path, tmp_path: Path) -> None:
    """Which count samples neither in steps nor in delays nor in events."""
    recipe = small("signal-steps", sounds, *SAMPLES, CONTINUOUS)
    run = train(recipe, tmp_path / "run", progress=False)
    for row, x, model in models(run, predict_run(run, source=str(others), progress=False)):
        classes = StreamingClassifier(model).push(x).argmax(1).tolist()
        names = [name for begin, end, name in json.loads(row["predicted"]) for _ in range(begin, end)]
        assert names == [model.config.id2label[each] for each in classes]
    write(sounds / "low" / "a.wav", np.ones(400), 16000)
    with pytest.raises(ValueError, match=r"has a sampling rate of 16000 Hz, .* has 8000 Hz; resample"):
        train(recipe, tmp_path / "other", progress=False)
