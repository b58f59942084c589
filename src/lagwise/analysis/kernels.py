"""The learned kernels of a model, as numbers."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from torch import nn

from lagwise.kernels import LagKernel


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
    def support(self) -> int:
        """The number of lags, lag 0 included, on the side of lag 0 that has more."""
        return max(self.origin + 1, self.taps.shape[1] - self.origin)

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
    parts = path.split(".")
    numbers = ".".join(part for part in parts if part.isdecimal())
    return " ".join([numbers or "0", *(part for part in parts if part in ("rows", "columns"))])
