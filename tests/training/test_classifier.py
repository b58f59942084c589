"""The classifier: scikit-learn's conventions, what it reads, and folders."""

from __future__ import annotations

import pickle
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from sklearn.base import clone
from sklearn.exceptions import NotFittedError
from sklearn.model_selection import cross_val_score
from sklearn.utils import get_tags  # type: ignore[missing-module-attribute]
from transformers import pipeline

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


def test_scikit_learn_copies_and_scores_it() -> None:
    assert clone(LagClassifier(class_weight="balanced")).get_params() == {"class_weight": "balanced", "random_state": 0}
    tags = get_tags(LagClassifier())
    assert (tags.input_tags.three_d_array, tags.input_tags.two_d_array) == (True, False)
    assert cross_val_score(LagClassifier(), *waves(), cv=2).mean() > 0.9
    with pytest.raises(NotFittedError):
        LagClassifier().predict(["a"])


@pytest.mark.parametrize("table", [np.eye(3), [[1.0, 2.0]] * 3, pd.DataFrame({"n": [1, 2, 3], "kind": list("aba")})])
def test_tables_are_referred_to_scikit_learn(table: Any) -> None:
    with pytest.raises(ValueError, match=r"sklearn.ensemble.HistGradientBoostingClassifier\(\).fit\(X, y\)"):
        LagClassifier().fit(table, [0, 1, 0])


def test_rows_of_weight_0_do_not_count_and_samples_may_be_missing() -> None:
    x, y = waves(30)
    x[::3, 1, 10:30] = np.nan
    flipped = np.where(np.arange(30) < 10, y[::-1], y)
    counted = np.where(np.arange(30) < 10, 0.0, 1.0)
    assert (LagClassifier().fit(x, flipped, sample_weight=counted).predict(x[:10]) == y[:10]).mean() > 0.8
    texts = [f"{opinion} film" for opinion in ("good", "bad") for _ in range(9)]
    classifier = LagClassifier().fit([*texts, "good"], ["+"] * 9 + ["-"] * 10, sample_weight=[1] * 18 + [0])
    assert classifier.predict(["good"]) == ["+"]


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
    y = np.zeros(300, dtype=np.int8)
    y[:30] = 7
    texts = ["rare word" if each else "word" for each in y] + ["word"] * 30
    y = np.append(y, np.full(30, 7, dtype=np.int8))
    plain, balanced = (LagClassifier(class_weight=each).fit(texts, y) for each in (None, "balanced"))
    assert balanced.predict(texts).dtype == np.int8
    assert balanced.predict_proba(["word"])[0, 1] > 2 * plain.predict_proba(["word"])[0, 1]


@pytest.mark.parametrize("kind", ["series", "texts"])
def test_a_saved_classifier_predicts_the_same_without_a_pickle(kind: str, tmp_path: Path) -> None:
    x, y = {"series": waves(20), "texts": (TEXTS, LABELS)}[kind]
    classifier = LagClassifier().fit(x, y)
    classifier.save_pretrained(tmp_path / "saved")
    loaded = LagClassifier.from_pretrained(tmp_path / "saved")
    for each in (loaded, pickle.loads(pickle.dumps(classifier))):
        assert np.array_equal(each.predict_proba(x), classifier.predict_proba(x))
        assert np.array_equal(each.predict(x), classifier.predict(x))
        assert each.classes_.dtype == classifier.classes_.dtype
    assert {path.suffix for path in (tmp_path / "saved").iterdir()} <= {".json", ".safetensors", ".jinja", ".py"}
    if kind == "texts":
        theirs = pipeline("text-classification", str(tmp_path / "saved"))(["good"])[0]
        assert theirs["label"] == "+"
        assert theirs["score"] == pytest.approx(classifier.predict_proba(["good"])[0, 0], abs=1e-5)
    assert clone(loaded).get_params() == LagClassifier().get_params()


def test_invalid_rows_and_classes(tmp_path: Path) -> None:
    x, y = waves(10)
    for rows, classes, message in [
        ("a text", ["+"], "list of texts, got one"),
        (["a", 3], ["+", "-"], "row 1: 'text' must be a string, got int"),
        (["a", "b \ud800"], ["+", "-"], "row 1: 'text' is not valid Unicode"),
        ([["a", "b"], ["c", "d"]], ["+", "-"], r"rows of several texts are for the task .*, with text=\[one, two\]"),
        ([], [], "X is empty"),
        (["a", "b"], ["+", "+"], "at least 2 classes, but y has 1 class, '\\+'"),
        (["a", "b", "c"], ["+", "-"], "inconsistent numbers of samples"),
        ([each[:, :0] for each in x], y, "series 0 has shape"),
        ([x[0], x[1][:1]], ["a", "b"], "series 1 has 1 and series 0 2"),
        (np.zeros((0, 2, 5)), [], "there are no series"),
        (np.where(x > 1, np.inf, x), y, "contains infinity"),
        ([np.zeros(3), np.zeros(4)], [0, 1], r"neither texts nor series \(n, channels, length\)"),
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
