"""The gated short convolution of LFM2."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from lagwise.mixers.base import Mixer
from lagwise.mixers.derived import BackwardTaps, Derived
from lagwise.ops import Layout, dilated_convolution
from lagwise.ops.fused.convolution import gated_convolution
from lagwise.ops.streaming import WindowState
from lagwise.ops.toeplitz import centre_tap, dilated_prefill, dilated_step, tap_reach
from lagwise.ops.tokens import linears
from lagwise.ops.window import Window
from lagwise.tables import check_integer


class ShortConvMixer(Derived, Mixer):
    """A convolution of a few tokens between two gates: ``W_o (c * (w * (b * v)))`` with ``b, c, v = W_i x``, where w is
    a depthwise convolution and the other products are elementwise.

    Options:
        kernel_size: taps of the convolution, for lags 0 to kernel_size - 1; in a two-sided mixer centred ones, an odd
            number (the published one is causal).

    There is no bias, as published. ValueError for an even centred size.

    Streams in constant memory, the last kernel_size tokens.

    Source: LFM2 (Liquid AI 2025), its gated short convolution block.
    """

    takes_shards = True
    derives_from_parts = False

    def __init__(self, channels: int, *, causal: bool = True, kernel_size: int = 3):
        super().__init__(channels, causal)
        self._origin = centre_tap(check_integer("kernel_size", kernel_size), causal)
        self.input = nn.Linear(channels, 3 * channels, bias=False)
        self.taps = nn.Parameter(torch.empty(channels, kernel_size))
        self.out = nn.Linear(channels, channels, bias=False)
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Draw uniformly within the inverse root of the number of taps, as PyTorch's convolutions."""
        bound = self.taps.shape[1] ** -0.5
        nn.init.uniform_(self.taps, -bound, bound)

    def mix(self, x: Tensor, state: WindowState | None, layout: Layout) -> tuple[Tensor, Any]:
        whole = layout.mask is None and layout.seq_idx is None and layout.shard is None
        if state is None and whole:
            y = gated_convolution(linears(x, self.input)[0], self.taps, self._origin)
            return linears(y, self.out)[0], None
        before, after, value = self.input(x).chunk(3, 2)
        if state is None:
            reach = tap_reach(self.taps.shape[1], causal=self.causal)
            return self.out(after * layout.near(self._convolved, before * value, *reach)), None
        y, window = dilated_prefill(before * value, self.taps, 1, *state)
        seen = state.seen + (x.shape[1] if layout.mask is None else layout.mask.sum(1))
        return self.out(after * y), WindowState(window, seen)

    def _convolved(self, x: Tensor, layout: Layout) -> Tensor:
        return dilated_convolution(x, self.taps, 1, causal=self.causal)

    def derive(self, form: str = "eager") -> BackwardTaps:
        return BackwardTaps(self.taps.flip(1).t().contiguous())

    def init_state(self, batch_size: int) -> WindowState:
        self.require_causal()
        taps = self.derived(checked=True).taps
        window = Window.empty(batch_size, self.channels, len(taps), like=taps)
        return WindowState(window, taps.new_zeros(batch_size, dtype=torch.long))

    def mix_token(self, x: Tensor, state: WindowState) -> tuple[Tensor, WindowState]:
        before, after, value = self.input(x).chunk(3, 1)
        y, window = dilated_step(before * value, self.derived().taps, 1, *state)
        return self.out(after * y), WindowState(window, state.seen + 1)
