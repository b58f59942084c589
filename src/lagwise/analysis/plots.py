"""Plots of kernels and theorems."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

import numpy as np

from lagwise.analysis.kernels import LayerKernel
from lagwise.figures import columns, panels, single

if TYPE_CHECKING:
    from matplotlib.figure import Figure


_NEAR = 64  # lags drawn to scale


def kernel_curves(kernels: Sequence[LayerKernel]) -> Figure:
    """Plot taps over lag, one panel per layer: a few channels, and the mean size over all in the colour of the text."""
    figure, drawn = panels(len(kernels), height=2.2)
    for axes, kernel in zip(drawn, kernels, strict=True):
        lags = kernel.lags + (0 if kernel.origin else 1)
        chosen = np.linspace(0, kernel.taps.shape[0] - 1, 6).astype(int)
        axes.plot(lags, kernel.taps[chosen].T, linewidth=0.6, alpha=0.7)
        axes.plot(lags, np.abs(kernel.taps).mean(axis=0), color="black", linewidth=1.2)
        axes.set(title=f"layer {kernel.layer}", xlabel="lag" if kernel.origin else "lag + 1")
        if 0 < kernel.origin <= _NEAR:
            axes.set_xticks([-kernel.origin, 0, kernel.origin])
        elif kernel.origin:
            axes.set_xscale("symlog")
            far = [tick for tick in (10, 1000) if tick < kernel.origin]
            axes.set_xticks([*(-tick for tick in reversed(far)), 0, *far])
        else:
            axes.set_xscale("log")
        axes.axhline(0, color="0.8", linewidth=0.5)
    figure.suptitle("Kernels: six channels (thin),\nmean size of all (thick)")
    return figure


def kernel_matrices(kernels: Sequence[LayerKernel], *, size: int = _NEAR) -> Figure:
    """Draw the Toeplitz matrix of every layer, mean |t_{i-j}| over channels (TNN fig. 3), for at most ``size``
    tokens."""
    from matplotlib.colors import LogNorm

    figure, drawn = panels(len(kernels), height=2.6)
    for axes, kernel in zip(drawn, kernels, strict=True):
        matrix = kernel.matrix(min(size, kernel.support))
        shown = np.ma.masked_less_equal(matrix, 0)
        largest = max(matrix.max(), 1e-9)  # a kernel may be zero
        image = axes.imshow(shown, norm=LogNorm(vmin=largest * 1e-3, vmax=largest), cmap="viridis")
        axes.set(title=f"layer {kernel.layer}", xlabel="from token j", ylabel="to token i")
        figure.colorbar(image, ax=axes, shrink=0.8)
    figure.suptitle("Toeplitz matrices: mean size over channels")
    return figure


def learning_curves(curves: Mapping[str, Sequence[tuple[float, float]]], over: str, label: str) -> Figure:
    """Plot a metric of several runs over steps or seconds, one line per run."""
    figure, axes = single()
    for number, points in enumerate(curves.values()):
        style = {"color": f"C{number % 10}", "linestyle": "-" if number < 10 else "--"}  # there are ten colours
        axes.plot(*columns(points), linewidth=1.4, marker="o" if len(points) <= 40 else None, markersize=3, **style)
    axes.set(xlabel=over, ylabel=label, title=f"{label.capitalize()} over {'steps' if over == 'step' else over}")
    legend = axes.legend(axes.lines, curves.keys(), fontsize=8)
    for text in legend.get_texts():
        text.set_parse_math(False)  # names of folders may have dollars
    return figure
