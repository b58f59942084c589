"""Plots of kernels and theorems."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from lagwise.analysis.kernels import LayerKernel
from lagwise.analysis.theory import DECAY_ACTIVATIONS, SKIErrorBound, curved_share, random_responses, ski_error_bound
from lagwise.figures import close, columns, panels, pyplot, single

if TYPE_CHECKING:
    from matplotlib.figure import Figure


_NEAR = 64  # lags drawn to scale


def kernel_curves(kernels: Sequence[LayerKernel]) -> Figure:
    """Taps over lag, one panel per layer: a few channels, and the mean size over all in the colour of the text."""
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
    """The Toeplitz matrix of every layer, mean |t_{i-j}| over channels (TNN fig. 3), for at most ``size`` tokens."""
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
    """A metric of several runs over steps or seconds, one line per run."""
    figure, axes = single()
    for number, points in enumerate(curves.values()):
        style = {"color": f"C{number % 10}", "linestyle": "-" if number < 10 else "--"}  # there are ten colours
        axes.plot(*columns(points), linewidth=1.4, marker="o" if len(points) <= 40 else None, markersize=3, **style)
    axes.set(xlabel=over, ylabel=label, title=f"{label.capitalize()} over {'steps' if over == 'step' else over}")
    legend = axes.legend(axes.lines, curves.keys(), fontsize=8)
    for text in legend.get_texts():
        text.set_parse_math(False)  # names of folders may have dollars
    return figure


def error_bounds(curves: Mapping[str, Sequence[SKIErrorBound]]) -> Figure:
    """SKI's spectral error, theorem 1's bound and the Nyström error over the rank, one panel per degree (SKI-TNN th.
    1)."""
    plt = pyplot()
    figure, grid = plt.subplots(1, len(curves), figsize=(4.2 * len(curves), 3.6), layout="constrained", squeeze=False)
    for axes, (title, points) in zip(grid.flat, curves.items(), strict=True):
        ranks = [p.rank for p in points]
        axes.plot(ranks, [p.bound for p in points], marker="o", color="C3", label="bound of theorem 1")
        axes.plot(ranks, [p.error for p in points], marker="o", color="C0", label="error")
        axes.plot(ranks, [p.nystrom for p in points], marker=".", color="0.6", label="its Nyström part")
        axes.axhline(points[0].matrix, color="0.8", linestyle="--", label="the matrix itself")
        axes.set(xscale="log", yscale="log", xlabel="rank", title=title)
        axes.set_xticks(ranks, [str(r) for r in ranks])
        axes.minorticks_off()
        axes.legend(fontsize=8)
    grid.flat[0].set_ylabel("spectral norm")
    return figure


def decay_by_activation(responses: Mapping[tuple[str, str], tuple[np.ndarray, np.ndarray]]) -> Figure:
    """Frequency responses and sizes of taps, one row per activation and two columns per input (SKI-TNN fig. 4, 5 and
    6)."""
    plt = pyplot()
    activations = list(dict.fromkeys(a for a, _ in responses))
    inputs = list(dict.fromkeys(i for _, i in responses))
    figure, grid = plt.subplots(
        len(activations), 2 * len(inputs), figsize=(3.2 * 2 * len(inputs), 2.3 * len(activations)), layout="constrained"
    )
    for row, activation in zip(grid, activations, strict=True):
        for n, name in enumerate(inputs):
            response, taps = responses[activation, name]
            row[2 * n].plot(np.linspace(0, math.pi, response.shape[1]), response.T, linewidth=0.8)
            row[2 * n].set(title=f"{activation.upper()} of {name}: response", xlabel="frequency")
            lags = np.arange(1, taps.shape[1])
            row[2 * n + 1].plot(lags, np.abs(taps[:, 1:]).T, linewidth=0.5, alpha=0.6)
            row[2 * n + 1].plot(lags, 0.1 / lags.astype(float) ** 2, color="black", linestyle="--", label="1 / lag²")
            row[2 * n + 1].set(xscale="log", yscale="log", ylim=(1e-18, 1), title="taps, in size", xlabel="lag")
            row[2 * n + 1].legend(fontsize=8, loc="lower left")
    return figure


def curved_shares(shares: Mapping[str, Sequence[tuple[int, float]]]) -> Figure:
    """Share of grid points where a ReLU network bends, over the points of the grid (SKI-TNN prop. 1)."""
    figure, axes = single()
    for name, points in shares.items():
        axes.plot(*columns([(float(n), share) for n, share in points]), marker="o", label=name)
    axes.set(xscale="log", yscale="log", xlabel="points on the interval", ylabel="share that bends")
    axes.set_title("A piecewise linear function bends at its kinks only")
    axes.legend()
    return figure


def plot_theory(folder: Path) -> list[Path]:
    """Draw theorem 1, theorems 2 to 4 and proposition 1 of SKI-TNN into a folder; returns the files written."""
    bounds = {
        f"degree {degree}": [ski_error_bound(rank=rank, degree=degree) for rank in (8, 12, 16, 24, 32, 64, 128)]
        for degree in (1, 3)
    }
    responses = {(a, i): random_responses(a, i) for a in DECAY_ACTIVATIONS for i in ("omega", "cos")}
    shares = {
        name: [(n, curved_share(normalize=normalize, points=n)) for n in (512, 2048, 8192, 32768)]
        for name, normalize in (("without the norm", False), ("with the norm", True))
    }
    figures = {
        "theorem-1": error_bounds(bounds),
        "theorems-2-to-4": decay_by_activation(responses),
        "proposition-1": curved_shares(shares),
    }
    folder.mkdir(parents=True, exist_ok=True)
    written = []
    for name, figure in figures.items():
        written.append(folder / f"{name}.png")
        figure.savefig(written[-1], dpi=110)
        close(figure)
    return written
