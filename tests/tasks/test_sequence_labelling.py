"""Tests specific to classes of steps and events in series."""

from __future__ import annotations

import json
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from every_task import recipe
from scipy.io import wavfile

from lagwise.evaluation.events import event_scores
from lagwise.models import StreamingClassifier, load_model
from lagwise.runs import evaluate_run, predict_run
from lagwise.tasks.sequence_labelling import SeriesWithClasses
from lagwise.training import load_recipe, make_task, train

STEPS, EVENTS = "labels of samples", "events in series"


def opened(folder: Path, name: str, *overrides: str) -> SeriesWithClasses:
    data = make_task(recipe(name, folder, *overrides)).open(progress=False)
    assert isinstance(data, SeriesWithClasses)
    return data


def test_the_loss_is_a_weighted_mean_over_labelled_steps(tmp_path: Path) -> None:
    data = opened(tmp_path, EVENTS, "task.class_weights={beat: 3}")
    logits, labels = torch.randn(2, 5, 3), torch.tensor([[0, 1, 2, -100, 0], [1, -100, -100, 0, 0]])
    weight = torch.tensor([3.0 if name == "beat" else 1.0 for name in data.label_names])
    real = labels != -100
    each = -logits.log_softmax(-1)[real].gather(1, labels[real][:, None])[:, 0] * weight[labels[real]]
    out = SimpleNamespace(logits=logits)
    torch.testing.assert_close(data.loss(out, labels), each.mean())
    torch.testing.assert_close(data.loss(out, labels, num_items_in_batch=20), each.sum() / 20)


def test_a_causal_model_is_scored_as_it_streams(runs: dict[str, Path], tmp_path: Path) -> None:
    """Evaluation of the whole series equals streaming of its samples."""
    run = runs[EVENTS]
    data = opened(tmp_path / "data", EVENTS)
    model, _ = load_model(run)
    samples, _ = next(iter(data._scored["test"]))
    stream = StreamingClassifier(model)
    pushed = torch.cat([stream.push(part) for part in torch.tensor(samples).split(7)])
    whole = data.task.probabilities(model, samples)
    np.testing.assert_allclose(whole[: len(pushed)], pushed.numpy(), atol=1e-5)
    assert len(whole) * data.task.stride >= len(samples) + data.task.delay
    assert evaluate_run(run, progress=False)["delay"] == 2 + 4 * (1 + 2 + 1) - 1 - 2 + 8


def test_every_event_is_scored_at_its_position(tmp_path: Path) -> None:
    """With a perfect model, whose probabilities are made from the labels with the stated delay."""
    data = opened(tmp_path, EVENTS)

    def perfect(samples: np.ndarray) -> np.ndarray:
        labels = next(own for values, own in data._scored["test"] if len(values) == len(samples))
        steps = -(-(len(samples) + data.task.delay) // data.task.stride)
        p = np.zeros((steps, 3))
        p[:, 0] = 1
        for at in np.flatnonzero(labels):
            p[(at + data.task.delay) // data.task.stride] = np.eye(3)[labels[at]]
        return p

    data.task.probabilities = lambda model, samples: perfect(samples)  # type: ignore[method-assign]
    data._scored = {"test": list(data._scored["test"])}
    result = data.evaluate(None, progress=False)
    events = sum((labels > 0).sum() for _, labels in data._scored["test"])
    assert result["test"] == {"accuracy": 1, "macro_f1": 1, "found": 1, "precision": 1, "rows": events}
    assert result["known_positions"]["accuracy"] == 1


def test_other_recordings_are_scored_with_the_labels_of_the_run(runs: dict[str, Path], tmp_path: Path) -> None:
    run = runs[STEPS]
    path = tmp_path / "other.csv"
    path.write_text("x,y,label\n" + "".join(f"{i % 5 - 2},0,{'on' if i % 5 > 3 else 'off'}\n" for i in range(40)))
    result = evaluate_run(run, source=str(path), progress=False)
    assert result["test"]["rows"] == 40
    (row,) = predict_run(run, source=str(path), progress=False)
    parts = json.loads(row["predicted"])
    assert [start for start, _, _ in parts] == [0, *(end for _, end, _ in parts[:-1])]
    assert parts[-1][1] == 40
    path.write_text("x,y,label\n1,2,on\n1,2,half\n")
    with pytest.raises(ValueError, match=r"row 1 of .*other.csv' is 'half', which the model does not know"):
        evaluate_run(run, source=str(path), progress=False)


@pytest.mark.parametrize(
    ("override", "message"),
    [
        ("data.source=null", "needs series to learn from"),
        ("task.stride=0", r"task\.stride must be at least 1"),
        ("task.delay=-1", r"task\.delay must be at least 0"),
        ("task.delay=40", r"`length` 32 is less than `stride` and `delay`, 4 \+ 40"),
        ("task.augment={gain: 1}", "unknown key in `augment`: 'gain'"),
        ("task.augment={drop: 2}", r"`augment.drop` must be in \[0, 1\]"),
        ("task.class_weights={beats: 2}", "unknown class in `class_weights`: 'beats'; did you mean 'beat'"),
        ("task.class_weights={beat: 0}", "must be greater than 0"),
        ("task.events=null", "belong together"),
        ("task.values=series", "unknown column: 'series'"),
        ("data.lengths=[16, 32]", "`lengths` does not apply"),
    ],
)
def test_wrong_options_are_named(tmp_path: Path, override: str, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        opened(tmp_path, EVENTS, override)


@pytest.mark.slow
@pytest.mark.sampled(2)
@pytest.mark.parametrize("causal", [False, True])
def test_the_recipe_for_signals_learns_a_folder_of_sounds(tmp_path: Path, causal: bool) -> None:
    """Low and high tones. A model stores its sampling rate, and a causal one streams."""
    random = np.random.default_rng(0)
    for name, pitch in (("low", 0.05), ("high", 0.8)):
        (tmp_path / "sounds" / name).mkdir(parents=True)
        for i in range(16):
            n = int(random.integers(300, 500))
            x = np.sin(pitch * np.arange(n) + random.uniform(0, 6)) * random.uniform(3000, 30000)
            wavfile.write(tmp_path / "sounds" / name / f"{i}.wav", 8000, x.astype(np.int16))
    made = load_recipe("signal", ["training.steps=25", "training.batch_size=8", "training.precision=float32"])
    made.data.source = str(tmp_path / "sounds")
    made.model |= {"hidden_size": 16, "num_hidden_layers": 1, "causal": causal}
    run = train(made, tmp_path / "run", progress=False)
    assert evaluate_run(run, progress=False)["test"]["accuracy"] == 1
    assert "rate: 8000" in (run / "recipe.yaml").read_text()
    predicted = predict_run(run, source=str(tmp_path / "sounds" / "low"), progress=False)
    assert {row["predicted"] for row in predicted} == {"low"}
    if causal:
        samples = np.asarray(predicted[0]["input_values"], dtype=np.float32)
        model, _ = load_model(run)
        said = StreamingClassifier(model).push(samples[: len(samples) // 16 * 16])[-1]
        assert said[model.config.label2id["low"]] == pytest.approx(predicted[0]["p(low)"], abs=0.02)
    wavfile.write(tmp_path / "other.wav", 16000, np.ones(400, np.int16))
    with pytest.raises(ValueError, match="16000 Hz, the model was trained at 8000 Hz"):
        predict_run(run, source=str(tmp_path / "other.wav"), progress=False)


def test_a_run_finds_its_features_by_name(tmp_path: Path) -> None:
    x = np.arange(200)
    labels = np.where(np.sin(x) > 0, "up", "down")
    columns = {"time": [f"8:{i}" for i in x], "a": np.sin(x), "b": x % 7, "label": labels}

    def write(name: str, *chosen: str) -> str:
        lines = zip(*([column, *columns[column]] for column in chosen), strict=True)
        (tmp_path / name).write_text("\n".join(",".join(map(str, line)) for line in lines))
        return str(tmp_path / name)

    made = recipe(STEPS, tmp_path / "data", "task.features=[a, b]", "training.steps=2")
    made.data.source = write("train.csv", "time", "a", "b", "label")
    run = train(made, tmp_path / "run", progress=False)
    found = [
        predict_run(run, source=source, progress=False)[0]["predicted"]
        for source in (made.data.source, write("other.csv", "b", "a"), write("more.csv", "b", "time", "a"))
    ]
    assert found[0] == found[1] == found[2]
    with pytest.raises(ValueError, match=r"unknown column of .*: 'a'"):
        predict_run(run, source=write("less.csv", "b"), progress=False)


def test_a_batch_without_labels_has_no_loss(tmp_path: Path) -> None:
    data = opened(tmp_path, STEPS)
    out, labels = SimpleNamespace(logits=torch.zeros(2, 8, 2)), torch.full((2, 8), -100)
    assert data.loss(out, labels) == data.loss(out, labels, torch.tensor(0)) == data.loss(out, labels, 0) == 0


def test_validation_without_events_or_labels_is_scored(tmp_path: Path) -> None:
    data = opened(tmp_path / "events", EVENTS)
    none = np.eye(len(data.label_names), dtype=np.float32)[np.zeros((2, 9), dtype=int)]
    scores = data.metrics(0.0, none, np.zeros((2, 9), dtype=int))
    assert scores == dict.fromkeys(("accuracy", "macro_f1", "found", "precision"), 0.0)
    scores, details = event_scores(np.zeros(0, dtype=int), np.zeros(0, dtype=int), data.label_names)
    assert not np.any(details["confusion"])
    steps = opened(tmp_path / "steps", STEPS)
    assert not any(steps.metrics(0.0, np.zeros((1, 4), dtype=int), np.full((1, 4), -100)).values())
