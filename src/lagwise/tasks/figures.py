"""Figures of what a run has learned, for its task."""

from __future__ import annotations

import io
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from lagwise.figures import columns, pyplot, single

if TYPE_CHECKING:
    from matplotlib.figure import Figure

Log = Sequence[Mapping[str, float]]  # the lines of a run's log
Figures = dict[str, Callable[[], "Figure"]]  # functions that draw, by name


def length_curve(scores: Sequence[Mapping[str, Any]], name: str, label: str, *, trained_at: int) -> Figure:
    """A figure of each score over the length of the context, with the training length marked (TNN fig. 1, right)."""
    figure, axes = single()
    lengths = [score["length"] for score in scores]
    values = [score[name] for score in scores]
    axes.plot(lengths, values, marker="o")
    axes.axvline(trained_at, color="0.7", linestyle="--", label=f"trained at {trained_at}")
    margin = max(0.1 * max(values), max(values) - min(values))
    axes.set(
        xscale="log",
        xlabel="context length (tokens)",
        ylabel=label,
        title="The same test text at each context length",
        ylim=(max(0.0, min(values) - margin), max(values) + margin),
    )
    axes.set_xticks(lengths, [str(n) for n in lengths], rotation=45)
    axes.minorticks_off()
    axes.legend()
    return figure


def metric_curve(metrics: Log, name: str, label: str, chance: float | None = None) -> Figure:
    """Draw the training loss, and a validation metric on an axis of its own, over steps, with that of the first answer
    if there is one; ``chance``: the value of guessing."""
    figure, axes = single()
    train = [(line["step"], line["loss"]) for line in metrics if "loss" in line]
    valid = [(line["step"], line[f"eval_{name}"]) for line in metrics if f"eval_{name}" in line]
    axes.plot(*columns(train), color="0.7", linewidth=1, marker=".", markersize=3, label="training loss")
    axes.set(xlabel="step", ylabel="training loss", title="Learning")
    axes.locator_params(axis="x", integer=True)
    right = axes.twinx()
    right.plot(*columns(valid), color="C0", marker="o", markersize=3, label=f"validation {label}")
    right.set_ylabel(f"validation {label}", color="C0")
    if chance is not None:
        right.axhline(chance, color="C0", linestyle=":", linewidth=1, label="accuracy of the most common class")
    for first in [line["first_answer"] for line in metrics if "first_answer" in line]:
        right.axhline(first, color="C1", linestyle="--", linewidth=1, label="first answer")
    handles, labels = (a + b for a, b in zip(*(a.get_legend_handles_labels() for a in (axes, right)), strict=True))
    figure.legend(handles, labels, loc="outside lower center", ncols=len(labels), fontsize=8)
    return figure


def signals_beside(signals: Mapping[str, Sequence[float | None]]) -> Figure:
    """Draw signals by name over their samples, one below the other on the same scale; gaps where one is missing."""
    figure, axes = pyplot().subplots(len(signals), sharex=True, sharey=True, figsize=(8, 4.5), layout="constrained")
    for each, (name, values) in zip(axes, signals.items(), strict=True):
        each.plot(np.asarray(values, dtype=float), linewidth=0.8)
        each.set_ylabel(name)
    axes[0].set_title("A part of a test signal")
    axes[-1].set_xlabel("sample")
    return figure


def confusion_matrix(counts: Sequence[Sequence[int]], names: Sequence[str], *, max_classes: int = 30) -> Figure:
    """Draw the rows of each true class by the class predicted, as shares of each true class with the counts written in.
    With more than ``max_classes`` classes, the most common are shown."""
    matrix = np.asarray(counts)
    shown = np.sort(np.argsort(-matrix.sum(1), kind="stable")[:max_classes])
    matrix, chosen = matrix[np.ix_(shown, shown)], [names[i] for i in shown]
    shares = matrix / np.maximum(1, matrix.sum(1, keepdims=True))
    side = max(3.2, min(9.0, 1.6 + 0.55 * len(chosen)))
    figure, axes = single(width=side + 1.4, height=side)
    axes.grid(False)
    image = axes.imshow(shares, cmap="Blues", vmin=0, vmax=1)
    axes.set_xticks(
        range(len(chosen)), chosen, rotation=45 if max(map(len, chosen)) > 3 else 0, ha="right", parse_math=False
    )
    axes.set_yticks(range(len(chosen)), chosen, parse_math=False)  # names of classes may have dollars
    axes.set(xlabel="predicted", ylabel="true", title="Test rows by true and predicted class")
    if len(chosen) <= 12:
        for i, j in np.ndindex(matrix.shape):
            axes.text(
                j, i, f"{matrix[i, j]:,}", ha="center", va="center", color="white" if shares[i, j] > 0.5 else "0.2"
            )
    figure.colorbar(image, ax=axes, shrink=0.8, label="share of the true class")
    return figure


def image_gallery(files: Sequence[bytes], captions: Sequence[str], *, title: str, across: int = 8) -> Figure:
    """Draw image files side by side, each with a caption."""
    from PIL import Image

    rows = -(-len(files) // across)
    figure, grid = pyplot().subplots(rows, across, figsize=(9, 1.5 * rows + 0.5), squeeze=False, layout="constrained")
    for axes in grid.flat:
        axes.axis("off")
    for axes, file, caption in zip(grid.flat, files, captions, strict=False):
        image = np.asarray(Image.open(io.BytesIO(file)))
        axes.imshow(image, cmap="gray", vmin=0, vmax=255, interpolation="nearest")
        axes.set_title(caption, fontsize=7, parse_math=False)
    figure.suptitle(title)
    return figure


def predicted_against_true(predicted: Sequence[float], true: Sequence[float]) -> Figure:
    """A point for each test row of a regression, and the line on which predictions are right."""
    figure, axes = single(height=4.5)
    axes.scatter(true, predicted, s=8, alpha=0.4)
    low, high = min(*true, *predicted), max(*true, *predicted)
    axes.plot([low, high], [low, high], color="0.5", linestyle="--", label="predicted = true")
    axes.set(xlabel="true", ylabel="predicted", title="Test rows")
    axes.legend()
    return figure
