"""Training speed and memory of the causal Toeplitz layer, compared with the published algorithm."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import nn

from lagwise.mixers import ToeplitzMixer
from lagwise.progress import progress_bar
from lagwise_papers.bench.harness import Comparison, Factory, check_layer
from lagwise_papers.bench.peers import LiteralTNO
from lagwise_papers.bench.timing import Timing, interleaved

OURS, LITERAL = "lagwise", "literal"


@dataclass(frozen=True)
class Row:
    """Result for one length, by method: seconds and bytes of a training step, and errors relative to the largest
    value."""

    length: int
    batch: int
    seconds: dict[str, Timing]
    error: dict[str, float]
    memory: dict[str, int]

    def ratio(self, method: str) -> float:
        """Compute our speedup over the method."""
        return self.seconds[method].median / self.seconds[OURS].median


def time_layers(
    lengths: Sequence[int], comparison: Comparison, peers: Mapping[str, Factory] | None = None
) -> list[Row]:
    """Time training steps of our layer, the literal one and any peers at each length.

    Kernels are those of TNN table 13 (6 layers of 64, decay 0.99). Every layer is first checked with `check_layer`,
    which raises ValueError if a result is wrong.
    """
    factories: dict[str, Factory] = {OURS: ours, LITERAL: literal, **(peers or {})}
    rows = []
    for length in progress_bar(lengths, desc="lengths", show=comparison.progress):
        check = partial(check_layer, channels=comparison.channels, length=length)
        result = comparison.measure(factories, length, check)
        rows.append(Row(length, result.batch, result.step, result.error, result.memory))
    return rows


def where_time_goes(length: int, *, channels: int = 512, tokens: int = 8192, repeats: int = 15) -> dict[str, Timing]:
    """Time the parts of our training step: the kernel network, the product, and one rfft and irfft of the signal, the
    minimum for any FFT method."""
    from lagwise.ops import toeplitz_product
    from lagwise.ops.toeplitz import fast_length

    device = "cuda" if torch.cuda.is_available() else "cpu"
    mixer = ours(channels, length).to(device)
    assert isinstance(mixer, ToeplitzMixer)
    x = torch.randn(max(1, tokens // length), length, channels, device=device, requires_grad=True)
    taps = mixer.kernel.taps(length).detach().requires_grad_()
    signal = x.detach().transpose(1, 2).contiguous()
    n_fft = fast_length(length + taps.shape[1] - 1)

    def kernel() -> None:
        mixer.zero_grad()
        mixer.kernel.taps(length).sum().backward()

    def product() -> None:
        x.grad = taps.grad = None
        toeplitz_product(x, taps).sum().backward()

    def floor() -> None:
        for chunk in signal.split(32, dim=1):
            torch.fft.irfft(torch.fft.rfft(chunk, n_fft), n_fft)

    return interleaved({"kernel network": kernel, "product": product, "one rfft and irfft": floor}, repeats=repeats)


def ours(channels: int, length: int) -> nn.Module:
    """Make our layer with the kernel of TNN table 13."""
    return ToeplitzMixer(channels)


def literal(channels: int, length: int, *, causal: bool = True) -> nn.Module:
    """Make a layer of the published algorithm, implemented literally."""
    return LiteralTNO(channels, causal=causal)


def table_rows(rows: Sequence[Row]) -> list[tuple[Any, ...]]:
    """Format rows of (length, batch, method, milliseconds, quartiles, time relative to ours, memory)."""
    lines = []
    for row in rows:
        for name, timing in row.seconds.items():
            spread = f"{timing.lower * 1e3:.1f}-{timing.upper * 1e3:.1f}"
            memory = f"{row.memory[name] / 2**20:,.0f} MB" if name in row.memory else ""
            lines.append(
                (row.length, row.batch, name, f"{timing.median * 1e3:.1f}", spread, f"{row.ratio(name):.2f}x", memory)
            )
    return lines
