"""The gated Toeplitz unit."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch.nn.functional as F
from torch import Tensor, nn

from lagwise.mixers.base import Mixer
from lagwise.mixers.toeplitz import ToeplitzMixer
from lagwise.ops import Layout
from lagwise.ops.tokens import apply_linear, linears, silu_product, with_biases


class GTU(Mixer):
    """Gated Toeplitz unit: ``W_o (silu(W_u x) * TNO(silu(W_v x)))`` (TNN §3.1 and fig. 2; SKI-TNN app. A).

    Options:
        expansion: width of the gate relative to the channels (table 13: 3).
        kernel: spec of a lag kernel.
        engine: as in `ToeplitzMixer`.

    ValueError if expansion times channels is less than 1.

    >>> GTU(4, kernel={"name": "rpe"})(torch.randn(2, 100, 4)).shape
    torch.Size([2, 100, 4])
    """

    any_rate = takes_times = takes_shards = True

    def __init__(
        self,
        channels: int,
        *,
        causal: bool = True,
        expansion: float = 3,
        kernel: Mapping[str, Any] | None = None,
        engine: str | Mapping[str, Any] = "auto",
    ):
        super().__init__(channels, causal)
        width = gated_width(channels, expansion)
        self.gate = nn.Linear(channels, width)
        self.value = nn.Linear(channels, width)
        self.toeplitz = ToeplitzMixer(width, causal=causal, kernel=kernel, engine=engine)
        self.out = nn.Linear(width, channels)

    def mix(self, x: Tensor, state: Any, layout: Layout) -> tuple[Tensor, Any]:
        mixed = biases = None
        if state is None and self.toeplitz.gates(layout):
            (gate, value), biases = apply_linear(x, self.gate, self.value)
            mixed = self.toeplitz.gated(gate, value, biases)
        else:
            gate, value = linears(x, self.gate, self.value)
        if mixed is None:
            gate, value = with_biases(gate, value, biases)
            y, state = self.toeplitz.run(F.silu(value), state, layout)
            mixed = silu_product(gate, y)
        return linears(mixed, self.out)[0], state

    def init_state(self, batch_size: int) -> Any:
        return self.toeplitz.init_state(batch_size)

    def mix_token(self, x: Tensor, state: Any) -> tuple[Tensor, Any]:
        mixed, state = self.toeplitz.step(F.silu(self.value(x)), state)
        return self.out(silu_product(self.gate(x), mixed)), state


def gated_width(channels: int, expansion: float, option: str = "expansion") -> int:
    """Channels of a gate or a hidden layer: ``expansion * channels``, rounded. ValueError if that is less than 1."""
    width = round(expansion * channels)
    if width < 1:
        raise ValueError(f"{option} must give at least one channel, got {expansion} * {channels}")
    return width
