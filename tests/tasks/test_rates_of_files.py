"""Sounds of other sampling rates than those of training, from files to predictions."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from scipy.io import wavfile
from scipy.signal import resample_poly

from lagwise.runs import evaluate_run, predict_run
from lagwise.training import load_recipe, train

SMALL = [
    "training.batch_size=8",
    "training.warmup_steps=5",
    "training.precision=float32",
    "training.learning_rate=0.01",
]
CONTINUOUS = (
    "model.block={name: prenorm, norm: batch, token_mixer: {name: gtu, expansion: 1, kernel: {name: s4d, modes: 4}}, "
    "channel_mixer: {name: mlp, expansion: 1}}"
)


def write(path: Path, x: np.ndarray, rate: int) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    wavfile.write(path, rate, x.astype(np.float32))


def tone(random: np.random.Generator, hertz: float, rate: int = 8000, samples: int = 400) -> np.ndarray:
    wave = np.sin(2 * np.pi * hertz * random.uniform(0.9, 1.1) / rate * np.arange(samples) + random.uniform(0, 6))
    return 0.3 * wave + 0.02 * random.normal(size=samples)


def classes(root: Path, options: list[str], run: str = "run") -> Path:
    random = np.random.default_rng(0)
    for number in range(40):
        name, hertz = (("low", 150.0), ("high", 600.0))[number % 2]
        write(root / "sounds" / name / f"{number}.wav", tone(random, hertz), 8000)
    recipe = load_recipe("signal", ["training.first_answer=none", *SMALL, *options])
    recipe.data.source = str(root / "sounds")
    recipe.model |= {"hidden_size": 8, "num_hidden_layers": 1}
    return Path(train(recipe, root / run, progress=False))


def test_every_sound_is_classified_at_its_own_rate(tmp_path: Path) -> None:
    run = classes(tmp_path, ["task.stride=1", "training.steps=120", "training.evaluate_every=30", CONTINUOUS])
    random, given = np.random.default_rng(1), []
    for number in range(12):
        name, hertz = (("low", 150.0), ("high", 600.0))[number % 2]
        rate = (4000, 8000, 16000)[number % 3]
        x = resample_poly(tone(random, hertz, 16000, 800), 1, 16000 // rate)
        write(tmp_path / "new" / name / f"{number}.wav", x, rate)
        write(tmp_path / "as-8000" / name / f"{number}.wav", x, 8000)
        given.append((f"{name}/{number}.wav", name))
    found = {row["file"]: row["predicted"] for row in predict_run(run, source=str(tmp_path / "new"), progress=False)}
    assert found == dict(given)
    assert evaluate_run(run, source=str(tmp_path / "new"), progress=False)["test"]["accuracy"] == 1
    assert evaluate_run(run, source=str(tmp_path / "as-8000"), progress=False)["test"]["accuracy"] < 1


def test_a_model_that_counts_samples_names_what_does(tmp_path: Path) -> None:
    run = classes(tmp_path, ["task.stride=4", "training.steps=2", "training.evaluate_every=2"])
    write(tmp_path / "new" / "low" / "a.wav", np.ones(400), 16000)
    message = "sampling rate of 16000 Hz, the model was trained at 8000 Hz; resample .* stride of 1"
    for call in (predict_run, evaluate_run):
        with pytest.raises(ValueError, match=message):
            call(run, source=str(tmp_path / "new"), progress=False)
    write(tmp_path / "sounds" / "low" / "a.wav", np.ones(400), 16000)
    with pytest.raises(
        ValueError, match=r"rates of 8000 and 16000 Hz; .* is a TCNMixer, which counts samples; resample"
    ):
        classes(tmp_path, ["task.stride=1"], "other")
    with pytest.raises(ValueError, match=r"rates of 8000 and 16000 Hz; .* a stride of 1: this one reads 4 samples"):
        classes(tmp_path, ["task.stride=4", CONTINUOUS], "other")
    with pytest.raises(ValueError, match=r"a first answer counts samples, but sounds .* 8000 and 16000 Hz; resample"):
        classes(tmp_path, ["training.first_answer=only"], "other")
    (tmp_path / "sounds" / "low" / "a.wav").unlink()
    with pytest.raises(ValueError, match="have a sampling rate of 8000 Hz, not 16000"):
        classes(tmp_path, ["task.stride=1", "task.rate=16000"], "other")


def test_a_first_answer_counts_samples(tmp_path: Path) -> None:
    run = classes(tmp_path, ["training.first_answer=only"])
    write(tmp_path / "new" / "low" / "a.wav", np.ones(400), 16000)
    with pytest.raises(ValueError, match=r"trained at 8000 Hz; resample .*first answer"):
        predict_run(run, source=str(tmp_path / "new"), progress=False)


def test_signals_of_other_rates_are_answered_at_theirs(tmp_path: Path) -> None:
    random = np.random.default_rng(0)
    for number in range(10):
        x = tone(random, 200, samples=600)
        write(tmp_path / "pairs" / "noisy" / f"{number}.wav", x, 8000)
        write(tmp_path / "pairs" / "clean" / f"{number}.wav", np.convolve(x, 0.9 ** np.arange(60))[:600], 8000)
    options = ["task.stride=1", "task.delay=0", "task.window=0", "task.loss=mse", "data.length=400", *SMALL]
    options += ["training.steps=120", "training.evaluate_every=60", "training.save_every=60", "model.causal=true"]
    recipe = load_recipe("denoise", [*options, CONTINUOUS])
    recipe.data.source = str(tmp_path / "pairs")
    recipe.model |= {"hidden_size": 8, "num_hidden_layers": 1}
    run = Path(train(recipe, tmp_path / "run", progress=False))
    for kind in ("noisy", "clean"):
        x = wavfile.read(tmp_path / "pairs" / kind / "3.wav")[1]
        write(tmp_path / "same" / kind / "a.wav", x, 8000)
        for place, header in (("own", 4000), ("wrong", 8000)):
            write(tmp_path / place / kind / "b.wav", resample_poly(x, 1, 2), header)
    same, own, wrong = (
        evaluate_run(run, source=str(tmp_path / each), progress=False)["test"]["mse"]
        for each in ("same", "own", "wrong")
    )
    assert own < 2 * same
    assert wrong > 2 * own
    write(tmp_path / "own" / "noisy" / "c.wav", x, 8000)  # beside a file of another rate
    write(tmp_path / "own" / "clean" / "c.wav", x, 8000)
    rows = predict_run(run, source=str(tmp_path / "own"), progress=False)
    assert [len(row["predicted"]) for row in rows] == [300, 600]


def test_sounds_of_a_training_have_their_own_rates(tmp_path: Path) -> None:
    """Half of them at another rate, by which classes cannot be told from samples alone."""
    random = np.random.default_rng(0)
    for number in range(60):
        name, hertz = (("low", 150.0), ("high", 300.0))[number % 2]
        rate = (8000, 16000)[number // 2 % 2]
        place = ("train", "valid", "test")[max(0, number - 40) // 8 % 3 if number >= 32 else 0]
        x = tone(random, hertz, rate, rate // 20)
        write(tmp_path / "sounds" / place / name / f"{number}.wav", x, rate)
        write(tmp_path / "headers" / place / name / f"{number}.wav", x, 8000)
    options = ["task.stride=1", "training.steps=80", "training.evaluate_every=40", "training.first_answer=none", *SMALL]
    scores = {}
    for folder in ("sounds", "headers"):
        recipe = load_recipe("signal", [*options, "model.causal=true", CONTINUOUS])
        recipe.data.source = str(tmp_path / folder)
        recipe.model |= {"hidden_size": 8, "num_hidden_layers": 1}
        run = Path(train(recipe, tmp_path / f"run-{folder}", progress=False))
        assert "rate: 8000" in (run / "recipe.yaml").read_text()
        scores[folder] = evaluate_run(run, progress=False)["test"]["accuracy"]
    assert scores["sounds"] > 0.9
    assert scores["headers"] < 0.8


def test_samples_are_labelled_at_the_rate_of_their_file(tmp_path: Path) -> None:
    """Which count samples neither in steps nor in delays nor in events."""
    random = np.random.default_rng(0)
    for number in range(24):
        name, hertz = (("low", 150.0), ("high", 300.0))[number % 2]
        write(tmp_path / "sounds" / name / f"{number}.wav", tone(random, hertz), 8000)
    options = ["task.stride=1", "task.delay=0", "training.steps=60", "training.evaluate_every=30", "data.length=300"]
    recipe = load_recipe("signal-steps", [*options, *SMALL, "training.save_every=30", "model.causal=true", CONTINUOUS])
    recipe.data.source = str(tmp_path / "sounds")
    recipe.model |= {"hidden_size": 8, "num_hidden_layers": 1}
    run = Path(train(recipe, tmp_path / "run", progress=False))
    for number in range(8):
        name, hertz = (("low", 150.0), ("high", 300.0))[number % 2]
        rate = (8000, 16000)[number // 2 % 2]
        x = tone(random, hertz, rate, rate // 20)
        for folder, header in (("new", rate), ("as-8000", 8000)):
            write(tmp_path / folder / name / f"{number}.wav", x, header)
    own, wrong = (
        evaluate_run(run, source=str(tmp_path / each), progress=False)["test"]["accuracy"]
        for each in ("new", "as-8000")
    )
    assert own > wrong + 0.1
    rows = predict_run(run, source=str(tmp_path / "new"), progress=False)
    stretches = {row["file"]: json.loads(row["predicted"]) for row in rows}
    assert [stretches[f"low/{number}.wav"][-1][1] for number in (0, 2)] == [400, 800]
    write(tmp_path / "sounds" / "low" / "a.wav", np.ones(400), 16000)
    with pytest.raises(ValueError, match=r"has a sampling rate of 16000 Hz, .* has 8000 Hz; resample"):
        train(recipe, tmp_path / "other", progress=False)
