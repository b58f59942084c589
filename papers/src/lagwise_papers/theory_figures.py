"""Figures of SKI-TNN's theorems beside measurements."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from lagwise.figures import close, columns, pyplot, single
from lagwise_papers.theory import DECAY_ACTIVATIONS, SKIErrorBound, curved_share, random_responses, ski_error_bound

if TYPE_CHECKING:
    from matplotlib.figure import Figure


def error_bounds(curves: Mapping[str, Sequence[SKIErrorBound]]) -> Figure:
    """Plot SKI's spectral error, theorem 1's bound and the Nyström error over the rank, one panel per degree (SKI-TNN
    th. 1)."""
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
    """Plot frequency responses and sizes of taps, one row per activation and two columns per input (SKI-TNN fig. 4, 5
    and 6)."""
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
    """Plot the share of grid points where a ReLU network bends, over the points of the grid (SKI-TNN prop. 1)."""
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
    files = []
    for name, figure in figures.items():
        files.append(folder / f"{name}.png")
        figure.savefig(files[-1], dpi=110)
        close(figure)
    return files
