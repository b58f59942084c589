"""Tests specific to sequence classification and regression."""

from __future__ import annotations

import json
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from every_task import recipe
from numpy.random import Generator
from transformers import pipeline

from lagwise.models import load_model
from lagwise.runs import evaluate_run, predict_run
from lagwise.tasks.labelled import classification_scores, regression_scores
from lagwise.tasks.sequence_classification import ClassifiedRows
from lagwise.training import check_recipe, load_recipe, make_task, train
from lagwise.training.model import build_model, config_for_data


def opened(folder: Path, *overrides: str, name: str = "classes of text") -> ClassifiedRows:
    data = make_task(recipe(name, folder, *overrides)).open(progress=False)
    assert isinstance(data, ClassifiedRows)
    return data


def test_the_loss_weighs_classes_and_smooths_labels(tmp_path: Path) -> None:
    data = opened(tmp_path, "task.class_weights=balanced", "task.label_smoothing=0.1")
    logits, labels = torch.randn(5, 2), torch.tensor([0, 1, 1, 0, 1])
    counts = data.rows.counts["train"]
    weight = torch.tensor([sum(counts.values()) / (2 * counts[name]) for name in ("no", "yes")])
    each = F.cross_entropy(logits, labels, weight=weight, label_smoothing=0.1, reduction="none")
    out = SimpleNamespace(logits=logits)
    torch.testing.assert_close(data.loss(out, labels), each.mean())
    torch.testing.assert_close(data.loss(out, labels, num_items_in_batch=20), each.sum() / 20)


def test_batches_of_a_training_have_few_lengths_and_the_same_loss(tmp_path: Path) -> None:
    made = recipe("classes of text", tmp_path, "data.length=64")
    data = check_recipe(made).open(progress=False)
    model, longest = build_model(made, data).eval(), data.sizes(4).longest
    for length, padded in ((16, 16), (17, 18), (35, 36), (longest, longest)):
        row = {"input_ids": torch.arange(length), "label": 1}
        batches = data.collate([row]), data.collate([row], training=False)
        assert [batch["input_ids"].shape[1] for batch in batches] == [padded, length]
        losses = [data.loss(model(**batch), batch.pop("labels")) for batch in batches]
        torch.testing.assert_close(*losses)


def test_other_rows_are_scored_with_the_labels_of_the_run(runs: dict[str, Path], tmp_path: Path) -> None:
    run = runs["classes of text"]
    other = tmp_path / "other.csv"
    other.write_text("text,label\ngood film,yes\nbad,yes\n")
    result = evaluate_run(run, source=str(other), progress=False)
    predicted = [row["predicted"] for row in predict_run(run, source=str(other), progress=False)]
    assert result["test"]["accuracy"] == predicted.count("yes") / 2
    assert "valid" not in result
    for cell, message in (("maybe", "is 'maybe', which the model does not know"), ("", "has no label")):
        other.write_text(f"text,label\ngood film,yes\nbad,{cell}\n")
        with pytest.raises(ValueError, match=f"row 2 of .*{message}"):
            evaluate_run(run, source=str(other), progress=False)


def test_predictions_come_in_the_order_of_the_rows(runs: dict[str, Path]) -> None:
    run = runs["classes of text"]
    texts = ["good " * n for n in (9, 1, 30, 4)]
    together = predict_run(run, [{"text": text} for text in texts], progress=False)
    alone = [predict_run(run, [{"text": text}], progress=False)[0] for text in texts]
    for one, other in zip(together, alone, strict=True):
        assert one["p(yes)"] == pytest.approx(other["p(yes)"], abs=1e-5)
        assert one["p(yes)"] + one["p(no)"] == pytest.approx(1, abs=1e-5)


def test_scores_equal_their_definitions() -> None:
    true, predicted = np.array([0, 0, 1, 2, 2, 2]), np.array([0, 1, 1, 2, 2, 0])
    scores, details = classification_scores(predicted, true, ("a", "b", "c"))
    assert scores["accuracy"] == pytest.approx(4 / 6)
    assert scores["macro_f1"] == pytest.approx((0.5 + 2 / 3 + 0.8) / 3)
    assert details["confusion"] == [[1, 1, 0], [0, 1, 0], [1, 0, 2]]
    assert details["majority"] == 0.5
    assert "f1" not in scores
    scores, _ = classification_scores(np.array([1, 1, 0, 0, 1]), np.array([1, 1, 1, 0, 0]), ("no", "yes"))
    assert scores["f1"] == pytest.approx(2 * 2 / (2 * 2 + 1 + 1))
    assert scores["matthews"] == pytest.approx((2 * 1 - 1 * 1) / (3 * 3 * 2 * 2) ** 0.5)
    assert classification_scores(np.ones(3, int), np.ones(3, int), ("no", "yes"))[0]["matthews"] == 0.0
    x, y = np.array([1.0, 2.0, 3.0, 5.0]), np.array([2.0, 1.0, 3.0, 9.0])
    scores, _ = regression_scores(x, y)
    assert scores["pearson"] == pytest.approx(np.corrcoef(x, y)[0, 1])
    assert scores["spearman"] == pytest.approx(0.8)
    assert scores["mean_squared_error"] == pytest.approx(4.5)
    assert regression_scores(np.ones(3), np.arange(3.0))[0]["pearson"] == 0.0


@pytest.mark.parametrize(
    ("override", "message"),
    [
        ("data.source=null", "classification needs rows to learn from"),
        ("data.lengths=[16, 32]", "`lengths` does not apply"),
        ("task.label_smoothing=1.0", r"label_smoothing must be less than 1"),
        ("task.wide=yes please", "wide must be true or false"),
        ("task.labels=stars", "did you mean 'label'"),
        ("task.text=nothing", "nothing"),
        ("task.metric=pearson", "'pearson' is not a metric of classification"),
        ("task.metric=matthew", "did you mean 'matthews'"),
        ("data.format=colla", "did you mean 'cola'"),
    ],
)
def test_wrong_options_are_named(tmp_path: Path, override: str, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        opened(tmp_path, override)


def test_the_headline_is_a_metric_of_the_labels(tmp_path: Path) -> None:
    assert opened(tmp_path).headline.name == "accuracy"
    assert opened(tmp_path, "task.metric=f1").headline.name == "f1"
    numbers = opened(tmp_path, "task.metric=spearman", name="numbers of pairs")
    assert numbers.headline[:2] == ("spearman", "Spearman's correlation")
    with pytest.raises(ValueError, match="'f1' is not a metric of regression"):
        opened(tmp_path, "task.metric=f1", "task.kind=regression")
    rows = [f"{text} {i},{text}" for i in range(20) for text in ("good", "bad", "long")]
    (tmp_path / "three.csv").write_text("\n".join(["text,label", *rows]))
    with pytest.raises(ValueError, match="'f1' needs two classes, got 3"):
        opened(tmp_path, f"data.source={tmp_path / 'three.csv'}", "task.metric=f1")


def test_published_files_work_in_all_commands(runs: dict[str, Path], tmp_path: Path) -> None:
    """Training, evaluation on another file, and prediction of unlabelled rows read the same layout."""
    run = runs["a task of GLUE"]
    dev = run.parent / "data" / "cola" / "dev.tsv"
    assert evaluate_run(run, progress=False)["test"] == evaluate_run(run, source=str(dev), progress=False)["test"]
    assert [row["label"] for row in predict_run(run, source=str(dev), progress=False)][:2] == [
        "unacceptable",
        "acceptable",
    ]
    (tmp_path / "test.tsv").write_text("index\tsentence\n0\tgood film\n")
    (row,) = predict_run(run, source=str(tmp_path / "test.tsv"), progress=False)
    assert list(row) == ["text", "predicted", "p(unacceptable)", "p(acceptable)"]


def test_other_tasks_have_no_formats(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="`format` does not apply to the task LanguageModelling, got 'cola'"):
        make_task(recipe("language modelling", tmp_path, "data.format=cola"))


def test_a_label_of_minus_a_hundred_is_not_ignored(tmp_path: Path) -> None:
    """The Trainer uses -100 for labels to skip."""
    path = tmp_path / "rows.csv"
    path.write_text("text,label\n" + "".join(f"row {i},{-100 if i % 4 else i + 0.5}\n" for i in range(60)))
    data = opened(tmp_path / "data", f"data.source={path}")
    batch = data.collate([data.training_examples(1, 8, 0)[i] for i in range(8)])
    assert (batch["labels"] != -100).all()
    assert (batch["labels"] + 100).abs().min() < 1e-4


@pytest.mark.parametrize("separate", [False, True])
def test_a_pipeline_predicts_pairs_as_the_run_does(separate: bool, tmp_path: Path) -> None:
    made = recipe("numbers of pairs", tmp_path / "data", f"task.separate={separate}")
    path = tmp_path / "data" / "pairs.csv"
    lines = path.read_text().splitlines()
    path.write_text("\n".join([lines[0], *(line.rpartition(",")[0] + f",{i % 2}" for i, line in enumerate(lines[1:]))]))
    run = train(made, tmp_path / "run", progress=False)
    expected = predict_run(run, [{"one": "bad film", "two": "good"}], progress=False)[0]
    classify = pipeline("text-classification", model=str(run), tokenizer=str(run))
    found = classify({"text": "bad film", "text_pair": "good"})
    assert found["label"] == expected["predicted"]
    assert found["score"] == pytest.approx(expected[f"p({expected['predicted']})"], abs=1e-5)


def test_options_that_do_not_apply_to_numbers_are_refused(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="do not apply to regression"):
        opened(tmp_path, "task.class_weights=balanced", name="numbers of pairs")


def test_a_run_of_series_in_lines_predicts_lines_without_labels(tmp_path: Path) -> None:
    random = np.random.default_rng(0)
    values = random.normal(size=(40, 16)) + np.repeat([[0], [3]], 20, axis=0)
    head = ",".join(f"t{i}" for i in range(16))
    lines = [",".join(map(str, row)) for row in values.tolist()]
    labelled = [f"{line},{'low' if i < 20 else 'high'}" for i, line in enumerate(lines)]
    (tmp_path / "train.csv").write_text("\n".join([f"{head},label", *labelled]))
    (tmp_path / "new.csv").write_text("\n".join([head, *lines]))
    made = load_recipe("signal", ["model=linear", "task.stride=1"])
    made.data.source = str(tmp_path / "train.csv")
    run = train(made, tmp_path / "run", progress=False)
    assert "lines: true" in (run / "recipe.yaml").read_text()
    predicted = predict_run(run, source=str(tmp_path / "new.csv"), progress=False)
    assert [row["predicted"] for row in predicted] == ["low"] * 20 + ["high"] * 20
    with pytest.raises(ValueError, match="has no column 'label'"):
        evaluate_run(run, source=str(tmp_path / "new.csv"), progress=False)


@pytest.mark.parametrize(
    ("shape", "stride", "message"),
    [
        ((3, 200), 16, r"3 samples of 200 features, less than 16 .*transpose them .*signal-steps.*stride=1` \(to 3"),
        ((3, 200), None, r"3 samples of 200 features, less than 16 samples, .*beside the features; .*transpose them "),
        ((1, 200), None, "1 sample of 200 features, less than 2 samples, which a series has at least; .*transpose"),
        ((1, 200), 1, "1 sample of 200 features, less than 2 samples, which a series has at least; .*transpose"),
        ((1, 1), 1, "1 sample of 1 feature, less than 2 samples.*signal-steps$"),
        ((4, 1), 8, "4 samples of 1 feature, less than 8 samples.*signal-steps; if the series are so short"),
    ],
)
def test_series_shorter_than_a_step_are_refused(
    tmp_path: Path, shape: tuple[int, int], stride: int | None, message: str
) -> None:
    series = np.random.default_rng(0).normal(size=(40, *shape))
    np.savez(tmp_path / "a.npz", input_values=series, label=np.arange(40) % 2)
    task = make_task(load_recipe("signal", [f"data.source={tmp_path / 'a.npz'}", f"task.stride={stride or 'null'}"]))
    with pytest.raises(ValueError, match=message) as error:
        task.open(progress=False)
    assert ("transpose" in str(error.value)) == (shape[1] > shape[0])
    if shape[0] > 1:
        task = make_task(load_recipe("signal", [f"data.source={tmp_path / 'a.npz'}", "task.stride=1"]))
        notes = task.open(progress=False).notes()
        assert any(f"40 series of {shape[0]} samples and {shape[1]} feature" in note for note in notes)


@pytest.mark.parametrize(("samples", "stride"), [(5, 1), (511, 1), (1400, 5), (9000, 16)])
def test_the_stride_is_found_in_the_data(tmp_path: Path, samples: int, stride: int) -> None:
    series = np.random.default_rng(0).normal(size=(20, samples, 1))
    np.savez(tmp_path / "a.npz", input_values=series, label=np.arange(20) % 2)
    made = load_recipe("signal", ["training.steps=1", "model.hidden_size=8", "model=tnn"])
    made.data.source = str(tmp_path / "a.npz")
    data = make_task(made).open(progress=False)
    assert (data.resolved()["stride"], config_for_data(made, data).inputs["stride"]) == (stride, stride)
    if stride != 5:
        return
    run = train(made, tmp_path / "run", progress=False)
    assert load_recipe(str(run / "recipe.yaml")).task["stride"] == stride
    np.savez(tmp_path / "b.npz", input_values=series[:, :300], label=np.arange(20) % 2)
    again = load_recipe("signal", ["training.steps=1", "training.first_answer=none", f"model.init_from={run}"])
    again.data.source = str(tmp_path / "b.npz")
    assert load_model(train(again, tmp_path / "again", progress=False))[0].config.inputs["stride"] == stride


def loud_and_quiet(path: Path) -> Path:
    """Slow and fast waves whose amplitudes differ by six orders of magnitude, of several lengths."""
    random = np.random.default_rng(0)
    lines = []
    for number in range(150):
        wave = np.sin(np.arange(random.integers(60, 90)) * (0.2 + 0.5 * (number % 2)) + random.uniform(0, 6))
        wave = (wave + 0.1 * random.normal(size=len(wave))) * 10.0 ** random.uniform(-5, 1)
        lines.append(json.dumps({"input_values": wave[:, None].tolist(), "label": "sf"[number % 2]}))
    path.write_text("\n".join(lines))
    return path


@pytest.mark.parametrize(
    "own", ["model.causal=true", "model.inputs={name: values, by_row: false}", "model.causal=false"]
)
def test_only_two_sided_models_have_a_scale_for_each_series(own: str, tmp_path: Path) -> None:
    wanted = load_recipe("series", [own])
    wanted.data.source = str(loud_and_quiet(tmp_path / "waves.jsonl"))
    data = make_task(wanted).open(progress=False)
    assert config_for_data(wanted, data).inputs.get("by_row", False) == (own == "model.causal=false")
    assert "by_row" not in data.linear_rows().fields["inputs"]


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


def test_a_model_trained_without_gaps_says_so(tmp_path: Path) -> None:
    random = np.random.default_rng(0)
    x = np.nan_to_num(np.stack([series(random, number % 2) for number in range(40)]))
    np.savez(tmp_path / "data.npz", input_values=x, label=np.arange(40) % 2)
    recipe = load_recipe("signal", ["task.stride=4", "training.first_answer=none", *SMALL])
    recipe.data.source = str(tmp_path / "data.npz")
    train(recipe, tmp_path / "run")
    with pytest.raises(ValueError, match="NaN at position 3, but the model was trained without gaps"):
        predict_run(tmp_path / "run", [{"input_values": [1, 2, 3, np.nan, 5]}], progress=False)
