"""Literal implementations of published algorithms, as baselines."""

from __future__ import annotations

import importlib
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn


class LiteralTNO(nn.Module):
    """The Toeplitz operator, computed step by step as in the authors' layer, for benchmarks only.

    The signal is (batch, heads = 1, length, channels). Every forward pass evaluates the relative position encoder at
    all lags. The coefficients (t_0, t_1, ..., t_{n-1}, t_0, and if two-sided t_{1-n}, ..., t_{-1}) and the signal are
    transformed by rfft and irfft of length 2 n along the length, which is not the contiguous axis. Gradients are
    computed by autograd (TNN eq. 21 to 26).
    """

    def __init__(self, channels: int, *, causal: bool = True, hidden: int = 64, layers: int = 6, decay: float = 0.99):
        super().__init__()
        self.causal = causal
        self.decay = decay
        self.first = nn.Linear(1, hidden)
        self.hidden = nn.ModuleList(nn.Linear(hidden, hidden) for _ in range(layers))
        self.last = nn.Linear(hidden, channels)

    def forward(self, x: Tensor) -> Tensor:
        signal = x.unsqueeze(1)
        length = x.shape[1]
        zero = self._encode(x.new_zeros(1, 1))
        lags = torch.arange(1, length, device=x.device, dtype=x.dtype)[:, None]
        positive = self._encode(lags) * self.decay**lags
        sections = [zero, positive, zero]
        if not self.causal:
            sections.append((self._encode(-lags) * self.decay**lags).flip(0))
        coefficients = torch.cat(sections)[None]
        spectrum = torch.fft.rfft(signal, 2 * length, dim=-2) * torch.fft.rfft(coefficients, 2 * length, dim=-2)
        return torch.fft.irfft(spectrum, 2 * length, dim=-2)[:, :, :length].squeeze(1)

    def _encode(self, lags: Tensor) -> Tensor:
        h = self.first(lags)
        for layer in (*self.hidden, self.last):
            h = layer(torch.relu(h / (h.norm(dim=-1, keepdim=True) * h.shape[-1] ** -0.5 + 1e-8)))
        return h


class LiteralEMA(nn.Module):
    """MEGA's moving average, computed step by step as in the authors' layer, for benchmarks only.

    Kernel generation evaluates an exponential for every channel, dimension and lag. Kernel and signal are transformed
    by rfft and irfft of length 2 n, or 3 n if two-sided, along the contiguous axis. Gradients are computed by autograd
    (TCNCA app. I and fig. 6). A two-sided kernel joins two one-sided kernels.
    """

    def __init__(self, channels: int, *, causal: bool = True, dimension: int = 16):
        super().__init__()
        self.causal = causal
        sides = 1 if causal else 2
        self.delta, self.alpha = (nn.Parameter(0.2 * torch.randn(sides * channels, dimension, 1)) for _ in range(2))
        self.beta, self.gamma = (nn.Parameter(torch.randn(sides * channels, dimension, 1)) for _ in range(2))
        self.taps: nn.Parameter | None = None

    def fix(self, length: int) -> None:
        """Compute the taps once and keep them as parameters (TCNCA app. I, "without kernel generation")."""
        with torch.no_grad():
            self.taps = nn.Parameter(self._kernel(length))

    def forward(self, x: Tensor) -> Tensor:
        length = x.shape[1]
        signal, taps = x.transpose(1, 2), self._kernel(length) if self.taps is None else self.taps
        start, points = 0, 2 * length
        if not self.causal:
            after, before = taps.chunk(2)
            padded = torch.nn.functional.pad(after, (length - 1, 0))
            taps = padded + torch.nn.functional.pad(before.flip(1), (0, length - 1))
            start, points = length - 1, 3 * length
        spectrum = torch.fft.rfft(signal.float(), n=points) * torch.fft.rfft(taps.float(), n=points)
        return torch.fft.irfft(spectrum, n=points)[..., start : start + length].transpose(1, 2)

    def _kernel(self, length: int) -> Tensor:
        p = self.delta.sigmoid()
        log_q = torch.log(1 - p * self.alpha.sigmoid())
        powers = torch.exp(torch.arange(length, device=p.device).view(1, 1, length) * log_q)
        weight = self.gamma * self.beta.shape[1] ** -0.5
        return torch.einsum("dnl,dn->dl", p * self.beta * powers, weight.squeeze(2))


def mega_pytorch_ema(channels: int, length: int) -> nn.Module:
    """Make the moving average of the package mega-pytorch, with 16 heads (extra ``bench``); ValueError if it is
    missing."""
    return load_peer("mega_pytorch.mega_pytorch:MultiHeadedEMA")(dim=channels, heads=16)


def load_peer(name: str) -> Callable[..., Any]:
    """Load a peer from ``module:factory``. The benchmark that times it says what the factory takes and returns.

    ValueError if the module or the factory cannot be imported.
    """
    module, separator, attribute = name.partition(":")
    if not separator:
        raise ValueError(f"a peer must be given as module:factory, got {name!r}")
    try:
        return getattr(importlib.import_module(module), attribute)
    except (ImportError, AttributeError) as error:
        raise ValueError(f"cannot load peer {name!r}: {error}") from error
