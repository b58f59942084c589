"""Rows with labels, classes or numbers: what the tasks that classify share, and the scores, tables and figures of
results."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import cached_property
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from lagwise.data.labels import MULTI_LABEL
from lagwise.data.options import DataOptions
from lagwise.evaluation.events import scores_by_class
from lagwise.tables import counted, known
from lagwise.tasks.base import Metric, Table, Task, TaskData
from lagwise.tasks.figures import Figures, Log, confusion_matrix, metric_curve, predicted_against_true

MAX_STRIDE = 16  # samples of a step, where it is found in the data
_SHOWN = 20  # classes of a line
_MAX_CLASSES = 20  # a printed confusion matrix has no more
_SAME_ERROR = 0.999  # share of a mean squared error that is not clearly smaller than it
_SCORED = ("valid", "test", "known_positions")
_HALF = 0.5  # the probability above which a row has one of several labels, where no other is known
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


def threshold_of(config: Any) -> float:
    """The probability above which a model gives a row one of several labels."""
    return getattr(config, "threshold", None) or _HALF


def headline_of(name: str) -> Metric:
    """Return one of `METRICS` as the headline of a task."""
    return Metric(name, METRICS[name])


class Labelled(Task):
    """A task with labels, whose results are scores, a confusion matrix and figures by class. Abstract."""

    headline: Metric = headline_of("accuracy")
    threshold: float | None = None  #: the probability above which a row has one of several labels

    def __init__(self, data: DataOptions, label_smoothing: float = 0.0):
        super().__init__(data)
        self.label_smoothing = label_smoothing

    @cached_property
    def source(self) -> Any:
        """The rows of the data, not yet read."""
        return self.rows(str(self.data.source))

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
        headline = self.logged_headline(metrics)
        chance = evaluation["majority"] if evaluation is not None and headline.name == "accuracy" else None
        figures = {"learning": lambda: metric_curve(metrics, headline.name, headline.label, chance)}
        if evaluation and "confusion" in evaluation:
            figures["confusion"] = lambda: confusion_matrix(evaluation["confusion"], evaluation["labels"])
        elif evaluation and "predicted" in evaluation:
            figures["predictions"] = lambda: predicted_against_true(evaluation["predicted"], evaluation["true"])
        return figures

    def logged_headline(self, metrics: Log) -> Metric:
        logged = {name for line in metrics for name in line}
        own = (self.headline.name, *_DEFAULT.values())
        return headline_of(next((name for name in own if f"eval_{name}" in logged), self.headline.name))

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
    are very short beside their features, as in arrays of another layout."""
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
    """The rows of a task, with a label each, or several. Abstract. rows: those of the own data, in splits; None for
    others."""

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
        worst = worst_rows(logits, labels, self.label_names, self._max_mistakes, threshold if self.several else None)
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
    share; None for equal weights."""
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
    """A sentence if one answer for all rows scores as well as a model; None if the model is better, or its headline is
    another than the accuracy."""
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
    logits: np.ndarray,
    labels: np.ndarray,
    names: Sequence[str] | None,
    limit: int = 10,
    threshold: float | None = None,
) -> dict[int, dict[str, Any]]:
    """The rows of the largest errors, by their indices: of numbers (``names`` None) by these, of classes the most
    confident wrong predictions, of several labels (with a ``threshold``) wrong ones by the mean cross-entropy."""

    def named(value: Any) -> Any:
        """A number, a class, or the labels of a row, for people."""
        if names is None:
            return float(value)
        return names[value] if threshold is None else ", ".join(np.asarray(names)[value]) or "none"

    if names is None:
        predicted, extra = logits[:, 0], {}
        errors = np.abs(predicted - labels)
    elif threshold is None:
        shares = torch.tensor(logits, device="cpu").softmax(-1).numpy()
        predicted, extra = shares.argmax(-1), {"probability": shares.max(-1)}
        errors = np.where(predicted != labels, shares.max(-1), 0)
    else:
        shares = torch.tensor(logits, device="cpu").sigmoid().numpy()
        labels, predicted = labels.astype(bool), shares > threshold
        extra = {"loss": -np.log(np.where(labels, shares, 1 - shares).clip(1e-9)).mean(1)}
        errors = np.where((predicted != labels).any(1), extra["loss"], 0)
    worst = [i for i in np.argsort(-errors, kind="stable")[:limit].tolist() if errors[i] > 0]
    return {
        i: {"true": named(labels[i]), "predicted": named(predicted[i]), **{n: float(v[i]) for n, v in extra.items()}}
        for i in worst
    }


def _mistakes(evaluation: Mapping[str, Any]) -> list[Table]:
    """The worst rows, if the evaluation has them (of images, with the images)."""
    rows = [each for each in evaluation.get("mistakes", ()) if "row" in each]
    if not rows:
        return []
    title = "Largest errors" if evaluation["kind"] == "regression" else "Most confident mistakes"
    head = [name for name in rows[0] if name != "row"]
    shown = [[f"{each[name]:.3g}" if isinstance(each[name], float) else each[name] for name in head] for each in rows]
    return [Table(title, ("row", *head), [(each["row"], *cells) for each, cells in zip(rows, shown, strict=True)])]


# Metrics of predictions, by scikit-learn and scipy.


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
    """Accuracy, macro F1 over the classes that occur, Matthews' correlation, for two classes the F1 of the second; and
    the confusion matrix, scores by class, and the share of the most common class. predicted and true ``(rows,)`` are
    indices in ``names``."""
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
    """The micro and macro F1 and the share of rows whose labels are all right, of 0 and 1 ``(rows, labels)``; and
    scores by label."""
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
    """Pearson's and Spearman's correlation (0 where either side is constant) and the mean squared error, of ``(rows,)``
    each; and the pairs."""
    from scipy.stats import pearsonr, spearmanr

    predicted, true = predicted.astype(np.float64), true.astype(np.float64)
    varied = np.ptp(predicted) > 0 and np.ptp(true) > 0
    scores = {
        "pearson": float(pearsonr(predicted, true).statistic) if varied else 0.0,
        "spearman": float(spearmanr(predicted, true).statistic) if varied else 0.0,
        "mean_squared_error": float(np.mean((predicted - true) ** 2)),
    }
    return scores, {"predicted": predicted.tolist(), "true": true.tolist()}
