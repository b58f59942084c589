"""The gated short convolution of LFM2."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from lagwise.mixers.base import Mixer, StateTuple
from lagwise.ops import Layout, dilated_convolution
from lagwise.ops.toeplitz import centre_tap, dilated_prefill
from lagwise.ops.window import Window
from lagwise.tables import whole_number


class ShortConvMixer(Mixer):
    """A convolution of a few tokens between two gates: ``W_o (c * (w * (b * v)))`` with ``b, c, v = W_i x``, where w is
    a depthwise convolution and the other products are elementwise.

    Options:
        kernel_size: taps of the convolution, for lags 0 to kernel_size - 1; in a two-sided mixer centred ones, an odd
            number (the published one is causal).

    There is no bias, as published. ValueError for an even centred size.

    Streams in constant memory, the last kernel_size tokens.

    Source: LFM2 (Liquid AI 2025), its gated short convolution block.
    """

    def __init__(self, channels: int, *, causal: bool = True, kernel_size: int = 3):
        super().__init__(channels, causal)
        centre_tap(whole_number("kernel_size", kernel_size), causal)
        self.input = nn.Linear(channels, 3 * channels, bias=False)
        self.taps = nn.Parameter(torch.empty(channels, kernel_size))
        self.out = nn.Linear(channels, channels, bias=False)
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Uniform within the inverse root of the number of taps, as PyTorch's convolutions."""
        bound = self.taps.shape[1] ** -0.5
        nn.init.uniform_(self.taps, -bound, bound)

    def mix(self, x: Tensor, layout: Layout) -> Tensor:
        before, after, value = self.input(x).chunk(3, 2)
        return self.out(after * dilated_convolution(before * value, self.taps, 1, causal=self.causal))

    def init_state(self, batch_size: int) -> StateTuple:
        self.require_causal()
        return StateTuple((Window.empty(batch_size, self.channels, self.taps.shape[1], like=self.taps),))

    def mix_next(self, x: Tensor, state: StateTuple, mask: Tensor | None) -> tuple[Tensor, StateTuple]:
        before, after, value = self.input(x).chunk(3, 2)
        y, window = dilated_prefill(before * value, self.taps, 1, state.parts[0])
        return self.out(after * y), StateTuple((window,))
