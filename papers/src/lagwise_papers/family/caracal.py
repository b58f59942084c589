"""Convolutions whose kernels are computed from the text, as in Caracal."""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from lagwise.mixers.base import Mixer, check_heads
from lagwise.ops import Layout, dilated_convolution, toeplitz_product
from lagwise.ops.packing import from_first_token
from lagwise.ops.toeplitz import dilated_prefill
from lagwise.ops.window import Window, common
from lagwise.tables import check_integer


class CaracalState(NamedTuple):
    """The inputs of the short convolution; values and taps so far, a window ``(batch, n, 2 channels)``; and the number
    of tokens of each row, ``(batch,)``."""

    short: Window
    pairs: Window
    seen: Tensor


class CaracalMixer(Mixer):
    """``y_i = W_o sum_{j <= i} g_{i - j} * v_j``: the tap at lag l is computed from token l of the text.

    Formula, with a short convolution c and a layer norm: ``u = norm(c * x)``, ``v = W_v u``, ``g = G silu(W_g u)``,
    where G maps the channels of a head to themselves.

    Options:
        heads: must divide the channels, ValueError otherwise.
        short: taps of the short convolution.

    Causal only. Tokens count from the first of a text. Streams with all values and taps so far: a token costs O(n)
    after n tokens, and a chunk a convolution of the whole text.

    Source: Gan et al. 2026, "Caracal: Causal Architecture via Spectral Mixing" (ICML), its multi-head Fourier module.
    """

    directions = (True,)
    grows = takes_shards = True

    def __init__(self, channels: int, *, causal: bool = True, heads: int = 8, short: int = 3):
        super().__init__(channels, causal)
        check_heads(channels, heads)
        self.taps = nn.Parameter(torch.empty(channels, check_integer("short", short)))
        self.norm = nn.LayerNorm(channels)
        self.value, self.gate = nn.Linear(channels, channels), nn.Linear(channels, channels)
        self.heads = nn.Conv1d(channels, channels, 1, groups=heads)
        self.out = nn.Linear(channels, channels)
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Draw uniformly within the inverse root of the number of taps, as PyTorch's convolutions."""
        bound = self.taps.shape[1] ** -0.5
        nn.init.uniform_(self.taps, -bound, bound)

    def mix(self, x: Tensor, state: CaracalState | None, layout: Layout) -> tuple[Tensor, Any]:
        if state is None:
            pairs = self._pairs(layout.near(self._short, x, self.taps.shape[1] - 1, 0), layout.mask)
            if layout.shard is None:
                return self.out(self._rows(pairs, layout)), None
            return self.out(
                layout.shard.by_channels(self._rows, pairs, groups=self.channels, outputs=self.channels)
            ), None
        near, short = dilated_prefill(x, self.taps, 1, state.short)
        real = x.new_ones(x.shape[:2], dtype=torch.bool) if layout.mask is None else layout.mask
        pairs, seen = state.pairs.append(self._pairs(near, real)), state.seen + real.sum(1)
        tokens = pairs.tokens.to(x.dtype)
        if x.shape[1] == 1 and common(seen) == pairs.size:
            value, taps = tokens.unflatten(2, (-1, 2)).unbind(3)
            y = (value * taps.flip(1)).sum(1, keepdim=True)
        else:
            kept = torch.arange(pairs.size - 1, -1, -1, device=x.device) < seen[:, None]
            y = from_first_token(self._product, tokens, kept)[:, -x.shape[1] :]
        return self.out(y), CaracalState(short, pairs, seen)

    def init_state(self, batch_size: int) -> CaracalState:
        self.require_causal()
        short = Window.empty(batch_size, self.channels, self.taps.shape[1], like=self.taps)
        pairs = Window.empty(batch_size, 2 * self.channels, None, like=self.taps)
        return CaracalState(short, pairs, torch.zeros(batch_size, dtype=torch.long, device=self.taps.device))

    def _short(self, x: Tensor, layout: Layout) -> Tensor:
        return dilated_convolution(x, self.taps, 1, causal=True)

    def _pairs(self, near: Tensor, real: Tensor | None) -> Tensor:
        """Compute the value and the tap of each channel, ``(batch, length, 2 channels)``, zero at padding."""
        normed = self.norm(near)
        gate = self.heads(F.silu(self.gate(normed)).mT).mT
        pairs = torch.stack([self.value(normed), gate], 3).flatten(2)
        return pairs if real is None else pairs * real[..., None]

    def _rows(self, pairs: Tensor, layout: Layout) -> Tensor:
        return from_first_token(self._product, pairs, layout.mask)

    def _product(self, pairs: Tensor, mask: Tensor | None) -> Tensor:
        """Convolve values with taps, where each row and channel has its own."""
        value, taps = pairs.unflatten(2, (-1, 2)).unbind(3)
        signal = value.transpose(0, 1).flatten(1)[None]  # rows as channels
        y = toeplitz_product(signal, taps.mT.flatten(0, 1), causal=True)
        return y[0].unflatten(1, (len(pairs), -1)).transpose(0, 1)
