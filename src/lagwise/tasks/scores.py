"""Metrics of predictions, by scikit-learn and scipy."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

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
}
_OF_NUMBERS = ("pearson", "spearman")


def headline_of(name: str) -> Metric:
    """One of `METRICS` as the headline of a task."""
    return Metric(name, METRICS[name])


def check_metric(metric: str | None, kind: str, classes: Sequence[str] | None = None) -> None:
    """ValueError for an unknown metric, or one of another kind of labels, as far as that is known (``auto``)."""
    if metric is None:
        return
    known(metric, METRICS, "task.metric")
    if kind != "auto" and (metric in _OF_NUMBERS) != (kind == "regression"):
        raise ValueError(f"task.metric {metric!r} is not a metric of {kind}")
    if metric == "f1" and classes is not None and len(classes) != 2:
        raise ValueError(f"task.metric 'f1' needs two classes, got {len(classes)}; for more there is 'macro_f1'")


def classification_scores(
    predicted: np.ndarray, true: np.ndarray, names: Sequence[str]
) -> tuple[dict[str, float], dict[str, Any]]:
    """Accuracy, macro F1, Matthews' correlation, for two classes the F1 of the second; and the confusion matrix, scores
    by class, and the share of the most common class.

    Shapes: predicted and true ``(rows,)``, places in ``names``. Macro F1 is the mean over the classes that occur among
    the true or predicted ones. Matthews' correlation is 0 if all rows have one class, or are predicted to have one.
    Without rows everything is 0.
    """
    from sklearn.metrics import (
        accuracy_score,
        confusion_matrix,
        f1_score,
        matthews_corrcoef,
        precision_recall_fscore_support,
    )

    labels = list(range(len(names)))
    if not len(true):  # scikit-learn refuses empty input
        empty = dict.fromkeys(("accuracy", "macro_f1", "matthews", *(["f1"] if len(names) == 2 else [])), 0.0)
        of_class = {"precision": 0.0, "recall": 0.0, "f1": 0.0, "rows": 0}
        confusion = np.zeros((len(names), len(names)), dtype=int).tolist()
        return empty, {"confusion": confusion, "classes": dict.fromkeys(names, of_class), "majority": 0.0}
    by_class: Any = precision_recall_fscore_support(true, predicted, labels=labels, zero_division=0)
    scores = {
        "accuracy": float(accuracy_score(true, predicted)),
        "macro_f1": float(f1_score(true, predicted, average="macro", zero_division=0)),
        "matthews": float(matthews_corrcoef(true, predicted)) if np.ptp(true) and np.ptp(predicted) else 0.0,
    }
    if len(names) == 2:
        scores["f1"] = float(f1_score(true, predicted, pos_label=1, zero_division=0))
    details = {
        "confusion": confusion_matrix(true, predicted, labels=labels).tolist(),
        "classes": {
            name: {"precision": float(p), "recall": float(r), "f1": float(f), "rows": int(n)}
            for name, p, r, f, n in zip(names, *by_class, strict=True)
        },
        "majority": float(np.bincount(true, minlength=len(names)).max() / len(true)),
    }
    return scores, details


def regression_scores(predicted: np.ndarray, true: np.ndarray) -> tuple[dict[str, float], dict[str, Any]]:
    """Pearson's and Spearman's correlation (0 where either side is constant) and the mean squared error; and the pairs.

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
