"""Several labels a row: what is trained, scored, predicted and kept."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
import torch
from every_task import recipe
from sklearn.metrics import f1_score
from transformers import pipeline

from lagwise import LagClassifier
from lagwise.data.options import DataOptions
from lagwise.models import StreamingClassifier
from lagwise.models.loading import load_model
from lagwise.runs import evaluate_run, predict_run
from lagwise.tasks import SequenceClassification
from lagwise.tasks.labelled import best_threshold, several_scores
from lagwise.training import make_task, train
from lagwise.training.linear_fits import fit_linear


@pytest.mark.parametrize("first", ["only", "none"])
def test_other_programs_read_the_same_labels(first: str, tmp_path: Path) -> None:
    made = recipe("several labels of text", tmp_path / "data", f"training.first_answer={first}")
    run = train(made, tmp_path / "run", progress=False)
    config = json.loads((run / "config.json").read_text())
    assert config["problem_type"] == "multi_label_classification"
    assert config["threshold"] == 0.5  # of fewer than 100 held-out rows
    row = predict_run(run, [{"text": "good long film"}], progress=False)[0]
    classify = pipeline("text-classification", model=str(run), top_k=None)
    for found in classify("good long film")[0] if first == "none" else classify(["good long film"])[0]:
        assert row[f"p({found['label']})"] == pytest.approx(found["score"], abs=1e-4)
        assert (found["score"] > 0.5) == (found["label"] in row["predicted"].split("|"))
    if first == "only":
        assert row["predicted"] == "good|long"
    with pytest.raises(ValueError, match=r"gives a row several labels; use lagwise\.runs\.predict_run"):
        LagClassifier.from_pretrained(run)


def test_a_threshold_is_that_of_the_recipe_or_the_best_of_the_held_out_rows(tmp_path: Path) -> None:
    made = recipe("several labels of text", tmp_path / "data", "training.first_answer=only", "task.threshold=0.9999999")
    run = train(made, tmp_path / "run", progress=False)
    assert predict_run(run, [{"text": "good long film"}], progress=False)[0]["predicted"] == ""
    assert evaluate_run(run, progress=False)["test"]["micro_f1"] == 0
    random = np.random.default_rng(0)
    true = random.random((300, 4)) < 0.2
    logits = np.where(true, -1.0, -2.0) + 0.1 * random.normal(size=true.shape)
    threshold = best_threshold(logits, true)
    shares = 1 / (1 + np.exp(-logits))
    assert 1 / (1 + np.exp(2)) < threshold < 1 / (1 + np.exp(1))
    assert f1_score(true, shares > threshold, average="micro") > 0.95
    assert best_threshold(logits[:99], true[:99]) == 0.5
    assert best_threshold(np.where(true, 9.0, -9.0), true) == 0.5


def test_the_model_is_compared_at_its_own_threshold(tmp_path: Path) -> None:
    data = make_task(recipe("several labels of text", tmp_path / "data")).open(progress=False)
    random = np.random.default_rng(0)
    true = (random.random((200, 3)) < 0.3).astype(int)
    logits = (np.where(true, -1.0, -3.0)).astype(np.float32)

    class Model:
        class config:
            threshold = None

    moved = data.calibrate(Model, logits, true)
    assert data.metrics(0.0, moved, true)["exact_match"] == 1
    assert data.metrics(0.0, logits, true)["exact_match"] < 1
    assert 0.05 <= Model.config.threshold < 0.27


def test_scores_are_those_of_scikit_learn() -> None:
    random = np.random.default_rng(0)
    true, predicted = random.random((50, 3)) < 0.4, random.random((50, 3)) < 0.5
    scores, details = several_scores(predicted, true, ("a", "b", "c"))
    assert scores["micro_f1"] == pytest.approx(f1_score(true, predicted, average="micro"))
    assert scores["macro_f1"] == pytest.approx(f1_score(true, predicted, average="macro"))
    assert scores["exact_match"] == (true == predicted).all(1).mean()
    assert details["classes"]["b"]["rows"] == true[:, 1].sum()
    assert several_scores(predicted[:0], true[:0], ("a", "b", "c"))[0]["micro_f1"] == 0
    true[:, 2] = predicted[:, 2] = False  # a label that does not occur counts for nothing
    both = f1_score(true[:, :2], predicted[:, :2], average="macro")
    assert several_scores(predicted, true, ("a", "b", "c"))[0]["macro_f1"] == pytest.approx(both)


def test_each_label_has_a_map_of_its_own() -> None:
    from scipy.sparse import csr_matrix

    random = np.random.default_rng(0)
    x = random.normal(size=(400, 12)).astype(np.float32)
    y = (x[:, :3] > [0, 0.5, 1]).astype(np.int64)
    y = np.concatenate([y, np.zeros((400, 1), dtype=np.int64)], 1)  # and one that no row has
    for features in (x, csr_matrix(np.maximum(x, 0))):
        fit = fit_linear(features[:350], y[:350], (features[350:], y[350:]), None)
        assert fit.weights.shape == (4, 12)
        logits = features @ fit.weights.T + fit.biases
        assert ((logits > 0) == y).mean() > 0.9
        assert (fit.held_out[:, 3] < -1).all()


def test_a_stream_has_the_probability_of_each_label(tmp_path: Path) -> None:
    made = recipe("several labels of series", tmp_path / "data", "training.first_answer=only")
    model = load_model(train(made, tmp_path / "run", progress=False))[0]
    samples = np.random.default_rng(0).normal(size=(20, 2)).astype(np.float32)
    found = StreamingClassifier(model).push(samples)
    with torch.no_grad():
        expected = model(input_values=torch.from_numpy(samples)[None]).logits.sigmoid()
    torch.testing.assert_close(found[-1:], expected, rtol=0, atol=1e-5)


@pytest.mark.parametrize(
    ("overrides", "message"),
    [
        (["task.class_weights=balanced"], "does not apply to several labels"),
        (["task.metric=accuracy"], "not a metric of multi_label"),
        (["task.threshold=1.5"], "task.threshold must be less than 1"),
        (["task.label=[good]"], "two or more columns of 0 and 1"),
    ],
)
def test_options_that_do_not_fit_are_refused(overrides: list[str], message: str, tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=message):
        train(recipe("several labels of text", tmp_path / "data", *overrides), tmp_path / "run", progress=False)
    assert not (tmp_path / "run").exists()


def test_a_threshold_is_for_several_labels(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"`threshold` 0\.3 is for several labels"):
        train(recipe("classes of text", tmp_path / "data", "task.threshold=0.3"), tmp_path / "run", progress=False)
    assert SequenceClassification(DataOptions(source="rows.csv"), threshold=0.3).threshold == 0.3
