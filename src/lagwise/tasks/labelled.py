"""Rows with labels, classes or numbers: what the tasks that classify whole rows share."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np
import torch.nn.functional as F
from torch import Tensor

from lagwise.data.options import DataOptions
from lagwise.tasks.base import Metric, Table, Task, TaskData, require_none
from lagwise.tasks.classes import class_counts
from lagwise.tasks.classification_results import result_figures, result_tables, worst_rows
from lagwise.tasks.scores import classification_scores, headline_of, regression_scores

if TYPE_CHECKING:
    from matplotlib.figure import Figure


class Labelled(Task):
    """A task with labels, whose results are scores, a confusion matrix and figures by class. Abstract."""

    headline: Metric = headline_of("accuracy")
    metric: str | None = None  #: the headline, where it was chosen
    stride: int = 1  #: samples of a series for each step of the model
    #: what a training needs, for people
    needs: ClassVar[str]

    def __init__(self, data: DataOptions, label_smoothing: float = 0.0):
        super().__init__(data)
        if not data.source:
            raise ValueError(self.needs)
        self.label_smoothing = label_smoothing

    @property
    def source(self) -> Any:
        """The rows of the data, not yet read."""
        assert self.data.source is not None
        return self.open_rows(self.data.source)

    def steps(self, samples: int) -> int:
        """Steps of the model that so many samples of a series are."""
        return -(-samples // self.stride)

    def tables(self, evaluation: Mapping[str, Any]) -> list[Table]:
        return result_tables(evaluation)

    def figures(
        self, metrics: Sequence[Mapping[str, float]], evaluation: Mapping[str, Any] | None
    ) -> dict[str, Callable[[], Figure]]:
        return result_figures(metrics, evaluation, self.metric)


class LabelledRows(TaskData):
    """Rows with a label each. Abstract.

    Attributes:
        rows: the rows of the run's own data, in splits.
        label_names: names of the classes, by id; None for numbers.
        scored: rows to evaluate on and their labels, by split.
    """

    rows: Any
    label_names: tuple[str, ...] | None
    scored: dict[str, tuple[Any, Any]]
    label_variance: float = 1.0
    #: options of `evaluate` that do not apply
    unused: Sequence[str] = ("lengths", "max_tokens")
    #: wrong predictions that are shown
    most_mistakes: int = 10

    def logits(self, model: Any, rows: Any, progress: bool) -> np.ndarray:
        """Logits ``(rows, labels)`` in the order of the rows."""
        raise NotImplementedError

    def shown(self, rows: Any, i: int) -> dict[str, Any]:
        """A row for people."""
        raise NotImplementedError

    def notes(self) -> Sequence[str]:
        return [*self.rows.describe().splitlines(), *class_counts(self.rows.counts.get("train", {}))]

    def steps_per_epoch(self, batch_size: int) -> int:
        return -(-len(self.rows.splits["train"]) // batch_size)

    def loss(self, outputs: Any, labels: Tensor, num_items_in_batch: Any = None) -> Tensor:
        """Cross-entropy with class weights and label smoothing, of classes or of shares of mixed ones, or the squared
        error over the labels' variance: a mean over the rows of a step."""
        logits = outputs.logits.float()
        if self.label_names is None:
            each = (logits[:, 0] - labels).square() / self.label_variance
        else:
            weight = None if self.weights is None else self.weights.to(logits)
            smoothing = self.task.label_smoothing
            each = F.cross_entropy(logits, labels, weight=weight, label_smoothing=smoothing, reduction="none")
        if num_items_in_batch is None:
            return each.mean()
        return each.sum() * labels[0].numel() / num_items_in_batch  # the Trainer counts every share of a mixed label

    def reduce(self, logits: Tensor, labels: Tensor) -> tuple[Tensor, Tensor]:
        return logits.float(), labels

    def metrics(self, loss: float, predictions: Any = None, labels: Any = None) -> dict[str, float]:
        return self._scores(np.asarray(predictions), np.asarray(labels))[0]

    def evaluate(
        self, model: Any, *, lengths: Sequence[int] | None = None, max_tokens: int | None = None, progress: bool = True
    ) -> dict[str, Any]:
        """Scores of the valid and test rows, with mistakes; of classes also the confusion matrix and scores by class.

        A first answer was fitted to the validation rows too, once its penalty was chosen, so they are left out.
        """
        given = {"lengths": lengths, "max_tokens": max_tokens}
        require_none(type(self.task).__name__, **{name: given[name] for name in self.unused})
        kind = "regression" if self.label_names is None else "classification"
        result: dict[str, Any] = {"kind": kind, "labels": self.label_names}
        for split, (rows, labels) in self.scored.items():
            if split == "valid" and model.config.model_type == "lagwise-linear":
                continue
            logits = self.logits(model, rows, progress)
            scores, details = self._scores(logits, np.asarray(labels))
            worst = worst_rows(logits, np.asarray(labels), self.label_names, self.most_mistakes)
            mistakes = [{**self.shown(rows, i), **each} for i, each in worst.items()]
            # details of the last split, the test rows
            result |= {split: {**scores, "rows": len(rows)}, **details, "mistakes": mistakes}
        return result

    def _scores(self, logits: np.ndarray, labels: np.ndarray) -> tuple[dict[str, float], dict[str, Any]]:
        if self.label_names is None:
            return regression_scores(logits[:, 0], labels)
        return classification_scores(logits.argmax(-1), labels, self.label_names)
