"""Metrics of predictions, by scikit-learn and scipy."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from lagwise.data.labels import MULTI_LABEL
from lagwise.evaluation.events import scores_by_class
from lagwise.tables import known
from lagwise.tasks.base import Metric

#: metrics for which higher is better, and their display names
METRICS = {
    "accuracy": "accuracy",
    "macro_f1": "macro F1",
    "matthews": "Matthews' correlation",
    "f1": "F1",
    "pearson": "Pearson's correlation",
    "spearman": "Spearman's correlation",
    "micro_f1": "micro F1",
    "exact_match": "exact match",
}
_NOTHING = {"precision": 0.0, "recall": 0.0, "f1": 0.0, "rows": 0}  # scores of a class without rows
_OF_NUMBERS = ("pearson", "spearman")
_OF_SEVERAL = ("micro_f1", "macro_f1", "exact_match")
_THRESHOLDS = [round(i / 20, 2) for i in range(1, 20)]  # probabilities to try
_ROWS_TO_CHOOSE = 100
_DEFAULT = {"regression": "pearson", MULTI_LABEL: "micro_f1"}


def headline_of(name: str) -> Metric:
    """Return one of `METRICS` as the headline of a task."""
    return Metric(name, METRICS[name])


def default_metric(kind: str) -> str:
    """The headline of a kind of labels."""
    return _DEFAULT.get(kind, "accuracy")


def check_metric(metric: str | None, kind: str, classes: Sequence[str] | None = None) -> None:
    """Raise ValueError for an unknown metric, or one of another kind of labels, as far as that is known (``auto``)."""
    if metric is None:
        return
    known(metric, METRICS, "`metric`")
    fits = metric not in (*_OF_NUMBERS, "micro_f1", "exact_match")
    if kind in _DEFAULT:
        fits = metric in (_OF_NUMBERS if kind == "regression" else _OF_SEVERAL)
    if kind != "auto" and not fits:
        raise ValueError(f"`metric` {metric!r} is not a metric of {kind}")
    if metric == "f1" and classes is not None and len(classes) != 2:
        raise ValueError(f"`metric` 'f1' needs two classes, got {len(classes)}; for more there is 'macro_f1'")


def classification_scores(
    predicted: np.ndarray, true: np.ndarray, names: Sequence[str]
) -> tuple[dict[str, float], dict[str, Any]]:
    """Compute the accuracy, macro F1, Matthews' correlation, for two classes the F1 of the second; and the confusion
    matrix, scores by class, and the share of the most common class.

    Shapes: predicted and true ``(rows,)``, indices in ``names``. Macro F1 is the mean over the classes that occur among
    the true or predicted ones. Matthews' correlation is 0 if all rows have one class, or are predicted to have one.
    Without rows everything is 0.
    """
    from sklearn.metrics import confusion_matrix, matthews_corrcoef

    labels = list(range(len(names)))
    if not len(true):  # scikit-learn refuses empty input
        none = dict.fromkeys(("accuracy", "macro_f1", "matthews", *["f1"] * (len(names) == 2)), 0.0)
        confusion = np.zeros((len(names), len(names)), dtype=int).tolist()
        return none, {"confusion": confusion, "classes": dict.fromkeys(names, _NOTHING), "majority": 0.0}
    classes, confusion = (
        scores_by_class(true, predicted, names, labels=labels),
        confusion_matrix(true, predicted, labels=labels),
    )
    occurs = confusion.sum(0) + confusion.sum(1) > 0
    scores = {
        "accuracy": float(np.mean(true == predicted)),
        "macro_f1": float(np.mean([each["f1"] for each, used in zip(classes.values(), occurs, strict=True) if used])),
        "matthews": float(matthews_corrcoef(true, predicted)) if np.ptp(true) and np.ptp(predicted) else 0.0,
    }
    if len(names) == 2:
        scores["f1"] = classes[names[1]]["f1"]
    majority = float(confusion.sum(1).max() / len(true))
    return scores, {"confusion": confusion.tolist(), "classes": classes, "majority": majority}


def several_scores(
    predicted: np.ndarray, true: np.ndarray, names: Sequence[str]
) -> tuple[dict[str, float], dict[str, Any]]:
    """Return the micro and macro F1, and the share of rows whose labels are all right; and scores by label.

    Shapes: predicted and true ``(rows, labels)``, 0 and 1. Micro F1 counts all labels of all rows together, macro F1 is
    the mean over the labels that occur among the true or predicted ones. Without rows everything is 0.
    """
    from sklearn.metrics import f1_score

    predicted, true = predicted.astype(bool), true.astype(bool)
    if not len(true):
        return dict.fromkeys(_OF_SEVERAL, 0.0), {"classes": dict.fromkeys(names, _NOTHING)}
    classes = scores_by_class(true, predicted, names)
    occurs: Any = np.concatenate([predicted, true]).any(0).tolist()
    occur = [each["f1"] for each, used in zip(classes.values(), occurs, strict=True) if used]
    scores = {
        "micro_f1": float(f1_score(true, predicted, average="micro", zero_division=0)),
        "macro_f1": float(np.mean(occur)) if occur else 0.0,
        "exact_match": float((predicted == true).all(1).mean()),
    }
    return scores, {"classes": classes}


def best_threshold(logits: np.ndarray, true: np.ndarray) -> float:
    """The probability of the sigmoid above which predictions of labels ``(rows, labels)`` have the largest micro F1;
    0.5 where all have the same, and for fewer than 100 rows, of which the best is chance."""
    if len(true) < _ROWS_TO_CHOOSE:
        return 0.5
    shares = 1 / (1 + np.exp(-logits.astype(np.float64)))

    def score(threshold: float) -> float:
        predicted = shares > threshold
        return 2 * (predicted & true).sum() / max(1, predicted.sum() + true.sum())

    true = true.astype(bool)
    return max(_THRESHOLDS, key=lambda each: (score(each), -abs(each - 0.5)))


def regression_scores(predicted: np.ndarray, true: np.ndarray) -> tuple[dict[str, float], dict[str, Any]]:
    """Compute Pearson's and Spearman's correlation (0 where either side is constant) and the mean squared error; and
    the pairs.

    Shapes: ``(rows,)`` each.
    """
    from scipy.stats import pearsonr, spearmanr

    predicted, true = predicted.astype(np.float64), true.astype(np.float64)
    varied = np.ptp(predicted) > 0 and np.ptp(true) > 0
    scores = {
        "pearson": float(pearsonr(predicted, true).statistic) if varied else 0.0,
        "spearman": float(spearmanr(predicted, true).statistic) if varied else 0.0,
        "mean_squared_error": float(np.mean((predicted - true) ** 2)),
    }
    return scores, {"predicted": predicted.tolist(), "true": true.tolist()}
