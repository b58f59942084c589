"""Gated state spaces."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch.nn.functional as F
from torch import Tensor, nn

from lagwise.mixers.base import Mixer
from lagwise.mixers.toeplitz import ToeplitzMixer, gated_width
from lagwise.ops import Layout


class GSSMixer(Mixer):
    """Gated state space: ``W_o (gelu(W_u x) * W_y TNO(gelu(W_v x)))``, where the kernel runs in few channels.

    Options:
        expansion: width of the gate relative to the channels (published: 4).
        contraction: width of the kernel relative to the channels (published: 1/4).
        kernel: spec of a lag kernel; by default ``dss``.
        engine: as in `ToeplitzMixer`.

    The published layer simplifies DSS: steps of 1, a random start, and poles that all channels share. ``dss`` has a
    step and poles for each channel, and the start of the DSS paper. ValueError for widths below 1. Streams as its
    kernel does.

    Source: Mehta et al. 2022, "Long Range Language Modeling via Gated State Spaces", §3.2 and fig. 1.
    """

    any_rate = takes_times = takes_shards = True

    def __init__(
        self,
        channels: int,
        *,
        causal: bool = True,
        expansion: float = 4,
        contraction: float = 0.25,
        kernel: Mapping[str, Any] | None = None,
        engine: str | Mapping[str, Any] = "auto",
    ):
        super().__init__(channels, causal)
        width = gated_width(channels, expansion)
        inner = gated_width(channels, contraction, "contraction")
        self.gate = nn.Linear(channels, width)
        self.value = nn.Linear(channels, inner)
        spec = {"name": "dss"} if kernel is None else kernel
        self.toeplitz = ToeplitzMixer(inner, causal=causal, kernel=spec, engine=engine)
        self.widen = nn.Linear(inner, width)
        self.out = nn.Linear(width, channels)

    def mix(self, x: Tensor, state: Any, layout: Layout) -> tuple[Tensor, Any]:
        mixed, state = self.toeplitz.run(F.gelu(self.value(x)), state, layout)
        return self._gated(x, mixed), state

    def init_state(self, batch_size: int) -> Any:
        return self.toeplitz.init_state(batch_size)

    def mix_token(self, x: Tensor, state: Any) -> tuple[Tensor, Any]:
        mixed, state = self.toeplitz.step(F.gelu(self.value(x)), state)
        return self._gated(x, mixed), state

    def _gated(self, x: Tensor, mixed: Tensor) -> Tensor:
        return self.out(F.gelu(self.gate(x)) * self.widen(mixed))
