"""Tests specific to signals that are made of signals."""

from __future__ import annotations

import csv
import math
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from every_task import recipe
from scipy.io import wavfile
from typer.testing import CliRunner

from lagwise.cli.main import app
from lagwise.data.series_files import read_sound
from lagwise.evaluation.signals import si_sdr, signal_scores
from lagwise.models import StreamingRegressor, load_model
from lagwise.runs import evaluate_run, predict_run
from lagwise.tasks.signal_to_signal import SignalData
from lagwise.training import load_recipe, make_task, read_metrics, train

COLUMNS, NOISY = "another signal", "signals without noise"


def opened(folder: Path, name: str, *overrides: str) -> SignalData:
    data = make_task(recipe(name, folder, *overrides)).open(progress=False)
    assert isinstance(data, SignalData)
    return data


def write(path: Path, x: np.ndarray, rate: int = 8000) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    wavfile.write(path, rate, (x * 32767).clip(-32768, 32767).astype(np.int16))


def test_losses_are_means_over_known_targets(tmp_path: Path) -> None:
    y, labels = torch.randn(2, 6, 1), torch.randn(2, 6, 1)
    labels[0, 4:] = -100
    labels[1, 0] = -100
    out, real = SimpleNamespace(regression_outputs=y), labels != -100
    data = {loss: opened(tmp_path / loss, COLUMNS, f"task.loss={loss}") for loss in ("mse", "l1", "sdr", "si_sdr")}
    errors = ((y - labels) / data["mse"].pairs.std[1][0])[real]
    torch.testing.assert_close(data["mse"].loss(out, labels), errors.square().mean())
    torch.testing.assert_close(data["l1"].loss(out, labels), errors.abs().mean())
    torch.testing.assert_close(data["l1"].loss(out, labels, 36), errors.abs().sum() / 36)
    rows = [(y[i][real[i]].double(), labels[i][real[i]].double()) for i in range(2)]
    weight = torch.tensor([4.0, 5.0]) / 9
    ratios = [10 * torch.log10(t.square().sum() / (t - e).square().sum()) for e, t in rows]
    torch.testing.assert_close(data["sdr"].loss(out, labels), -(torch.stack(ratios).float() * weight).sum())
    parts = [(e @ t / (t @ t) * t, e) for e, t in rows]
    ratios = [10 * torch.log10(p.square().sum() / (p - e).square().sum()) for p, e in parts]
    torch.testing.assert_close(data["si_sdr"].loss(out, labels), -(torch.stack(ratios).float() * weight).sum())


def test_si_sdr_ignores_the_scale_and_has_none_for_silence() -> None:
    t, y = torch.randn(3, 50, dtype=torch.float64), torch.randn(3, 50, dtype=torch.float64)
    known = torch.rand(3, 50) < 0.8
    torch.testing.assert_close(si_sdr(3 * y, t, known), si_sdr(y, t, known), rtol=1e-6, atol=1e-6)
    assert si_sdr(-2 * t, t, known).tolist() == pytest.approx([100] * 3, abs=1e-6)
    assert si_sdr(y, 0 * t, known).isnan().all()
    silent = signal_scores(y.numpy().T, np.zeros((50, 3)))
    assert math.isnan(silent["si_sdr"])
    assert silent["mse"] == pytest.approx(float(y.square().mean()))
    assert all(map(math.isnan, signal_scores(y.numpy().T, np.full((50, 3), np.nan)).values()))


def test_validation_scores_are_those_of_windows(tmp_path: Path) -> None:
    data = opened(tmp_path, COLUMNS)
    y, labels = torch.randn(3, 8, 1), torch.randn(3, 8, 1)
    labels[2, 5:] = -100
    kept, first = data.reduce((y,), labels)
    assert len(kept) == len(first) == 3
    found = data.metrics(0.0, kept.numpy(), first.numpy())
    real = labels != -100
    assert found["mse"] == pytest.approx(float((y - labels)[real].square().mean()), rel=1e-5)
    ratios = [
        signal_scores(a[r].numpy()[:, None], b[r].numpy()[:, None])["si_sdr"]
        for a, b, r in zip(y, labels, real, strict=True)
    ]
    assert found["si_sdr"] == pytest.approx(np.mean(ratios), rel=1e-4)


def test_columns_are_learned_and_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A linear filter of two sensors, of which some samples are missing, from a delay on."""
    options = ["training.steps=60", "training.learning_rate=0.02", "training.batch_size=16"]
    options += ["task.stride=1", "task.window=8", "task.loss=mse"]
    made = recipe(COLUMNS, tmp_path / "data", *options)
    made.model |= {"hidden_size": 16, "block": {"name": "prenorm", "token_mixer": {"name": "ema", "dimension": 4}}}
    run = train(made, tmp_path / "run", progress=False)
    scores = [line["eval_mse"] for line in read_metrics(run) if "eval_mse" in line]
    assert scores[-1] < 0.7 * scores[0]
    result = evaluate_run(run, progress=False)
    assert result["delay"] == 3
    assert result["test"]["rows"] == 1
    assert "input" not in result["test"]
    source = tmp_path / "data" / "recording-0.csv"
    out = tmp_path / "out.csv"
    assert CliRunner().invoke(app, ["predict", str(run), "--data", str(source), "--out", str(out)]).exit_code == 0
    with open(out) as file:
        rows = list(csv.DictReader(file))
    assert list(rows[0]) == ["x", "y", "predicted_z"]
    (whole,) = predict_run(run, source=str(source), progress=False)
    np.testing.assert_allclose([float(row["predicted_z"]) for row in rows], whole["predicted"][:, 0], rtol=1e-5)
    assert len(rows) == 120
    model, _ = load_model(run)
    stream = StreamingRegressor(model)
    pushed = torch.cat([*(stream.push(part) for part in torch.tensor(whole["input_values"]).split(7)), stream.finish()])
    np.testing.assert_allclose(pushed.numpy(), whole["predicted"], atol=1e-5)
    for wrong in ("out.txt", "nowhere/out.csv"):
        failed = CliRunner().invoke(app, ["predict", str(run), "--data", str(source), "--out", str(tmp_path / wrong)])
        assert failed.exit_code != 0
    monkeypatch.setattr("lagwise.runs.predict_run", lambda *a, **k: pytest.fail("refused only after the work"))
    failed = CliRunner().invoke(app, ["predict", str(run), "--data", str(source), "--out", str(tmp_path / "folder")])
    assert "only sounds are written to a folder" in str(failed.exception)
    both = predict_run(run, source=str(tmp_path / "data"), progress=False)
    assert len(make_task(load_recipe(str(run / "recipe.yaml"))).table(both)) == 6 * 120


@pytest.mark.slow
@pytest.mark.sampled(2)
@pytest.mark.parametrize("causal", [True, False])
def test_the_recipe_takes_noise_away(tmp_path: Path, causal: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """Tones with white noise: a filter is learned in seconds. Predictions are sounds of the same names."""
    for number in range(12):
        random = np.random.default_rng(number)
        wave = 2 * np.pi * random.uniform(200, 300) / 8000 * np.arange(random.integers(1500, 2500))
        write(tmp_path / "tones" / f"{number}.wav", 0.2 * np.sin(wave + random.uniform(0, 6)))
        write(tmp_path / "noise" / f"{number}.wav", 0.2 * random.normal(size=3000))
    small = ["training.steps=40", "training.batch_size=8", "training.warmup_steps=5", "training.precision=float32"]
    small += ["training.evaluate_every=20", "training.save_every=20", "data.length=1024", "training.learning_rate=0.01"]
    options = ["task.noise=noise", "task.ratios=[0, 5]", "task.stride=16", "task.window=128"]
    made = load_recipe("denoise", [*small, *options, f"task.delay={32 * causal}"])
    made.data.source = "tones"
    made.model |= {"hidden_size": 16, "num_hidden_layers": 1, "causal": causal}
    monkeypatch.chdir(tmp_path)
    run = train(made, tmp_path / "run", progress=False)
    monkeypatch.chdir(tmp_path / "tones")  # a run is valid from any folder
    result = evaluate_run(run, progress=False)
    assert result["delay"] == 32 * causal + 15
    assert result["test"]["si_sdr_gain"] > 6
    assert result["test"]["si_sdr"] - result["test"]["input"]["si_sdr"] == pytest.approx(result["test"]["si_sdr_gain"])
    clean = 0.2 * np.sin(2 * np.pi * 250 / 8000 * np.arange(2000))
    given = clean + 0.1 * np.random.default_rng(99).normal(size=2000)
    write(tmp_path / "new" / "sub" / "a.wav", given)
    command = ["predict", str(run), "--data", str(tmp_path / "new"), "--out", str(tmp_path / "out")]
    reply = CliRunner().invoke(app, command)
    assert reply.exit_code == 0, reply.output
    written = tmp_path / "out" / "sub" / "a.wav"
    read = written.read_bytes()
    rate, samples = read_sound(read, written)
    assert (rate, samples.shape) == (8000, (2000, 1))
    before, after = (signal_scores(x.reshape(-1, 1), clean[:, None])["si_sdr"] for x in (given, samples))
    assert after > before + 5
    assert "has sounds, such as" in str(CliRunner().invoke(app, command).exception)
    assert written.read_bytes() == read
    for name, x in (("noisy/c.wav", given), ("clean/c.wav", clean)):
        write(tmp_path / "pairs" / name, x)
        write(tmp_path / "two" / name, np.stack([x, x], axis=1))
    with pytest.raises(ValueError, match=r"c\.wav has 2 inputs and 2 outputs, but the model has 1 and 1"):
        evaluate_run(run, source=str(tmp_path / "two"), progress=False)
    assert evaluate_run(run, source=str(tmp_path / "pairs"), progress=False)["test"]["si_sdr_gain"] > 5


def test_gaps_are_filled(tmp_path: Path) -> None:
    waves = np.sin(np.arange(800)[None] * np.linspace(0.1, 0.2, 12)[:, None] + np.arange(12)[:, None])
    np.savez(tmp_path / "waves.npz", input_values=waves.astype(np.float32))
    small = ["training.steps=80", "training.batch_size=8", "training.warmup_steps=5", "training.precision=float32"]
    small += ["training.evaluate_every=40", "training.save_every=40", "data.length=128", "training.learning_rate=0.01"]
    small += ["task.hide=0.2", "task.hide_length=4", "task.stride=1", "task.window=32", "task.delay=8", "task.loss=mse"]
    made = load_recipe("denoise", small)
    made.data.source = str(tmp_path / "waves.npz")
    made.model |= {"hidden_size": 16, "num_hidden_layers": 1}
    run = train(made, tmp_path / "run", progress=False)
    scores = evaluate_run(run, progress=False)["test"]
    assert scores["missing"]["mse"] < 0.25  # the mean would have 0.5
    (row,) = predict_run(run, [{"input_values": [0.0, math.nan, 0.5] * 20}], progress=False)
    assert np.isfinite(row["predicted"]).all()


@pytest.mark.parametrize(
    ("override", "message"),
    [
        ("data.source=null", "needs signals to learn from"),
        ("task.loss=mae", "unknown `loss`: 'mae'"),
        ("task.ratios=[]", "at least one ratio in dB"),
        ("task.targets=[z]", r"with `noise`, `hide` or `ahead` the inputs"),
        ("task.delay=80", r"`length` 64 is less than `stride` and `delay`, 4 \+ 80"),
        ("task.window=2", r"`window` must be 0 or at least `stride` \+ `delay` = 4, got 2"),
        ("task.noise=nowhere", "nowhere"),
        ("task.hide=1", r"task\.hide must be less than 1"),
        ("data.lengths=[16, 64]", "`lengths` does not apply"),
    ],
)
def test_wrong_options_are_named(tmp_path: Path, override: str, message: str) -> None:
    with pytest.raises((ValueError, FileNotFoundError), match=message):
        opened(tmp_path, NOISY, override)


def test_noise_of_other_channels_is_refused(tmp_path: Path) -> None:
    stereo = tmp_path / "stereo"
    for number in range(3):
        write(stereo / f"{number}.wav", np.random.default_rng(number).normal(0, 0.1, (80, 2)))
    with pytest.raises(ValueError, match="has 2 channels, but the signals have 1"):
        opened(tmp_path / "data", NOISY, f"task.noise={stereo}")


def test_silent_noise_is_refused(tmp_path: Path) -> None:
    random = np.random.default_rng(0)
    write(tmp_path / "one" / "a.wav", np.zeros(900))
    for split, level in (("train", 0.1), ("valid", 0.0), ("test", 0.1)):
        write(tmp_path / "some" / split / "a.wav", level * random.normal(size=900))
    for name, part in (("one", "train"), ("some", "valid")):
        with pytest.raises(ValueError, match=f"{name}.*silent.*for {part}"):
            opened(tmp_path / f"data-{name}", NOISY, f"task.noise={tmp_path / name}")


def test_a_two_sided_model_needs_no_delay(tmp_path: Path) -> None:
    task = make_task(recipe(COLUMNS, tmp_path))
    with pytest.raises(ValueError, match=r"a two-sided model .* needs no `delay`, got 3"):
        task.check_config(SimpleNamespace(input_name="values", causal=False))
