"""The learned kernels of a model, as numbers."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from torch import nn

from lagwise.kernels import LagKernel


@dataclass(frozen=True)
class LayerKernel:
    """layer: its number from 0. taps ``(channels, n)``, lag 0 first; of a two-sided kernel, the causal half."""

    layer: int
    taps: np.ndarray

    def energy_within(self, share: float) -> int:
        """Lags that hold this share of the squared taps, over all channels together."""
        energy = (self.taps**2).sum(axis=0).cumsum()
        return int(np.searchsorted(energy, share * energy[-1])) + 1

    def matrix(self, size: int) -> np.ndarray:
        """Mean of |t_{i-j}| over channels as a ``(size, size)`` lower triangle (TNN fig. 3)."""
        mean = np.abs(self.taps).mean(axis=0)
        mean = np.pad(mean[:size], (0, max(0, size - len(mean))))
        lag = np.arange(size)[:, None] - np.arange(size)[None, :]
        return np.where(lag >= 0, mean[np.abs(lag)], 0.0)


@torch.no_grad()
def learned_kernels(model: nn.Module, length: int) -> list[LayerKernel]:
    """Taps of every lag kernel in a model, in order, for signals of this length; empty for a Transformer."""
    kernels = [module for module in model.modules() if isinstance(module, LagKernel)]
    result = []
    for i, kernel in enumerate(kernels):
        taps = kernel.taps(min(length, kernel.max_length or length)).cpu()
        result.append(LayerKernel(i, taps[:, 0 if kernel.causal else taps.shape[1] // 2 :].double().numpy()))
    return result
