"""Scores of simple methods on labelled texts, with scikit-learn: the most common class, and bags of words or bytes."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from lagwise.data.labelled_rows import LABEL
from lagwise.tasks.labelled import classification_scores, regression_scores

if TYPE_CHECKING:
    from lagwise.data.labelled_rows import LabelledRows


def majority(rows: LabelledRows) -> dict[str, float]:
    """Test scores of the training part's most common class or, for numbers, mean."""
    train, test = (np.asarray(rows.splits[split][LABEL][:]) for split in ("train", "test"))
    if rows.label_names is None:
        return regression_scores(np.full(len(test), train.mean()), test)[0]
    return classification_scores(np.full(len(test), np.bincount(train).argmax()), test, rows.label_names)[0]


def tf_idf(rows: LabelledRows, *, characters: bool = False) -> dict[str, float]:
    """Test scores of a linear model on TF-IDF features of words and bigrams, or of 2 to 5 characters within words:
    logistic regression (C = 4) or, for numbers, ridge regression (alpha = 1).

    The features of a pair of texts with vectors a and b are a, b, ``|a - b|``, ``a * b`` and their cosine.
    """
    from sklearn.feature_extraction.text import TfidfVectorizer
    from sklearn.linear_model import LogisticRegression, Ridge

    train, test = rows.splits["train"], rows.splits["test"]
    words = TfidfVectorizer(ngram_range=(1, 2), sublinear_tf=True, token_pattern=r"\b\w+\b")
    if characters:
        words = TfidfVectorizer(ngram_range=(2, 5), sublinear_tf=True, analyzer="char_wb")
    words.fit(text for column in rows.columns for text in train[column])
    x, unseen = ([words.transform(split[c][:]) for c in rows.columns] for split in (train, test))
    labels, true = (np.asarray(split[LABEL][:]) for split in (train, test))
    if rows.label_names is None:
        ridge = Ridge(alpha=1.0).fit(_features(x), labels)
        return regression_scores(ridge.predict(_features(unseen)), true)[0]
    logistic = LogisticRegression(C=4.0, tol=1e-6, max_iter=1000).fit(_features(x), labels)
    return classification_scores(logistic.predict(_features(unseen)), true, rows.label_names)[0]


def bag_of_bytes(rows: LabelledRows) -> dict[str, float]:
    """Test scores of logistic regression (C = 1) on the share of each byte in a text, each feature standardized. The
    features of a pair are as in `tf_idf`. ValueError if the labels are numbers."""
    from scipy.sparse import csr_array
    from sklearn.linear_model import LogisticRegression
    from sklearn.pipeline import make_pipeline
    from sklearn.preprocessing import StandardScaler

    if rows.label_names is None:
        raise ValueError("the labels are numbers; a bag of bytes is for classes")

    def shares(text: str) -> np.ndarray:
        counts = np.bincount(np.frombuffer(text.encode(), np.uint8), minlength=256)
        return counts / max(1, counts.sum())

    def features(split: str) -> Any:
        columns = [csr_array(np.array([shares(text) for text in rows.splits[split][name][:]])) for name in rows.columns]
        return _features(columns).toarray()

    labels, true = (np.asarray(rows.splits[split][LABEL][:]) for split in ("train", "test"))
    model = make_pipeline(StandardScaler(), LogisticRegression(max_iter=1000)).fit(features("train"), labels)
    return classification_scores(np.asarray(model.predict(features("test"))), true, rows.label_names)[0]


def _features(vectors: Sequence[Any]) -> Any:
    """Compute the features of single texts or of pairs, as sparse matrices with one row per example."""
    from scipy.sparse import csr_array, hstack

    if len(vectors) == 1:
        return vectors[0]
    a, b = (csr_array(vector) for vector in vectors)
    both = a * b
    return hstack([a, b, abs(a - b), both, csr_array(both.sum(axis=1)[:, None])]).tocsr()
