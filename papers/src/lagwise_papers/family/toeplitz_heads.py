"""Toeplitz matrices that the channels of a head share, between linear layers."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from torch import Tensor, nn

from lagwise.kernels import KERNELS, LagKernel
from lagwise.mixers.base import Mixer, check_heads
from lagwise.mixers.toeplitz import ToeplitzMixer
from lagwise.ops import Layout
from lagwise.tables import build


class SharedKernel(LagKernel):
    """A kernel of fewer channels, each of which stands for several channels in a row.

    >>> from lagwise.kernels import FreeKernel
    >>> SharedKernel(8, FreeKernel(2, max_length=64)).taps(32).shape
    torch.Size([8, 32])
    """

    shared = ("kernel",)

    def __init__(self, channels: int, kernel: LagKernel):
        super().__init__(channels, kernel.causal)
        self.kernel = kernel
        self.max_length, self.continuous = kernel.max_length, kernel.continuous

    @property
    def support(self) -> int | None:
        return self.kernel.support

    def taps(self, length: int) -> Tensor:
        return self._of_channels(self.kernel.taps(length))

    def smooth_at(self, lags: Tensor) -> Tensor:
        return self._of_channels(self.kernel.smooth_at(lags))

    def local_taps(self) -> tuple[Tensor, int] | None:
        local = self.kernel.local_taps()
        return None if local is None else (self._of_channels(local[0]), local[1])

    def _of_channels(self, values: Tensor) -> Tensor:
        copies = values.repeat_interleave(self.all_channels // len(values), 0)
        return copies.narrow(0, self.first_channel, self.channels)


class ToeplitzHeadsMixer(Mixer):
    """``y = W_o T W_v x``, with one Toeplitz matrix T for all channels of a head.

    Options:
        heads: must divide the channels, ValueError otherwise.
        kernel: spec of the lag kernel of a head, by default ``free`` of 1,024 lags without decay. A state space, as
            conversion makes it, is that of each channel.
        engine: as in `ToeplitzMixer`.

    The published layer also adds a number to all channels at each position, counted from the start of a text; it is
    left out, because lag alone decides here. Streams as its kernel does.

    Source: Toeplitz MLP Mixers, 2026 (arXiv 2605.06683), multi-headed and flat.
    """

    takes_shards = True

    def __init__(
        self,
        channels: int,
        *,
        causal: bool = True,
        heads: int = 4,
        kernel: Mapping[str, Any] | None = None,
        engine: str | Mapping[str, Any] = "auto",
    ):
        super().__init__(channels, causal)
        check_heads(channels, heads)
        spec = {"name": "free", "decay": 1.0, "max_length": 1024} if kernel is None else kernel
        of_head: Any = build(KERNELS, spec, heads, what="kernel", causal=causal)
        made: Any = (
            build(KERNELS, spec, channels, what="kernel", causal=causal)
            if of_head.recurrent
            else SharedKernel(channels, of_head)
        )
        self.value = nn.Linear(channels, channels)
        self.toeplitz = ToeplitzMixer(channels, causal=causal, kernel=made, engine=engine)
        self.out = nn.Linear(channels, channels)

    def mix(self, x: Tensor, state: Any, layout: Layout) -> tuple[Tensor, Any]:
        y, state = self.toeplitz.run(self.value(x), state, layout)
        return self.out(y), state

    def init_state(self, batch_size: int) -> Any:
        return self.toeplitz.init_state(batch_size)

    def mix_token(self, x: Tensor, state: Any) -> tuple[Tensor, Any]:
        y, state = self.toeplitz.step(self.value(x), state)
        return self.out(y), state
