"""Tables and figures of the results of classification and regression."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import torch

from lagwise.tasks.base import Table
from lagwise.tasks.figures import Figures, Log, confusion_matrix, metric_curve, predicted_against_true
from lagwise.tasks.scores import METRICS

_MOST_CLASSES = 20  # a printed confusion matrix has no more
_SAME_ERROR = 0.999  # share of a mean squared error that is not clearly smaller than it
_SCORED = ("valid", "test", "known_positions")


def result_tables(evaluation: Mapping[str, Any]) -> list[Table]:
    """Scores of each split; for classes also the test rows by class, and the confusion matrix if it is not too wide;
    for events also the test scores at known positions."""
    splits = [(name.replace("_", " "), evaluation[name]) for name in _SCORED if name in evaluation]
    unit = evaluation["kind"] if evaluation["kind"] in ("steps", "events") else "rows"  # what is counted
    names = [name for name in splits[0][1] if name != "rows"]
    rows = [(split, *(f"{s[name]:.4f}" for name in names), s["rows"]) for split, s in splits]
    tables = [Table("Scores", ("", *(name.replace("_", " ") for name in names), unit), rows)]
    if baselines := evaluation.get("baselines"):
        of_test = {"this run": evaluation["test"], **baselines}
        rows = [(name, *(f"{scores[key]:.4f}" for key in names)) for name, scores in of_test.items()]
        tables.append(Table("Test scores beside simple answers", ("", *(n.replace("_", " ") for n in names)), rows))
    if evaluation["kind"] == "regression":
        return [*tables, *_mistakes(evaluation)]
    by_class = [
        (name, *(f"{s[key]:.3f}" for key in ("precision", "recall", "f1")), s["rows"])
        for name, s in evaluation["classes"].items()
    ]
    what = "class" if "confusion" in evaluation else "label"
    tables.append(Table(f"Test {unit} by {what}", (what, "precision", "recall", "F1", unit), by_class))
    if "confusion" in evaluation and len(evaluation["labels"]) <= _MOST_CLASSES:
        title = f"Test {unit} by true class (down) and predicted class (across)"
        matrix = zip(evaluation["labels"], evaluation["confusion"], strict=True)
        tables.append(Table(title, ("", *evaluation["labels"]), [(name, *row) for name, row in matrix]))
    return [*tables, *_mistakes(evaluation)]


def constant_of(evaluation: Mapping[str, Any]) -> dict[str, float]:
    """Test scores of one answer for all rows, as `TaskData.constant_scores`, from a result."""
    if evaluation.get("kind") in ("classification", "steps"):
        return {"accuracy": evaluation["majority"]}
    return {"mean_squared_error": float(np.var(evaluation["true"]))} if evaluation.get("kind") == "regression" else {}


def constant_note(scores: Mapping[str, float], constant: Mapping[str, float], headline: str, rows: str) -> str | None:
    """A sentence if one answer for all rows scores as well as a model; None if the model is better.

    Accuracies are compared only where they are the headline: by other metrics, a model that is right less often than
    the most common class can be useful.
    """
    if headline == "accuracy" and scores.get("accuracy", 1.0) <= constant.get("accuracy", 0.0):
        answer, name = "the most common class", "accuracy"
    elif scores.get("mean_squared_error", 0.0) >= _SAME_ERROR * constant.get("mean_squared_error", np.inf):
        answer, name = "the mean", "mean_squared_error"
    else:
        return None
    return (
        f"No better than always answering {answer}: {name.replace('_', ' ')} {constant[name]:.4g} on the {rows}, this "
        f"model {scores[name]:.4g}."
    )


def worst_rows(
    logits: np.ndarray, labels: np.ndarray, names: Sequence[str] | None, most: int = 10
) -> dict[int, dict[str, Any]]:
    """The wrong predictions of highest probability by the places of their rows, or of numbers (``names`` None) those
    farthest from the truth."""
    if names is None:
        worst = np.argsort(-np.abs(logits[:, 0] - labels), kind="stable")[:most].tolist()
        return {i: {"true": float(labels[i]), "predicted": float(logits[i, 0])} for i in worst}
    shares = torch.tensor(logits, device="cpu").softmax(-1).numpy()
    predicted = shares.argmax(-1)
    wrong = np.flatnonzero(predicted != labels)
    worst = wrong[np.argsort(-shares[wrong, predicted[wrong]], kind="stable")][:most].tolist()
    return {
        i: {
            "true": names[labels[i]],
            "predicted": names[predicted[i]],
            "probability": float(shares[i, predicted[i]]),
        }
        for i in worst
    }


def worst_of_several(
    logits: np.ndarray, labels: np.ndarray, names: Sequence[str], threshold: float, most: int = 10
) -> dict[int, dict[str, Any]]:
    """The rows with wrong labels whose mean cross-entropy is largest, by their places."""
    shares, true = torch.tensor(logits, device="cpu").sigmoid().numpy(), labels.astype(bool)
    predicted = shares > threshold
    losses = -np.log(np.where(true, shares, 1 - shares).clip(1e-9)).mean(1)
    wrong = np.flatnonzero((predicted != true).any(1))
    worst = wrong[np.argsort(-losses[wrong], kind="stable")][:most].tolist()

    def named(marks: np.ndarray) -> str:
        return ", ".join(name for name, on in zip(names, marks, strict=True) if on) or "none"

    return {i: {"true": named(true[i]), "predicted": named(predicted[i]), "loss": float(losses[i])} for i in worst}


def _mistakes(evaluation: Mapping[str, Any]) -> list[Table]:
    """The worst rows, if the evaluation has them (of images, with the images)."""
    rows = [each for each in evaluation.get("mistakes", ()) if "row" in each]
    if not rows:
        return []
    title = "Largest errors" if evaluation["kind"] == "regression" else "Most confident mistakes"
    head = [name for name in rows[0] if name != "row"]
    shown = [[f"{each[name]:.3g}" if isinstance(each[name], float) else each[name] for name in head] for each in rows]
    return [Table(title, ("row", *head), [(each["row"], *cells) for each, cells in zip(rows, shown, strict=True)])]


def result_figures(metrics: Log, evaluation: Mapping[str, Any] | None, metric: str | None = None) -> Figures:
    """The learning curve by a metric, and the confusion matrix or predicted against true numbers."""
    is_regression = any("eval_pearson" in line for line in metrics)
    several = any("eval_micro_f1" in line for line in metrics)
    name = metric or ("pearson" if is_regression else "micro_f1" if several else "accuracy")
    chance = evaluation["majority"] if evaluation is not None and name == "accuracy" else None
    figures = {"learning": lambda: metric_curve(metrics, name, METRICS[name], chance)}
    if evaluation and "confusion" in evaluation:
        figures["confusion"] = lambda: confusion_matrix(evaluation["confusion"], evaluation["labels"])
    elif evaluation and is_regression:
        figures["predictions"] = lambda: predicted_against_true(evaluation["predicted"], evaluation["true"])
    return figures
