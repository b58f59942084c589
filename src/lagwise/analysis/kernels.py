"""The learned kernels of a model, as numbers."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from torch import nn

from lagwise.kernels import LagKernel


@dataclass(frozen=True)
class LayerKernel:
    """layer: its number from 0. taps ``(channels, n)`` and the index of lag 0 among them: 0 if the kernel is causal."""

    layer: int
    taps: np.ndarray
    origin: int = 0

    @property
    def lags(self) -> np.ndarray:
        """The lag of each tap."""
        return np.arange(self.taps.shape[1]) - self.origin

    def energy_within(self, share: float) -> int:
        """The least n for which lags nearer than n, on either side, hold this share of the squared taps, over all
        channels together."""
        energy = np.bincount(np.abs(self.lags), weights=(self.taps**2).sum(axis=0)).cumsum()
        return int(np.searchsorted(energy, share * energy[-1])) + 1

    def matrix(self, size: int) -> np.ndarray:
        """Mean of |t_{i-j}| over channels as a ``(size, size)`` Toeplitz matrix (TNN fig. 3)."""
        index = np.arange(size)[:, None] - np.arange(size)[None, :] + self.origin
        inside = (index >= 0) & (index < self.taps.shape[1])
        return np.where(inside, np.abs(self.taps).mean(axis=0)[np.where(inside, index, 0)], 0.0)


@torch.no_grad()
def learned_kernels(model: nn.Module, length: int) -> list[LayerKernel]:
    """Taps of every lag kernel in a model, in order, for signals of this length; empty for a Transformer."""
    kernels = [module for module in model.modules() if isinstance(module, LagKernel)]
    result = []
    for i, kernel in enumerate(kernels):
        taps = kernel.taps(min(length, kernel.max_length or length)).cpu()
        result.append(LayerKernel(i, taps.double().numpy(), 0 if kernel.causal else taps.shape[1] // 2))
    return result
