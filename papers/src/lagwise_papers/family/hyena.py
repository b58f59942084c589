"""Hyena's recurrence of gates and long convolutions."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from lagwise.mixers.base import Mixer, masked
from lagwise.mixers.derived import BackwardTaps, Derived
from lagwise.mixers.toeplitz import ToeplitzMixer
from lagwise.ops import Layout, dilated_convolution
from lagwise.ops.streaming import WindowState
from lagwise.ops.toeplitz import centre_tap, dilated_prefill, dilated_step, tap_reach
from lagwise.ops.window import Window
from lagwise.tables import check_integer


class HyenaState(NamedTuple):
    """The inputs of the short convolutions, and the state of each long one."""

    short: WindowState
    filters: tuple[Any, ...]


class HyenaMixer(Derived, Mixer):
    """Gates and long convolutions in turn.

    Formula, with N gates x_n and N long convolutions h_n::

        z_1 = v
        z_{n+1} = x_n * (h_n * z_n)  for n = 1..N
        y = W_o z_{N+1}

    v and x_1 .. x_N are linear maps of the input, each followed by a short depthwise convolution.

    Options:
        order: number N of gates and long convolutions.
        short: taps of the short convolutions (odd if two-sided).
        kernel: spec of a lag kernel; by default ``hyena``.
        engine: as in `ToeplitzMixer`.
        first_gate: whether the first gate follows no convolution, ``z_2 = x_1 * v``, as in the published code, which
            unlike the paper has one filter fewer than gates.
        short_bias: whether the short convolutions have biases, as in the published code.

    ValueError for options out of range.

    Streams as its kernels do, with the last ``short`` tokens.

    Source: Poli et al. 2023, "Hyena Hierarchy", definition 3.1 and algorithm 1.
    """

    takes_shards = True
    derives_from_parts = False

    def __init__(
        self,
        channels: int,
        *,
        causal: bool = True,
        order: int = 2,
        short: int = 3,
        kernel: Mapping[str, Any] | None = None,
        engine: str | Mapping[str, Any] = "auto",
        first_gate: bool = False,
        short_bias: bool = False,
    ):
        super().__init__(channels, causal)
        centre_tap(check_integer("short", short), causal)
        self.input = nn.Linear(channels, (check_integer("order", order) + 1) * channels)
        self.taps = nn.Parameter(torch.empty((order + 1) * channels, short))
        self.bias = nn.Parameter(torch.empty((order + 1) * channels)) if short_bias else None
        self.branches, self.first_gate = order + 1, first_gate
        spec = {"name": "hyena"} if kernel is None else kernel
        self.filters = nn.ModuleList(
            ToeplitzMixer(channels, causal=causal, kernel=spec, engine=engine) for _ in range(order - first_gate)
        )
        self.out = nn.Linear(channels, channels)
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Draw uniformly within the inverse root of the number of taps, as PyTorch's convolutions."""
        bound = self.taps.shape[1] ** -0.5
        nn.init.uniform_(self.taps, -bound, bound)
        if self.bias is not None:
            nn.init.uniform_(self.bias, -bound, bound)

    def mix(self, x: Tensor, state: HyenaState | None, layout: Layout) -> tuple[Tensor, Any]:
        x = masked(self.input(x), layout.mask)
        if state is None:
            short, window = layout.near(self._short, x, *tap_reach(self.taps.shape[1], causal=self.causal)), None
            states: list[Any] = [None] * len(self.filters)
        else:
            short, window = dilated_prefill(x, self.taps, 1, *state.short)
            states = list(state.filters)
        value, *gates = self._split_gates(short)
        for index, (gate, long) in enumerate(zip(gates, self._filters(), strict=True)):
            value, states[index] = long.run(value, states[index], layout)
            value = gate * value
        if state is None or window is None:
            return self.out(value), None
        seen = state.short.seen + (x.shape[1] if layout.mask is None else layout.mask.sum(1))
        return self.out(value), HyenaState(WindowState(window, seen), tuple(states))

    def _split_gates(self, short: Tensor) -> list[Tensor]:
        """Compute the input of the first long convolution, and the gates after the long convolutions."""
        short = short if self.bias is None else short + self.bias
        value, *gates = short.chunk(self.branches, -1)
        return [gates[0] * value, *gates[1:]] if self.first_gate else [value, *gates]

    def _short(self, x: Tensor, layout: Layout) -> Tensor:
        return dilated_convolution(x, self.taps, 1, causal=self.causal)

    def derive(self, form: str = "eager") -> BackwardTaps:
        return BackwardTaps(self.taps.flip(1).t().contiguous())

    def init_state(self, batch_size: int) -> HyenaState:
        self.require_causal()
        taps = self.derived(checked=True).taps
        window = Window.empty(batch_size, *taps.t().shape, like=taps)
        short = WindowState(window, taps.new_zeros(batch_size, dtype=torch.long))
        return HyenaState(short, tuple(long.init_state(batch_size) for long in self._filters()))

    def mix_token(self, x: Tensor, state: HyenaState) -> tuple[Tensor, HyenaState]:
        short, window = dilated_step(self.input(x), self.derived().taps, 1, *state.short)
        value, *gates = self._split_gates(short)
        states = list(state.filters)
        for index, (gate, long) in enumerate(zip(gates, self._filters(), strict=True)):
            value, states[index] = long.step(value, states[index])
            value = gate * value
        return self.out(value), HyenaState(WindowState(window, state.short.seen + 1), tuple(states))

    def _filters(self) -> list[Any]:
        return list(self.filters)
