"""Detection of events in the probabilities of a series, and their comparison with known events."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np


class Events(NamedTuple):
    """The events ``(events,)`` of one series."""

    steps: np.ndarray  # positions in order
    classes: np.ndarray  # ids of at least 1
    scores: np.ndarray  # expected number of events around the step, about 1 for a certain event


def expected_events(probabilities: np.ndarray, tolerance: int) -> np.ndarray:
    """Compute the expected number of events of each class within ``tolerance`` steps of each step.

    Formula: ``E_{t,c} = sum_{|u - t| <= tolerance} p_{u,c}`` for c >= 1, with the probability ``p_{u,c}`` that step u
    has an event of class c (class 0: none). An event with an uncertain step counts as one if all of its probability
    lies within the tolerance.

    Shapes: probabilities ``(steps, classes)``, result ``(steps, classes - 1)``.
    """
    padded = np.pad(probabilities[:, 1:].astype(np.float64), ((tolerance, tolerance), (0, 0)))
    return np.lib.stride_tricks.sliding_window_view(padded, 2 * tolerance + 1, axis=0).sum(-1)


def find_events(probabilities: np.ndarray, tolerance: int, threshold: float = 0.5) -> Events:
    """Find events in the probabilities ``(steps, classes)`` of a series, where class 0 means none.

    A step is an event if `expected_events` of all classes, within half of ``tolerance``, exceeds ``threshold`` and is
    the largest within ``tolerance`` steps, the first of equal ones. Its class is the most probable one there. So no two
    events are closer than tolerance, and the events at step t depend on steps up to ``lookahead(tolerance)`` later.
    """
    if not len(probabilities):
        nothing = np.zeros(0, dtype=np.int64)
        return Events(nothing, nothing, np.zeros(0))
    counts = expected_events(probabilities, tolerance // 2)
    total = counts.sum(1)
    padded = np.pad(total, tolerance, constant_values=-1.0)
    windows = np.lib.stride_tricks.sliding_window_view(padded, 2 * tolerance + 1)
    earlier = windows[:, :tolerance].max(1, initial=-1.0)
    steps = np.flatnonzero((total > threshold) & (total > earlier) & (total >= windows.max(1)))
    return Events(steps, counts[steps].argmax(1) + 1, total[steps])


def lookahead(tolerance: int) -> int:
    """Return the number of steps after an event that `find_events` needs to report it."""
    return tolerance + tolerance // 2


def latest_report(stride: int, tolerance: int) -> int:
    """Compute the largest number of samples between a true event and the report of its match, for steps of ``stride``
    samples and a ``tolerance`` in samples.

    An event at step t is placed at the step's middle, the sample ``t stride + stride // 2``, and is certain with the
    last sample of step ``t + lookahead``. The true event may be ``tolerance`` samples before it.
    """
    return stride * (1 + lookahead(tolerance // stride)) - 1 - stride // 2 + tolerance


def match_events(detected: np.ndarray, true: np.ndarray, tolerance: float) -> np.ndarray:
    """Match detected events to true ones: return for each true event the index of its match in ``detected``, -1 if it
    is missed, as an array ``(true,)``.

    Both are positions in order. Pairs are at most ``tolerance`` apart, an event is in at most one pair, and the closest
    pairs are matched first.
    """
    result = np.full(len(true), -1)
    if not len(detected) or not len(true):
        return result
    nearest = np.searchsorted(true, detected)
    pairs = [
        (abs(detected[i] - true[j]), i, j)
        for i, index in enumerate(nearest)
        for j in range(max(0, index - 2), min(len(true), index + 2))
        if abs(detected[i] - true[j]) <= tolerance
    ]
    matched: set[int] = set()
    for _, i, j in sorted(pairs):
        if result[j] < 0 and i not in matched:
            result[j] = i
            matched.add(i)
    return result


def paired_classes(
    detected: np.ndarray, detected_classes: np.ndarray, true: np.ndarray, true_classes: np.ndarray, tolerance: float
) -> tuple[np.ndarray, np.ndarray]:
    """Pair the predicted and true classes of all events: 0 is the prediction for a missed event, and the truth of a
    false one."""
    matches = match_events(detected, true, tolerance)
    predicted = np.where(matches < 0, 0, detected_classes[matches] if len(detected) else 0)
    false = np.setdiff1d(np.arange(len(detected)), matches)
    return np.concatenate([predicted, detected_classes[false]]), np.concatenate(
        [true_classes, np.zeros(len(false), dtype=true_classes.dtype)]
    )


def event_scores(
    predicted: np.ndarray, true: np.ndarray, names: Sequence[str]
) -> tuple[dict[str, float], dict[str, Any]]:
    """Compute the scores of `paired_classes` of all series; ``names`` are those of the classes from 0 on.

    Returns:
        Scores: accuracy, the share of the true events that are found with their class; found, the share that are found
            at all; precision, the share of the found events that are true; macro_f1, the mean over the classes of
            events that occur. Details: the confusion matrix, with missed events in the first column and false ones in
            the first row; precision (positive predictivity), recall (sensitivity) and F1 of each class.
    """
    from sklearn.metrics import confusion_matrix

    if not len(true):  # scikit-learn refuses empty input
        true = predicted = np.zeros(1, dtype=np.int64)
    ids = list(range(1, len(names)))
    classes = scores_by_class(true, predicted, names[1:], labels=ids)
    occur = [scores["f1"] for scores in classes.values() if scores["rows"]]
    events, reported = max(1, int((true > 0).sum())), max(1, int((predicted > 0).sum()))
    both = int(((true > 0) & (predicted > 0)).sum())
    scores = {
        "accuracy": float(((true == predicted) & (true > 0)).sum() / events),
        "macro_f1": float(np.mean(occur)) if occur else 0.0,
        "found": both / events,
        "precision": both / reported,
    }
    confusion = confusion_matrix(true, predicted, labels=[0, *ids])
    confusion[0, 0] = 0
    majority = float(np.bincount(true[true > 0], minlength=2).max() / events)
    return scores, {"confusion": confusion.tolist(), "classes": classes, "majority": majority}


def scores_by_class(
    true: np.ndarray, predicted: np.ndarray, names: Sequence[str], **options: Any
) -> dict[str, dict[str, float]]:
    """Compute precision, recall, F1 and the number of rows of each class. options: of scikit-learn's function."""
    from sklearn.metrics import precision_recall_fscore_support

    scores: Any = precision_recall_fscore_support(true, predicted, zero_division=0, **options)
    return {
        name: {"precision": float(p), "recall": float(r), "f1": float(f), "rows": int(n)}
        for name, p, r, f, n in zip(names, *scores, strict=True)
    }


class EventStream:
    """`find_events` while the probabilities of steps arrive, as from `StreamingClassifier.push`. It gives the same
    events, each as soon as it is certain, `lookahead` steps after it, and the last ones by `finish`. Keeps a fixed
    number of steps."""

    def __init__(self, tolerance: int, threshold: float = 0.5):
        self.tolerance, self.threshold = tolerance, threshold
        self._reset()

    def _reset(self) -> None:
        self._recent: np.ndarray | None = None
        self._before = 0  # steps that are no longer kept
        self._decided = 0  # steps whose events have been reported

    def push(self, probabilities: np.ndarray) -> Events:
        """Process the next steps ``(steps, classes)``, perhaps none. Returns the events that are certain now."""
        recent = probabilities if self._recent is None else np.concatenate([self._recent, probabilities])
        certain = max(self._decided, self._before + len(recent) - lookahead(self.tolerance))
        events = self._undecided(recent, certain)
        self._decided = certain
        start = max(0, certain - lookahead(self.tolerance) - self._before)  # first step that later decisions need
        self._recent, self._before = recent[start:], self._before + start
        return events

    def finish(self) -> Events:
        """End the recording. Returns the events that were not certain yet. The next push starts another recording."""
        recent = np.zeros((0, 2)) if self._recent is None else self._recent
        events = self._undecided(recent, self._before + len(recent))
        self._reset()
        return events

    def _undecided(self, recent: np.ndarray, stop: int) -> Events:
        """Find the events before ``stop``, from the first undecided step on."""
        events = find_events(recent, self.tolerance, self.threshold)
        steps = events.steps + self._before
        selected = (steps >= self._decided) & (steps < stop)
        return Events(steps[selected], events.classes[selected], events.scores[selected])
