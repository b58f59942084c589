"""Pictures of a run: loss, extrapolation, kernels."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from lagwise.analysis.kernels import LayerKernel

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

_WIDTH = 7.0


def loss_curve(metrics: Sequence[Mapping[str, float]], *, bytes_per_token: float) -> Figure:
    """Training and validation bits per byte over steps, from the lines of a run's metrics."""
    figure, axes = _figure()
    train = [(line["step"], line["loss"] / math.log(2) / bytes_per_token) for line in metrics if "loss" in line]
    valid = [(line["step"], line["eval_bits_per_byte"]) for line in metrics if "eval_bits_per_byte" in line]
    axes.plot(*_columns(train), color="0.7", linewidth=1, label="training")
    axes.plot(*_columns(valid), color="C0", marker="o", markersize=3, label="validation")
    axes.set(xlabel="step", ylabel="bits per byte", title="Learning")
    axes.legend()
    return figure


def extrapolation_curve(scores: Sequence[Mapping[str, Any]], *, trained_at: int) -> Figure:
    """Bits per byte over the length of the context, with the training length marked (TNN fig. 1, right)."""
    figure, axes = _figure()
    lengths = [score["length"] for score in scores]
    values = [score["bits_per_byte"] for score in scores]
    axes.plot(lengths, values, marker="o")
    axes.axvline(trained_at, color="0.7", linestyle="--", label=f"trained at {trained_at}")
    margin = max(0.1 * max(values), max(values) - min(values))
    axes.set(
        xscale="log",
        xlabel="context length (tokens)",
        ylabel="bits per byte",
        title="The same test bytes at longer contexts",
        ylim=(max(0.0, min(values) - margin), max(values) + margin),
    )
    axes.set_xticks(lengths, [str(n) for n in lengths], rotation=45)
    axes.minorticks_off()
    axes.legend()
    return figure


def kernel_curves(kernels: Sequence[LayerKernel]) -> Figure:
    """Taps over lag, a panel a layer: a few channels, and the mean size over all."""
    figure, panels = _panels(len(kernels), height=2.2)
    for axes, kernel in zip(panels, kernels, strict=True):
        lags = np.arange(kernel.taps.shape[1]) + 1
        chosen = np.linspace(0, kernel.taps.shape[0] - 1, 6).astype(int)
        axes.plot(lags, kernel.taps[chosen].T, linewidth=0.6, alpha=0.7)
        axes.plot(lags, np.abs(kernel.taps).mean(axis=0), color="black", linewidth=1.2)
        axes.set(xscale="log", title=f"layer {kernel.layer}", xlabel="lag + 1")
        axes.axhline(0, color="0.8", linewidth=0.5)
    figure.suptitle("Learned kernels: six channels, and mean |tap| over all (black)")
    return figure


def kernel_matrices(kernels: Sequence[LayerKernel], *, size: int = 64) -> Figure:
    """The Toeplitz matrix of every layer, mean |t_{i-j}| over channels (TNN fig. 3)."""
    from matplotlib.colors import LogNorm

    figure, panels = _panels(len(kernels), height=2.6)
    for axes, kernel in zip(panels, kernels, strict=True):
        matrix = kernel.matrix(size)
        shown = np.ma.masked_less_equal(matrix, 0)
        image = axes.imshow(shown, norm=LogNorm(vmin=max(shown.max() * 1e-3, 1e-12), vmax=shown.max()), cmap="viridis")
        axes.set(title=f"layer {kernel.layer}", xlabel="from token j", ylabel="to token i")
        figure.colorbar(image, ax=axes, shrink=0.8)
    figure.suptitle("Learned Toeplitz matrices, mean size over channels")
    return figure


def _figure() -> tuple[Figure, Axes]:
    plt = _pyplot()
    figure, axes = plt.subplots(figsize=(_WIDTH, 3.6), layout="constrained")
    axes.grid(alpha=0.3)
    return figure, axes


def _panels(count: int, *, height: float) -> tuple[Figure, list[Axes]]:
    plt = _pyplot()
    columns = min(count, 4 if count > 3 else 3)
    rows = -(-count // columns)
    figure, grid = plt.subplots(
        rows, columns, figsize=(max(2.4 * columns, 4), height * rows), layout="constrained", squeeze=False
    )
    panels = list(grid.flat)
    for axes in panels[count:]:
        axes.axis("off")
    return figure, panels[:count]


def _columns(points: list[tuple[float, float]]) -> tuple[list[float], list[float]]:
    return [x for x, _ in points], [y for _, y in points]


def _pyplot() -> Any:
    try:
        import matplotlib
    except ImportError as error:
        raise ImportError("plots need matplotlib: pip install 'lagwise[plot]'") from error
    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    return plt
