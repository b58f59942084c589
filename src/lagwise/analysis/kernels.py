"""The learned kernels of a model, in numbers and plots."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import torch
from torch import nn

from lagwise.figures import panels
from lagwise.kernels import LagKernel

if TYPE_CHECKING:
    from matplotlib.figure import Figure

_LINEAR_LAGS = 64  # drawn on a linear axis


@dataclass(frozen=True)
class LayerKernel:
    """The kernel of a layer.

    Attributes:
        layer: The layer's number from 0, followed by a dot and the kernel's number if the layer has several, and by its
            axis if it belongs to a grid, as in ``0``, ``1.1`` and ``2 rows``.
        taps: ``(channels, n)``.
        origin: The index of lag 0 among the taps, 0 if the kernel is causal.
    """

    layer: str
    taps: np.ndarray
    origin: int = 0

    @property
    def lags(self) -> np.ndarray:
        """The lag of each tap."""
        return np.arange(self.taps.shape[1]) - self.origin

    def energy_within(self, share: float) -> int:
        """Return the smallest n such that the lags below n, on both sides, hold this share of the squared taps over all
        channels."""
        energy = np.bincount(np.abs(self.lags), weights=(self.taps**2).sum(axis=0)).cumsum()
        return int(np.searchsorted(energy, share * energy[-1])) + 1

    def matrix(self, size: int) -> np.ndarray:
        """Compute the mean of |t_{i-j}| over channels as a ``(size, size)`` Toeplitz matrix (TNN fig. 3)."""
        index = np.arange(size)[:, None] - np.arange(size)[None, :] + self.origin
        inside = (index >= 0) & (index < self.taps.shape[1])
        return np.where(inside, np.abs(self.taps).mean(axis=0)[np.where(inside, index, 0)], 0.0)


@torch.no_grad()
def learned_kernels(model: nn.Module, length: int) -> list[LayerKernel]:
    """Compute the taps of every lag kernel in a model, in order, for signals of ``length``; none for a Transformer."""
    result = []
    for path, kernel in model.named_modules():
        if isinstance(kernel, LagKernel):
            taps = kernel.taps(min(length, kernel.max_length or length)).cpu()
            result.append(
                LayerKernel(_position(path), taps.double().numpy(), 0 if kernel.causal else taps.shape[1] // 2)
            )
    return result


def _position(path: str) -> str:
    """Return a kernel's position in the model, from the numbers and the axis in the module's name."""
    names = path.split(".")
    numbers = ".".join(name for name in names if name.isdecimal())
    return " ".join([numbers or "0", *(name for name in names if name in ("rows", "columns"))])


def kernel_curves(kernels: Sequence[LayerKernel]) -> Figure:
    """Plot taps over lag, one panel per layer: a few channels, and the mean size over all in the colour of the text."""
    figure, panel_axes = panels(len(kernels), height=2.2)
    for axes, kernel in zip(panel_axes, kernels, strict=True):
        lags = kernel.lags + (0 if kernel.origin else 1)
        channels = np.linspace(0, kernel.taps.shape[0] - 1, 6).astype(int)
        axes.plot(lags, kernel.taps[channels].T, linewidth=0.6, alpha=0.7)
        axes.plot(lags, np.abs(kernel.taps).mean(axis=0), color="black", linewidth=1.2)
        axes.set(title=f"layer {kernel.layer}", xlabel="lag" if kernel.origin else "lag + 1")
        if 0 < kernel.origin <= _LINEAR_LAGS:
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


def kernel_matrices(kernels: Sequence[LayerKernel], *, size: int = _LINEAR_LAGS) -> Figure:
    """Draw the Toeplitz matrix of every layer, mean |t_{i-j}| over channels (TNN fig. 3), for at most ``size``
    tokens."""
    from matplotlib.colors import LogNorm

    figure, panel_axes = panels(len(kernels), height=2.6)
    for axes, kernel in zip(panel_axes, kernels, strict=True):
        matrix = kernel.matrix(min(size, int(np.abs(kernel.lags).max()) + 1))
        positive = np.ma.masked_less_equal(matrix, 0)
        largest = max(matrix.max(), 1e-9)  # a kernel may be zero
        image = axes.imshow(positive, norm=LogNorm(vmin=largest * 1e-3, vmax=largest), cmap="viridis")
        axes.set(title=f"layer {kernel.layer}", xlabel="from token j", ylabel="to token i")
        figure.colorbar(image, ax=axes, shrink=0.8)
    figure.suptitle("Toeplitz matrices: mean size over channels")
    return figure
