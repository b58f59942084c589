"""The classifier: scikit-learn's conventions, what it reads, and folders."""

from __future__ import annotations

import pickle
from pathlib import Path
from typing import Any
from unittest import SkipTest

import numpy as np
import pandas as pd
import pytest
from sklearn.base import clone
from sklearn.datasets import load_breast_cancer, load_iris, load_wine
from sklearn.linear_model import LogisticRegression
from sklearn.model_selection import cross_val_score
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler
from sklearn.utils import estimator_checks
from transformers import pipeline

import lagwise
from lagwise import LagClassifier

TEXTS = ["a good film", "so bad", "good good", "bad acting", "what a good day", "it is bad"] * 3
LABELS = ["+", "-"] * 9


def waves(n: int = 40, channels: int = 2, length: int = 60) -> tuple[np.ndarray, np.ndarray]:
    """Series of two classes, by their frequency."""
    random, y = np.random.default_rng(0), np.arange(n) % 2
    phase = random.uniform(0, 6, (n, channels, 1))
    return np.sin(np.arange(length) * (0.3 + 0.4 * y)[:, None, None] + phase) + 0.3 * random.normal(
        size=(n, channels, length)
    ), np.array(["slow", "fast"])[y]


@pytest.mark.parametrize("long", [False, pytest.param(True, marks=pytest.mark.slow)])
def test_scikit_learns_conventions(long: bool) -> None:
    skipped, names = set(), []
    for estimator, check in estimator_checks.estimator_checks_generator(LagClassifier()):
        name = check.func.__name__
        if long == (name == "check_classifiers_train"):  # which takes a third of the time
            names.append(name)
            try:
                check(estimator)
            except SkipTest:
                skipped.add(name)
    assert len(names) > (1 if long else 40)
    assert skipped <= {"check_array_api_input"}  # needs an environment variable


def test_a_table_is_classified_as_well_as_by_a_logistic_regression() -> None:
    for load in (load_iris, load_breast_cancer):
        x, y = load(return_X_y=True)
        logistic = make_pipeline(StandardScaler(), LogisticRegression(max_iter=1000))
        own, theirs = (cross_val_score(each, x, y, cv=3).mean() for each in (LagClassifier(), logistic))
        assert own > theirs - 0.015


def test_steps_are_used_where_a_line_does_not_tell_the_classes_apart() -> None:
    x = np.random.default_rng(0).normal(size=(400, 3))
    y = np.abs(x[:, 0]) > 1
    classifier = LagClassifier().fit(x[:300], y[:300])
    assert classifier.model_.config.features["levels"] > 0
    assert classifier.score(x[300:], y[300:]) > 0.95
    noise = np.random.default_rng(1).normal(size=400)
    assert LagClassifier().fit(x, x[:, 0] + 2 * noise > 0).model_.config.features["levels"] == 0


def test_large_columns_keep_their_precision() -> None:
    x = 1.7e9 + np.arange(200.0)[:, None]  # seconds, of which float32 keeps every 128th
    assert LagClassifier().fit(x, x[:, 0] > 1.7e9 + 100).score(x, x[:, 0] > 1.7e9 + 100) > 0.97


def test_series_of_one_length_and_of_several() -> None:
    x, y = waves()
    classifier = LagClassifier().fit(x[:30], y[:30])
    assert (classifier.kind_, classifier.n_features_in_, list(classifier.classes_)) == ("series", 2, ["fast", "slow"])
    assert classifier.score(x[30:], y[30:]) == 1
    cut = [each[:, : 40 + i % 20] for i, each in enumerate(x)]
    ragged = LagClassifier().fit(cut[:30], y[:30])
    assert ragged.score(cut[30:], y[30:]) == 1
    one_by_one = np.concatenate([ragged.predict_proba([each]) for each in cut])
    np.testing.assert_allclose(ragged.predict_proba(cut), one_by_one, atol=1e-5)


@pytest.mark.parametrize("made", [list, np.array, pd.Series, lambda texts: np.array(texts, dtype=object)])
def test_texts_in_any_column(made: Any) -> None:
    classifier = LagClassifier().fit(made(TEXTS), LABELS)
    assert list(classifier.predict(made(["a good one", "", "bad!"]))[[0, 2]]) == ["+", "-"]
    assert np.allclose(classifier.predict_proba(made(["", "good"])).sum(1), 1)


def test_classes_keep_their_type_and_rare_ones_can_weigh_more() -> None:
    random = np.random.default_rng(0)
    x, y = random.normal(size=(300, 1)), np.zeros(300, dtype=np.int8)
    y[:30], x[:30] = 7, x[:30] + 1.5
    plain, balanced = (LagClassifier(class_weight=each).fit(x, y) for each in (None, "balanced"))
    assert balanced.predict(x).dtype == np.int8
    assert (balanced.predict(x) == 7).sum() > 1.5 * (plain.predict(x) == 7).sum()
    texts = ["rare word" if each else "word" for each in y] + ["word"] * 30
    y = np.append(y, np.full(30, 7))
    found = [
        LagClassifier(class_weight=each).fit(texts, y).predict_proba(["word"])[0, 1] for each in (None, "balanced")
    ]
    assert found[1] > 2 * found[0]


@pytest.mark.slow
def test_of_many_rows_some_are_held_out_and_then_fitted_too() -> None:
    random = np.random.default_rng(0)
    x = random.normal(size=(3000, 2))
    y = np.array(["a", "b", "c"])[np.digitize(x @ [1, 2], [-1, 1])]
    y[0] = "r"
    classifier = LagClassifier().fit(x, y)
    assert list(classifier.classes_) == ["a", "b", "c", "r"]
    assert classifier.score(x, y) > 0.85


@pytest.mark.parametrize("kind", ["table", "frame", "series", "texts"])
def test_a_saved_classifier_predicts_the_same_without_a_pickle(kind: str, tmp_path: Path) -> None:
    wine = load_wine(as_frame=True)
    x, y = {
        "table": (wine.data.to_numpy(), wine.target.to_numpy()),
        "frame": (wine.data, wine.target > 0),
        "series": waves(20),
        "texts": (TEXTS, LABELS),
    }[kind]
    classifier = LagClassifier().fit(x, y)
    classifier.save_pretrained(tmp_path / "saved")
    loaded = LagClassifier.from_pretrained(tmp_path / "saved")
    for each in (loaded, pickle.loads(pickle.dumps(classifier))):
        assert np.array_equal(each.predict_proba(x), classifier.predict_proba(x))
        assert np.array_equal(each.predict(x), classifier.predict(x))
        assert each.classes_.dtype == classifier.classes_.dtype
    assert {path.suffix for path in (tmp_path / "saved").iterdir()} <= {".json", ".safetensors", ".jinja", ".py"}
    if kind == "frame":
        with pytest.raises(ValueError, match="feature names"):
            loaded.predict(x.rename(columns={"alcohol": "spirit"}))
    if kind == "texts":
        theirs = pipeline("text-classification", str(tmp_path / "saved"))(["good"])[0]
        assert theirs["label"] == "+"
        assert theirs["score"] == pytest.approx(classifier.predict_proba(["good"])[0, 0], abs=1e-5)
    assert clone(loaded).get_params() == LagClassifier().get_params()


def test_invalid_rows_and_classes(tmp_path: Path) -> None:
    x, y = waves(10)
    for rows, classes, message in [
        ("a text", ["+"], "list of texts, got one"),
        (["a", 3], ["+", "-"], "row 1 is 3"),
        (["a", "b \ud800"], ["+", "-"], "row 1 is not valid Unicode"),
        ([["a", "b"], ["c", "d"]], ["+", "-"], r"rows of several texts are for .* task.text"),
        ([], [], "X is empty"),
        (["a", "b"], ["+", "+"], "at least 2 classes, but y has 1 class, '\\+'"),
        (["a", "b", "c"], ["+", "-"], "inconsistent numbers of samples"),
        ([each[:, :0] for each in x], y, "series 0 has shape"),
        ([x[0], x[1][:1]], ["a", "b"], "series 1 has 1 and series 0 2"),
        (np.where(x > 1, np.nan, x), y, "contains NaN"),
        (np.zeros((0, 2, 5)), [], "there are no series"),
        ([[1.0], [np.inf]], [0, 1], "contains infinity"),
        ([np.zeros(3), np.zeros(4)], [0, 1], r"different lengths; series are \(channels, length\)"),
        (pd.DataFrame({"review": ["a", "b"]}), [0, 1], "the text 'a'; give the column of texts alone"),
    ]:
        with pytest.raises(ValueError, match=message):
            LagClassifier().fit(rows, classes)
    classifier = LagClassifier().fit(x, y)
    with pytest.raises(ValueError, match=r"X must be series .* as in fit, got texts"):
        classifier.predict(["a"])
    with pytest.raises(ValueError, match="series of 1 channels, but fit had 2"):
        classifier.predict(x[:, :1])
    classifier.save_pretrained(tmp_path)
    (tmp_path / "classifier.json").write_text('{"classes": ["a"]}')
    with pytest.raises(ValueError, match=r"classifier.json in .* is damaged"):
        LagClassifier.from_pretrained(tmp_path)


def test_the_name_is_public() -> None:
    assert "LagClassifier" in lagwise.__all__
