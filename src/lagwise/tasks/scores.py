"""Metrics of predictions, by scikit-learn and scipy."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np


def classification_scores(
    predicted: np.ndarray, true: np.ndarray, names: Sequence[str]
) -> tuple[dict[str, float], dict[str, Any]]:
    """Accuracy and macro F1; and the confusion matrix, figures by class, and the share of the commonest class.

    Shapes: predicted and true ``(rows,)``, places in ``names``. Macro F1 is the mean over the classes that occur among
    the true or predicted ones.
    """
    from sklearn.metrics import accuracy_score, confusion_matrix, f1_score, precision_recall_fscore_support

    labels = list(range(len(names)))
    by_class: Any = precision_recall_fscore_support(true, predicted, labels=labels, zero_division=0)
    scores = {
        "accuracy": float(accuracy_score(true, predicted)),
        "macro_f1": float(f1_score(true, predicted, average="macro", zero_division=0)),
    }
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
