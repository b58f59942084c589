"""FutureFill: exact convolution of a signal that arrives token by token, by two published schedules, as baselines."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from lagwise.ops.toeplitz.spectral import fast_length

_TILE = 64  # tokens that meet their neighbours directly in `ContinuousFutureFill`, as in lagwise's own streams


def future_fill(inputs: Tensor, taps: Tensor, count: int) -> Tensor:
    """What inputs contribute to the outputs that follow them.

    Formula: ``y_s = sum_j t_{s + n - j} x_j`` for inputs ``x_1 ... x_n`` and the outputs ``s = 1 ... count`` after
    them, by one FFT of at least ``n + count - 1`` points.

    Shapes: inputs ``(batch, n, channels)``; taps ``(channels, at least n + count)``, lag 0 first; result ``(batch,
    count, channels)``.

    Source: FutureFill (Agarwal et al. 2024, arXiv:2410.03766), definition 1.
    """
    n = inputs.shape[1]
    points = fast_length(n + count - 1)
    spectrum = torch.fft.rfft(taps[:, 1 : n + count], points)
    signal = torch.fft.rfft(inputs.transpose(1, 2).contiguous(), points)
    return torch.fft.irfft(signal * spectrum, points)[..., n - 1 : n - 1 + count].transpose(1, 2)


class _Stream:
    """Inputs so far, in room for the whole text."""

    def __init__(self, taps: Tensor, batch: int):
        self.taps = taps
        self.reversed = taps.flip(1).t().contiguous()  # lag 0 last, aligned with the end of the inputs
        self.inputs = taps.new_empty(batch, taps.shape[1], taps.shape[0])
        self.seen = 0

    def _append(self, x: Tensor) -> None:
        if self.seen == self.inputs.shape[1]:
            raise ValueError(f"the stream was made for {self.seen} tokens")
        self.inputs[:, self.seen : self.seen + 1] = x
        self.seen += 1

    def _near(self, count: int) -> Tensor:
        """What the last ``count`` inputs contribute to the current output, ``(batch, 1, channels)``."""
        return (self.inputs[:, self.seen - count : self.seen] * self.reversed[-count:]).sum(1, keepdim=True)


class EpochedFutureFill(_Stream):
    """After every epoch of K tokens, one FFT over all inputs fills in their contributions to the next epoch.

    Tokens of the same epoch meet directly. With ``K = sqrt(L log2 L)`` a text of L tokens takes O(L^1.5 sqrt(log L)).

    Args:
        taps: ``(channels, L)``, lag 0 first, with as many lags as the text will have tokens.
        batch: Rows.

    Source: FutureFill (Agarwal et al. 2024), algorithm 2.
    """

    def __init__(self, taps: Tensor, batch: int):
        super().__init__(taps, batch)
        length = taps.shape[1]
        self.epoch = max(1, min(length, round(math.sqrt(length * math.log2(max(2, length))))))
        self.filled: Tensor | None = None

    def step(self, x: Tensor) -> Tensor:
        """The output ``(batch, 1, channels)`` for the next token, of the same shape. ValueError after L tokens."""
        self._append(x)
        place = (self.seen - 1) % self.epoch
        y = self._near(place + 1)
        if self.filled is not None:
            y = y + self.filled[:, place : place + 1]
        left = self.inputs.shape[1] - self.seen
        if place + 1 == self.epoch and left:
            self.filled = future_fill(self.inputs[:, : self.seen], self.taps, min(self.epoch, left))
        return y


class ContinuousFutureFill(_Stream):
    """After token t, the last 2^k tokens contribute to the next 2^k, where 2^k is the largest power that divides t.

    A text of L tokens takes O(L log² L). The published schedule starts at single tokens, whose many small FFTs take
    most of the time; here the last 64 tokens meet directly and tiles start at 64, which is faster.

    Args:
        taps: ``(channels, L)``, lag 0 first, with as many lags as the text will have tokens.
        batch: Rows.
        tile: Tokens of the smallest tile, a power of two; 1 is the published schedule.

    Source: FutureFill (Agarwal et al. 2024), algorithm 3.
    """

    def __init__(self, taps: Tensor, batch: int, tile: int = _TILE):
        super().__init__(taps, batch)
        if tile & (tile - 1):
            raise ValueError(f"tile must be a power of two, got {tile}")
        self.tile = tile
        self.outputs = torch.zeros_like(self.inputs)

    def step(self, x: Tensor) -> Tensor:
        """The output ``(batch, 1, channels)`` for the next token, of the same shape. ValueError after L tokens."""
        self._append(x)
        place = (self.seen - 1) % self.tile
        y = self._near(place + 1) + self.outputs[:, self.seen - 1 : self.seen]
        left = self.inputs.shape[1] - self.seen
        if place + 1 == self.tile and left:
            size = self.seen & -self.seen
            count = min(size, left)
            past = self.inputs[:, self.seen - size : self.seen]
            self.outputs[:, self.seen : self.seen + count] += future_fill(past, self.taps, count)
        return y
