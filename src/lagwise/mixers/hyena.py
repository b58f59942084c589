"""Hyena's recurrence of gates and long convolutions."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn

from lagwise.mixers.base import Mixer, StateTuple, masked
from lagwise.mixers.toeplitz import ToeplitzMixer
from lagwise.ops import Layout, dilated_convolution
from lagwise.ops.toeplitz import centre_tap, dilated_prefill
from lagwise.ops.window import Window
from lagwise.tables import whole_number


class HyenaMixer(Mixer):
    """``z_1 = v``, ``z_{n+1} = x_n * (h_n * z_n)`` for n = 1..N, and ``W_o z_{N+1}``, where each h_n is a long
    convolution, x_n a gate, and ``v, x_1 .. x_N`` are linear maps of the input, each followed by a short depthwise
    convolution.

    Options:
        order: number N of gates and long convolutions.
        short: taps of the short convolutions (odd if two-sided).
        kernel: spec of a lag kernel; by default ``hyena``.
        engine: as in `ToeplitzMixer`.

    The published code, unlike the paper, has one filter fewer: its last gate follows no convolution. ValueError for
    options out of range.

    Streams as its kernels do, with the last ``short`` tokens.

    Source: Poli et al. 2023, "Hyena Hierarchy", definition 3.1 and algorithm 1.
    """

    def __init__(
        self,
        channels: int,
        *,
        causal: bool = True,
        order: int = 2,
        short: int = 3,
        kernel: Mapping[str, Any] | None = None,
        engine: str | Mapping[str, Any] = "auto",
    ):
        super().__init__(channels, causal)
        centre_tap(whole_number("short", short), causal)
        self.input = nn.Linear(channels, (whole_number("order", order) + 1) * channels)
        self.taps = nn.Parameter(torch.empty((order + 1) * channels, short))
        spec = {"name": "hyena"} if kernel is None else kernel
        self.filters = nn.ModuleList(
            ToeplitzMixer(channels, causal=causal, kernel=spec, engine=engine) for _ in range(order)
        )
        self.out = nn.Linear(channels, channels)
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Uniform within the inverse root of the number of taps, as PyTorch's convolutions."""
        bound = self.taps.shape[1] ** -0.5
        nn.init.uniform_(self.taps, -bound, bound)

    def mix(self, x: Tensor, layout: Layout) -> Tensor:
        short = dilated_convolution(masked(self.input(x), layout.mask), self.taps, 1, causal=self.causal)
        value, *gates = short.chunk(len(self.filters) + 1, 2)
        for gate, long in zip(gates, self.filters, strict=True):
            value = gate * long(value, layout=layout)
        return self.out(value)

    def init_state(self, batch_size: int) -> StateTuple:
        self.require_causal()
        window = Window.empty(batch_size, *self.taps.shape, like=self.taps)
        filters: Any = self.filters
        return StateTuple((window, *(long.init_state(batch_size) for long in filters)))

    def mix_next(self, x: Tensor, state: StateTuple, mask: Tensor | None) -> tuple[Tensor, StateTuple]:
        window, *states = state.parts
        short, window = dilated_prefill(masked(self.input(x), mask), self.taps, 1, window)
        value, *gates = short.chunk(len(self.filters) + 1, 2)
        filters: Any = self.filters
        for index, (gate, long) in enumerate(zip(gates, filters, strict=True)):
            value, states[index] = long.prefill(value, states[index], mask=mask)
            value = gate * value
        return self.out(value), StateTuple((window, *states))
