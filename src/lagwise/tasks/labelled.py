"""Rows with labels, classes or numbers: what the tasks that classify share, with the tables and figures of results."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import cached_property
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from lagwise.data.options import DataOptions
from lagwise.tables import counted, known
from lagwise.tasks.base import Metric, Table, Task, TaskData
from lagwise.tasks.figures import Figures, Log, confusion_matrix, metric_curve, predicted_against_true
from lagwise.tasks.scores import (
    METRICS,
    best_threshold,
    classification_scores,
    headline_of,
    regression_scores,
    several_scores,
)

MAX_STRIDE = 16  # samples of a step, where it is found in the data
_SHOWN = 20  # classes of a line
_MAX_CLASSES = 20  # a printed confusion matrix has no more
_SAME_ERROR = 0.999  # share of a mean squared error that is not clearly smaller than it
_SCORED = ("valid", "test", "known_positions")
_HALF = 0.5  # the probability above which a row has one of several labels, where no other is known


def threshold_of(config: Any) -> float:
    """The probability above which a model gives a row one of several labels."""
    return getattr(config, "threshold", None) or _HALF


class Labelled(Task):
    """A task with labels, whose results are scores, a confusion matrix and figures by class. Abstract."""

    headline: Metric = headline_of("accuracy")
    metric: str | None = None  #: the headline, where it was chosen
    threshold: float | None = None  #: the probability above which a row has one of several labels
    stride: int = 1  #: samples of a series for each step of the model

    def __init__(self, data: DataOptions, label_smoothing: float = 0.0):
        super().__init__(data)
        self.label_smoothing = label_smoothing

    @cached_property
    def source(self) -> Any:
        """The rows of the data, not yet read."""
        assert self.data.source is not None
        return self.rows(self.data.source)

    def steps(self, samples: int) -> int:
        """Return the steps of the model for so many samples of a series."""
        return -(-samples // self.stride)

    def tables(self, evaluation: Mapping[str, Any]) -> list[Table]:
        """Return the scores of each split; for classes also the test rows by class, and the confusion matrix if it is
        not too wide; for events also the test scores at known positions."""
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
        noun = "class" if "confusion" in evaluation else "label"
        tables.append(Table(f"Test {unit} by {noun}", (noun, "precision", "recall", "F1", unit), by_class))
        if "confusion" in evaluation and len(evaluation["labels"]) <= _MAX_CLASSES:
            title = f"Test {unit} by true class (down) and predicted class (across)"
            matrix = zip(evaluation["labels"], evaluation["confusion"], strict=True)
            tables.append(Table(title, ("", *evaluation["labels"]), [(name, *row) for name, row in matrix]))
        return [*tables, *_mistakes(evaluation)]

    def figures(self, metrics: Log, evaluation: Mapping[str, Any] | None) -> Figures:
        """The learning curve by the headline, and the confusion matrix or predicted against true numbers."""
        is_regression = any("eval_pearson" in line for line in metrics)
        several = any("eval_micro_f1" in line for line in metrics)
        name = self.metric or ("pearson" if is_regression else "micro_f1" if several else "accuracy")
        chance = evaluation["majority"] if evaluation is not None and name == "accuracy" else None
        figures = {"learning": lambda: metric_curve(metrics, name, METRICS[name], chance)}
        if evaluation and "confusion" in evaluation:
            figures["confusion"] = lambda: confusion_matrix(evaluation["confusion"], evaluation["labels"])
        elif evaluation and is_regression:
            figures["predictions"] = lambda: predicted_against_true(evaluation["predicted"], evaluation["true"])
        return figures

    def _answer(self, model: Any, output: np.ndarray) -> dict[str, Any]:
        """``predicted``, the likeliest class, the number, or all labels that are likely enough, between ``|``; and for
        classes and labels a column of probabilities for each."""
        if model.config.num_labels == 1:
            return {"predicted": float(output[0])}
        names, logits = class_names(model.config), torch.tensor(output, device="cpu")
        if model.config.problem_type == "multi_label_classification":
            shares, threshold = logits.sigmoid().tolist(), threshold_of(model.config)
            predicted = "|".join(name for name, share in zip(names, shares, strict=True) if share > threshold)
        else:
            shares, predicted = logits.softmax(-1).tolist(), names[int(logits.argmax())]
        return {"predicted": predicted, **{f"p({n})": round(p, 6) for n, p in zip(names, shares, strict=True)}}


def check_samples(task: Any, features: int, longest: int) -> None:
    """Raise ValueError if no training series fills a step of the model, or if its stride was found in the data and all
    are very short beside their features, as in arrays of another layout. longest: samples of the longest series."""
    stride, doubted = task.stride, task.finds_stride and features > longest > 1
    min_samples = MAX_STRIDE if doubted else max(2, stride)
    if longest >= min_samples:
        return
    samples = f"{counted(longest, 'sample')} of {counted(features, 'feature')}"
    hints = ["if each line or row is a sample, not a series, use the recipe signal-steps"]
    if features > longest:
        hints.insert(0, "if arrays are (rows, channels, samples), transpose them to (rows, samples, channels)")
    if longest > 1:
        hints.append(f"if the series are so short, give `stride=1` (to {longest})")
    why = "which a step of the model takes (`stride`)" if stride > 1 else "which a series has at least"
    why = "which is little beside the features" if doubted else why
    raise ValueError(
        f"the longest series of {task.data.source!r} has {samples}, less than {min_samples} samples, {why}; "
        f"{'; '.join(hints)}"
    )


class LabelledRows(TaskData):
    """The rows of a task, with a label each, or several. Abstract.

    Attributes:
        rows: the rows of the run's own data, in splits; None for other data.
        label_names: names of the classes, by id; None for numbers.
        several: whether a row may have several labels.
    """

    rows: Any
    several: bool = False
    label_names: tuple[str, ...] | None
    weights: Tensor | None = None  #: the weight of each class, where they differ
    label_variance: float = 1.0
    _labels: dict[str, Any]  # of the rows to evaluate on, by split
    _max_mistakes: int = 10  # wrong predictions that are shown

    def __init__(self, task: Labelled, tokenizer: Any, rows: Any):
        super().__init__(task, tokenizer)
        self.rows = rows
        if rows is not None:
            self.label_names = rows.label_names
            self._scored = {split: rows.splits[split] for split in ("valid", "test")}
            self._labels = {split: each["label"][:] for split, each in self._scored.items()}

    def _shown(self, rows: Any, i: int) -> dict[str, Any]:
        """A row for people."""
        raise NotImplementedError

    def constant_scores(self) -> dict[str, float]:
        if self.several:
            return {}
        train, valid = (np.asarray(self.rows.splits[split]["label"][:]) for split in ("train", "valid"))
        if self.label_names is None:
            return {"mean_squared_error": float(np.square(valid - train.mean()).mean())}
        return {"accuracy": float(np.bincount(valid).max() / len(valid))}

    def notes(self) -> Sequence[str]:
        counts = class_counts(self.rows.counts.get("train", {}), "labels" if self.several else "classes")
        return [*self.rows.describe().splitlines(), *counts]

    def loss(self, outputs: Any, labels: Tensor, num_items_in_batch: Any = None) -> Tensor:
        """Compute the cross-entropy with class weights and label smoothing, of classes or of shares of mixed ones, or
        of each of several labels; or the squared error over the labels' variance: a mean over the rows of a step."""
        logits, smoothing = outputs.logits.float(), self.task.label_smoothing
        if self.label_names is None:
            each = (logits[:, 0] - labels).square() / self.label_variance
        elif self.several:
            smooth = labels * (1 - smoothing) + smoothing / 2
            each = F.binary_cross_entropy_with_logits(logits, smooth, reduction="none").mean(1)
        else:
            weight = None if self.weights is None else self.weights.to(logits)
            each = F.cross_entropy(logits, labels, weight=weight, label_smoothing=smoothing, reduction="none")
        if num_items_in_batch is None:
            return each.mean()
        return each.sum() * labels[0].numel() / num_items_in_batch  # the Trainer counts every share of a mixed label

    def reduce(self, logits: Tensor, labels: Tensor) -> tuple[Tensor, Tensor]:
        return logits.float(), labels

    def metrics(self, loss: float, predictions: Any = None, labels: Any = None) -> dict[str, float]:
        return self._of_labels(np.asarray(predictions), np.asarray(labels), _HALF)[0]

    @property
    def calibrates(self) -> bool:  # type: ignore[override]
        return self.several

    def calibrate(self, model: Any, logits: np.ndarray, labels: np.ndarray) -> np.ndarray:
        """Set the threshold of several labels in a model's configuration, that of the task or the best of some rows,
        and return these rows' logits, moved so that the threshold is at 0.5."""
        if not self.several:
            return logits
        threshold = self.task.threshold or best_threshold(logits, labels)
        model.config.threshold = threshold
        return logits - np.float32(np.log(threshold / (1 - threshold)))

    def _is_fitted(self, model: Any, split: str) -> bool:
        """Whether a first answer, alone or in a model, was fitted to the validation rows, once its penalty was
        chosen."""
        return split == "valid" and (model.config.model_type == "lagwise-linear" or model.config.wide is not None)

    def _scores(self, split: str, measured: Sequence[Any], model: Any) -> dict[str, Any]:
        """Scores with mistakes; of classes also the confusion matrix and scores by class, those of the last split."""
        kind = "regression" if self.label_names is None else "several labels" if self.several else "classification"
        logits, labels = np.stack(measured), np.asarray(self._labels[split])
        threshold = threshold_of(model.config)
        scores, details = self._of_labels(logits, labels, threshold)
        if self.several:
            assert self.label_names is not None
            worst = worst_of_several(logits, labels, self.label_names, threshold, self._max_mistakes)
        else:
            worst = worst_rows(logits, labels, self.label_names, self._max_mistakes)
        mistakes = [{**self._shown(self._scored[split], i), **each} for i, each in worst.items()]
        about = {"kind": kind, "labels": self.label_names, "mistakes": mistakes}
        return {split: {**scores, "rows": len(labels)}, **details, **about}

    def _of_labels(
        self, logits: np.ndarray, labels: np.ndarray, threshold: float
    ) -> tuple[dict[str, float], dict[str, Any]]:
        if self.label_names is None:
            return regression_scores(logits[:, 0], labels)
        if self.several:
            return several_scores(logits > np.log(threshold / (1 - threshold)), labels, self.label_names)
        return classification_scores(logits.argmax(-1), labels, self.label_names)


def checked_class_weights(weights: str | dict[str, float]) -> str | dict[str, float]:
    """The option ``task.class_weights``, a word or the weights of some classes. ValueError for any other value."""
    if isinstance(weights, str):
        return known(weights, ("none", "balanced"), "`class_weights`")
    if not all(weight > 0 for weight in weights.values()):
        raise ValueError(f"`class_weights` must be greater than 0, got {weights}")
    return weights


def class_weights(weights: str | dict[str, float], counts: Mapping[str, float]) -> Tensor | None:
    """The weight of each class, of which there are ``counts``: those given, the others having 1, or the inverse of its
    share, 1 if all shares are equal; a class without rows counts as if it had one. None for equal weights."""
    if isinstance(weights, dict):
        for name in weights:
            known(name, counts, "class in `class_weights`")
        return torch.tensor([weights.get(name, 1.0) for name in counts])
    rows = torch.tensor([*counts.values()])
    return None if weights == "none" else rows.sum() / (len(rows) * rows.clamp(min=1))


def class_fields(names: Sequence[str]) -> dict[str, Any]:
    """The fields of a model's configuration that define its classes."""
    labels = dict(enumerate(names))
    return {"num_labels": len(labels), "id2label": labels, "label2id": {name: i for i, name in labels.items()}}


def class_names(config: Any) -> tuple[str, ...]:
    """The classes of a model by id, from its configuration."""
    return tuple(config.id2label[i] for i in range(config.num_labels))


def class_counts(counts: Mapping[str, int], noun: str = "classes") -> list[str]:
    """A line with the number of training rows of each class; of many classes, of the most and the least common."""
    ordered = sorted(counts.items(), key=lambda each: -each[1])
    shown = [f"{name} {count:,}" for name, count in ordered]
    if len(shown) > _SHOWN:
        shown = [*shown[: _SHOWN - 3], "...", *shown[-3:]]
    return [f"{noun} in train: {', '.join(shown)}"] if shown else []


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
    logits: np.ndarray, labels: np.ndarray, names: Sequence[str] | None, limit: int = 10
) -> dict[int, dict[str, Any]]:
    """The most confident wrong predictions, by the indices of their rows; of numbers (``names`` None) the predictions
    with the largest errors."""
    if names is None:
        worst = np.argsort(-np.abs(logits[:, 0] - labels), kind="stable")[:limit].tolist()
        return {i: {"true": float(labels[i]), "predicted": float(logits[i, 0])} for i in worst}
    shares = torch.tensor(logits, device="cpu").softmax(-1).numpy()
    predicted = shares.argmax(-1)
    wrong = np.flatnonzero(predicted != labels)
    worst = wrong[np.argsort(-shares[wrong, predicted[wrong]], kind="stable")][:limit].tolist()
    return {
        i: {
            "true": names[labels[i]],
            "predicted": names[predicted[i]],
            "probability": float(shares[i, predicted[i]]),
        }
        for i in worst
    }


def worst_of_several(
    logits: np.ndarray, labels: np.ndarray, names: Sequence[str], threshold: float, limit: int = 10
) -> dict[int, dict[str, Any]]:
    """The rows with wrong labels whose mean cross-entropy is largest, by their indices."""
    shares, true = torch.tensor(logits, device="cpu").sigmoid().numpy(), labels.astype(bool)
    predicted = shares > threshold
    losses = -np.log(np.where(true, shares, 1 - shares).clip(1e-9)).mean(1)
    wrong = np.flatnonzero((predicted != true).any(1))
    worst = wrong[np.argsort(-losses[wrong], kind="stable")][:limit].tolist()

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
