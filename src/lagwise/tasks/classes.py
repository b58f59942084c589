"""Names of classes, in a model's configuration and beside its predictions; and their weights."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from torch import Tensor

from lagwise.tables import known

CLASS_WEIGHTS = ("none", "balanced")
_SHOWN = 20  # classes of a line


def checked_class_weights(given: str | dict[str, float]) -> str | dict[str, float]:
    """The option ``task.class_weights``, a word or the weights of some classes. ValueError for any other value."""
    if isinstance(given, str):
        return known(given, CLASS_WEIGHTS, "`class_weights`")
    if not all(weight > 0 for weight in given.values()):
        raise ValueError(f"`class_weights` must be greater than 0, got {given}")
    return given


def balanced_weights(counts: Tensor) -> Tensor:
    """Weight classes by the inverse of their shares, with weights of 1 if all shares are equal. A class without rows
    counts as if it had one."""
    return counts.sum() / (len(counts) * counts.clamp(min=1))


def class_fields(names: Sequence[str]) -> dict[str, Any]:
    """The fields of a model's configuration that define its classes."""
    labels = dict(enumerate(names))
    return {"num_labels": len(labels), "id2label": labels, "label2id": {name: i for i, name in labels.items()}}


def class_names(config: Any) -> tuple[str, ...]:
    """The classes of a model by id, from its configuration."""
    return tuple(config.id2label[i] for i in range(config.num_labels))


def class_counts(counts: Mapping[str, int], what: str = "classes") -> list[str]:
    """A line with the number of training rows of each class; of many classes, of the most and the least common."""
    ordered = sorted(counts.items(), key=lambda each: -each[1])
    shown = [f"{name} {count:,}" for name, count in ordered]
    if len(shown) > _SHOWN:
        shown = [*shown[: _SHOWN - 3], "...", *shown[-3:]]
    return [f"{what} in train: {', '.join(shown)}"] if shown else []
