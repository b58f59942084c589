"""A class for every step of a series, or for the events in it."""

from __future__ import annotations

import json
from collections.abc import Sequence
from functools import cached_property
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import torch
import torch.nn.functional as F
from pydantic import Field
from torch import Tensor

from lagwise.data import RowEncoder, SeriesSource, open_series
from lagwise.data.arrays import series
from lagwise.data.batches import IGNORED
from lagwise.data.encoding import typical_time
from lagwise.data.labelled_rows import RATE
from lagwise.data.labelled_series import NO_EVENT, LabelledSeries, prepare_series, read_series_for
from lagwise.data.options import DataOptions
from lagwise.data.rows import rows_to_evaluate
from lagwise.data.series_windows import CHANGES, LabelledWindows, step_targets
from lagwise.evaluation.events import event_scores, expected_events, find_events, latest_report, paired_classes
from lagwise.models import LagwiseForTokenClassification
from lagwise.models.loading import read_config
from lagwise.tables import Count, Whole, counted, known, refuse
from lagwise.tasks.base import Recordings, Records, SeriesTask, finite
from lagwise.tasks.labelled import (
    Labelled,
    checked_class_weights,
    class_fields,
    class_names,
    class_weights,
    classification_scores,
    headline_of,
)


class SequenceLabelling(SeriesTask, Labelled):
    """A class for every step of a series of real vectors, or for the events in it, as the series arrives.

    Data: rows as in `lagwise.data.open_rows`, one series per row (a .csv or .tsv file is one series, one line per
    sample). Training uses random windows of ``data.length`` samples, evaluation whole series.

    Options:
        values: the column of the series.
        label: the column of the labels: a class for each sample, or for each event.
        events: the column of the positions of events, in samples; without one, every sample has a label.
        stride: samples per step of the model.
        delay: samples that the model may see after the one that it classifies.
        tolerance: samples within which a detection matches a true event; detections closer together are one event.
        class_weights: of steps in the loss: ``balanced`` by the inverse of each class's share, or some classes and the
            weight of each, the others having 1.
        augment: random augmentations of training windows, by name and strength: stretch, mix, filter, wander, noise,
            drop (see `lagwise.data.series_windows.CHANGES`).
        features: columns of .csv and .tsv files that are read, in this order; found in the data.
        rate: sampling rate of sound files in Hz; found in the data. A trained model of kernels in continuous time reads
            other rates where it has no events, no delay and a stride of 1, which count samples.
        group: a column whose equal values stay in one split, such as the person that series are of.
        time: column of the times of samples, as in `SequenceClassification`; needs a stride of 1 and no delay.

    Metrics of steps: accuracy and macro F1; of events: the share detected with the right class (accuracy), macro F1,
    the share detected, and the share of detections that are true. Macro F1 is the headline.
    """

    headline = headline_of("macro_f1")
    _needs = "sequence_labelling needs series to learn from; give a file or folder with `source`"
    head = LagwiseForTokenClassification
    _unit = "series"

    def __init__(
        self,
        data: DataOptions,
        *,
        values: str = "input_values",
        label: str = "label",
        events: str | None = None,
        stride: Count = 1,
        delay: Annotated[Whole, Field(ge=0)] = 0,
        tolerance: Count | None = None,
        class_weights: str | dict[str, float] = "none",
        augment: dict[str, float] | None = None,
        features: list[str] | None = None,
        rate: Count | None = None,
        time: str | None = None,
        group: str | None = None,
    ):
        super().__init__(data)
        self.stride, self.delay = stride, delay
        self.changes = augment or {}
        refuse(
            (
                (events is None) != (tolerance is None),
                f"`events` and `tolerance` belong together, got {events!r} and {tolerance!r}: tolerance is how "
                "far, in samples, an event that is found may be from a true one",
            ),
            (
                data.length < stride + delay,
                f"`length` {data.length} is less than `stride` and `delay`, {stride} + {delay}",
            ),
            (
                time is not None and (stride != 1 or delay or self.changes),
                "`time`, of samples with times of their own, needs `stride=1`, `delay=0` and no `augment`, "
                f"got {stride}, {delay} and {self.changes}",
            ),
        )
        self.reach = 0 if tolerance is None else tolerance // stride  # in steps
        self.tolerance = tolerance
        for name, value in self.changes.items():
            largest = CHANGES[known(name, CHANGES, "key in `augment`")]
            refuse((not 0 <= value <= largest, f"`augment.{name}` must be in [0, {largest:g}], got {value!r}"))
        self.class_weights = checked_class_weights(class_weights)
        self.values, self.label, self.events = values, label, events
        self.features, self.rate, self.time, self.group = features, rate, time, group

    @cached_property
    def source(self) -> SeriesSource:
        return self._series(str(self.data.source))

    def rows(self, source: str) -> SeriesSource:
        counts_samples = self.events is not None or self.delay > 0 or self.stride > 1
        return self._series(source, any_rate=self.rate is not None and not counts_samples)

    def _series(self, source: str, *, any_rate: bool = False) -> SeriesSource:
        names = ("features", "rate", "time", "group")
        options: dict[str, Any] = {name: getattr(self, name) for name in names}
        return open_series(source, self.label, per_sample=True, **options, any_rate=any_rate)

    def _open(self, run: Path | None, progress: bool) -> SeriesWithClasses:
        columns = {name: getattr(self, name) for name in ("values", "label", "events", "group")}
        rows = prepare_series(self.source, **columns, progress=progress)
        return SeriesWithClasses(self, rows)

    def _open_other(self, source: str, run: Path, progress: bool) -> SeriesWithClasses:
        data = SeriesWithClasses(self)
        config: Any = read_config(run)
        data.label_names = names = class_names(config)
        rows = rows_to_evaluate(self.rows(source).read(), source)
        columns = self.values, self.label, self.events
        data._scored = {"test": list(read_series_for(rows, names, *columns, source, gaps=config.takes_gaps))}
        if self.rate is not None and RATE in rows.column_names:
            data._hertz = rows[RATE][:]
        return data

    def columns(self) -> tuple[str, ...]:
        return (self.values,)

    def _encoded(self, model: Any, tokenizer: Any, rows: Records) -> list[tuple[np.ndarray, None]]:
        config = model.config
        encode = RowEncoder((self.values,), 1 << 30, features=config.inputs["features"], gaps=config.takes_gaps)
        return [(samples, None) for samples in series(encode.table(rows))]

    def _output(self, model: Any, tokenizer: Any, row: tuple[np.ndarray, Any]) -> tuple[np.ndarray, int]:
        """The probabilities of a series, and the number of its samples."""
        return self.probabilities(model, row[0]), len(row[0])

    def _answer(self, model: Any, output: tuple[np.ndarray, int]) -> dict[str, Any]:
        """``predicted``: of events a list of (position, class, score); else of stretches of one class (start, end,
        class), the end not included, in samples; as JSON."""
        names, (p, samples) = class_names(model.config), output
        if self.events is not None:
            events = find_events(p, self.reach)
            positions = self.positions(events.steps).clip(0, samples - 1).tolist()
            scores = zip(positions, events.classes, events.scores, strict=True)
            return {"predicted": json.dumps([[at, names[c], round(float(s), 4)] for at, c, s in scores])}
        classes = self.of_samples(p.argmax(1), samples)
        starts = [0, *(np.flatnonzero(np.diff(classes)) + 1).tolist()]
        stretches = zip(starts, [*starts[1:], len(classes)], strict=True)
        return {"predicted": json.dumps([[start, end, names[classes[start]]] for start, end in stretches])}

    def positions(self, steps: np.ndarray) -> np.ndarray:
        """The middle samples of the steps, shifted by the delay."""
        return steps * self.stride + self.stride // 2 - self.delay

    def of_samples(self, steps: np.ndarray, length: int) -> np.ndarray:
        """The class of each sample: that of the step whose last sample, less the delay, is the first not before it."""
        return steps[(np.arange(length) + self.delay) // self.stride]

    @torch.inference_mode()
    def probabilities(self, model: Any, samples: np.ndarray) -> np.ndarray:
        """Return the probabilities ``(steps, classes)`` of a whole series, its last sample repeated for the delay to
        pass."""
        steps = self.steps(len(samples) + self.delay)
        padded = np.pad(samples, ((0, steps * self.stride - len(samples)), (0, 0)), mode="edge")
        logits = model(input_values=torch.from_numpy(padded)[None].to(model.device)).logits[0]
        return finite(logits.float().softmax(-1).cpu().numpy(), "probabilities")


class SeriesWithClasses(Recordings):
    """The series of a task, with a class for each sample, or for events in them. rows: None for other data."""

    task: SequenceLabelling
    label_names: tuple[str, ...]

    def __init__(self, task: SequenceLabelling, rows: LabelledSeries | None = None):
        super().__init__(task)
        self.rows: Any = rows
        if rows is None:
            return
        self.label_names = rows.label_names
        counts = {name: float(rows.counts["train"][name]) for name in rows.label_names}
        if task.events is not None:
            counts[NO_EVENT] /= task.stride  # steps without an event
        self.weights = class_weights(task.class_weights, counts)
        self._scored = {split: LabelledWindows(rows.splits[split]) for split in ("valid", "test")}

    def fields(self) -> dict[str, Any]:
        scale = {"mean": self.rows.mean, "std": self.rows.std, **({"gaps": True} if self.rows.gaps else {})}
        if self.task.time is not None:
            scale["time"] = typical_time(series(self.rows.splits["train"]))
        return {
            "inputs": {"name": "values", "features": self.rows.features, "stride": self.task.stride, **scale},
            **class_fields(self.label_names),
        }

    def constant_scores(self) -> dict[str, float]:
        counts = self.rows.counts["valid"].values()
        return {"accuracy": max(counts) / sum(counts)} if self.task.events is None else {}

    def notes(self) -> Sequence[str]:
        noun = "samples" if self.task.events is None else "events"
        features = counted(self.rows.features, "feature")
        lines = []
        for split, rows in self.rows.splits.items():
            counts = {name: count for name, count in self.rows.counts[split].items() if name != NO_EVENT}
            shown = ", ".join(f"{name} {count:,}" for name, count in counts.items())
            samples = f"{sum(rows['length'][:]):,} samples of {features}"
            lines.append(f"{split}: {len(rows):,} series of {samples}; {noun}: {shown}")
        return [*lines, *self.rows.notes]

    def _windows(self, split: str) -> LabelledWindows:
        return LabelledWindows(
            self.rows.splits[split],
            self.task.stride,
            self.task.delay,
            events=self.task.events is not None,
            length=self.task.data.length,
            mean=self.rows.mean,
            std=self.rows.std,
            changes=self.task.changes,
        )

    def loss(self, outputs: Any, labels: Tensor, num_items_in_batch: Any = None) -> Tensor:
        """Compute the cross-entropy with class weights: a mean over the steps that have a label."""
        logits, labels = outputs.logits.float().flatten(0, 1), labels.flatten()
        weight = None if self.weights is None else self.weights.to(logits)
        total = F.cross_entropy(logits, labels, weight=weight, ignore_index=IGNORED, reduction="sum")
        counted = (labels != IGNORED).sum() if num_items_in_batch is None else num_items_in_batch
        return total / torch.as_tensor(counted, device=total.device).clamp(min=1)

    def reduce(self, logits: Tensor, labels: Tensor) -> tuple[Tensor, Tensor]:
        return (logits.argmax(-1) if self.task.events is None else logits.float().softmax(-1)), labels

    def metrics(self, loss: float, predictions: Any = None, labels: Any = None) -> dict[str, float]:
        predictions, labels = np.asarray(predictions), np.asarray(labels)
        if self.task.events is None:
            real = labels != IGNORED
            return classification_scores(predictions[real], labels[real], self.label_names)[0]
        pairs, reach = [], self.task.reach
        for p, y in zip(predictions, labels, strict=True):
            events, targets = find_events(p[y != IGNORED], reach), y[y != IGNORED]
            at = np.flatnonzero(targets > 0)
            pairs.append(paired_classes(events.steps, events.classes, at, targets[at], reach))
        predicted, true = (np.concatenate(each) for each in zip(*pairs, strict=True))
        return event_scores(predicted, true, self.label_names)[0]

    def evaluate(self, model: Any, **options: Any) -> dict[str, Any]:
        """Return the scores of the valid and test series; also the confusion matrix and figures by class. Of events
        also the scores of the classes at the true events, as if their positions were known (``known_positions``)."""
        stride, tolerance = self.task.stride, self.task.tolerance
        result = {"kind": "steps" if self.task.events is None else "events", "labels": self.label_names}
        after = stride - 1 if tolerance is None else latest_report(stride, tolerance)
        return {**result, **super().evaluate(model, **options), "delay": self.task.delay + after}

    def _measured(self, output: tuple[np.ndarray, int], rows: Any, i: int) -> list[np.ndarray]:
        """The predicted and true classes of steps, or of events and of the positions of true events."""
        (p, _), labels, task = output, rows[i][1], self.task
        if task.events is None:
            whole = np.pad(labels, (0, len(p) * task.stride - len(labels)), mode="edge")  # as in `probabilities`
            targets = step_targets(whole, task.stride, task.delay, events=False)
            real = targets != IGNORED
            return [p.argmax(1)[real], targets[real]]
        at, events = np.flatnonzero(labels > 0), find_events(p, task.reach)
        pairs = paired_classes(task.positions(events.steps), events.classes, at, labels[at], task.tolerance or 0)
        counts = expected_events(p, task.reach // 2)[(at + task.delay) // task.stride]
        return [*pairs, counts.argmax(1) + 1, labels[at]]

    def _scores(self, split: str, measured: Sequence[list[np.ndarray]], model: Any) -> dict[str, Any]:
        predicted, true, *known = (np.concatenate(each) for each in zip(*measured, strict=True))
        if self.task.events is None:
            scores, details = classification_scores(predicted, true, self.label_names)
            return {split: {**scores, "rows": len(true)}, **details}
        scores, details = event_scores(predicted, true, self.label_names)
        at_known, of_known = event_scores(known[0], known[1], self.label_names)
        positions = {**at_known, "rows": len(known[1]), **of_known}
        return {split: {**scores, "rows": int((true > 0).sum())}, **details, "known_positions": positions}
