"""MEGA's moving average against a stack of dilated convolutions: TCNCA's figures 2 and 7, with more methods."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from lagwise.kernels import EMAKernel
from lagwise.ops import dilated_convolution, ema_scan, toeplitz_product
from lagwise.progress import progress_bar
from lagwise_papers.bench.harness import Comparison, Factory, check_layer, check_product, some_channels
from lagwise_papers.bench.peers import LiteralEMA, mega_pytorch_ema
from lagwise_papers.bench.plots import times_over_length
from lagwise_papers.bench.tcn_shapes import smallest_dilation
from lagwise_papers.bench.timing import Timing

if TYPE_CHECKING:
    from matplotlib.figure import Figure

TCN, MEGA, MEGA_FIXED = "tcn", "mega ema", "mega ema, kernel given"
KERNEL_SIZE, DEPTH = 17, 4  # TCNCA app. H
PEER = "mega-pytorch"


@dataclass(frozen=True)
class Row:
    """Result for one length, by method: seconds of a forward pass and of a training step, peak memory of a step in
    bytes, and errors."""

    length: int
    dilation: int
    forward: dict[str, Timing]
    step: dict[str, Timing]
    error: dict[str, float]
    memory: dict[str, int]

    def backward(self, method: str) -> float:
        """Return the seconds of a training step minus those of a forward pass."""
        return self.step[method].median - self.forward[method].median


def time_ema_tcn(
    lengths: Sequence[int], comparison: Comparison, *, causal: bool = True, peer: bool = True
) -> list[Row]:
    """Time moving averages with 64 parameters per channel and a TCN with 68.

    A causal average has 16 dimensions, a two-sided one 8 in each direction. The TCN has no residuals, norms or
    activations; its depth is 4, its kernel size 17, and its dilation factor the smallest whose receptive field is at
    least the length (TCNCA app. H). The averages are MEGA's FFT with and without kernel generation (app. I), ours by
    FFT, ours by scan, and that of mega-pytorch (``peer``, causal only). Results are checked first: averages with
    `check_layer`, the TCN against torch's convolutions.

    Raises:
        ValueError: If the peer is not installed.
        ValueError: If a result is wrong.
    """
    factories: dict[str, Factory] = {
        TCN: partial(BareTCN, causal=causal),
        MEGA: partial(literal, causal=causal),
        MEGA_FIXED: partial(literal, causal=causal, fixed=True),
        "ema by fft": partial(BareEMA, causal=causal, engine="fft"),
        "ema by scan": partial(BareEMA, causal=causal, engine="scan"),
        **({PEER: mega_pytorch_ema} if peer and causal else {}),
    }
    rows = []
    for length in progress_bar(lengths, desc="lengths", show=comparison.progress):
        checked = partial(check, channels=comparison.channels, length=length, causal=causal)
        _, _, forward, step, error, memory = comparison.measure(factories, length, checked)
        rows.append(Row(length, dilation_for(length), forward, step, error, memory))
    return rows


def check(layer: nn.Module, channels: int, length: int, *, causal: bool) -> float:
    """Compute the layer's largest error, for values and input gradients; ValueError if it is too large."""
    if not isinstance(layer, BareTCN):
        return check_layer(layer, channels, length, causal=causal)

    def convolutions(x: Tensor, channel: int) -> Tensor:
        h = x.transpose(1, 2)
        for taps, dilation in zip(layer.taps, layer.dilations, strict=True):
            reach = (KERNEL_SIZE - 1) * dilation
            h = F.pad(h, (reach, 0) if causal else (reach // 2, reach // 2))
            h = F.conv1d(h, taps[channel].detach().double().flip(0)[None, None], dilation=dilation)
        return h.transpose(1, 2)

    what = "stack of dilated convolutions"
    return check_product(layer, channels, length, convolutions, some_channels(channels), what)


def dilation_for(length: int) -> int:
    """Find the smallest dilation factor whose receptive field covers the length (TCNCA app. H)."""
    return smallest_dilation(KERNEL_SIZE, DEPTH, length)


class BareTCN(nn.Module):
    """Stack of dilated convolutions without residuals, norms and activations, initialized to unit gain."""

    def __init__(self, channels: int, length: int, *, causal: bool):
        super().__init__()
        self.causal = causal
        self.dilations = [dilation_for(length) ** i for i in range(DEPTH)]
        scale = KERNEL_SIZE**-0.5
        self.taps = nn.ParameterList(scale * torch.randn(channels, KERNEL_SIZE) for _ in self.dilations)

    def forward(self, x: Tensor) -> Tensor:
        for taps, dilation in zip(self.taps, self.dilations, strict=True):
            x = dilated_convolution(x, taps, dilation, causal=self.causal)
        return x


class BareEMA(nn.Module):
    """Our moving average without the rest of MEGA's layer."""

    def __init__(self, channels: int, length: int = 0, *, causal: bool, engine: str):
        super().__init__()
        self.kernel = EMAKernel(channels, causal=causal, dimension=16 if causal else 8)
        self.engine = engine

    def forward(self, x: Tensor) -> Tensor:
        if self.engine != "scan":
            taps = self.kernel.taps(x.shape[1])
            return toeplitz_product(x, taps, causal=self.kernel.causal, engine=self.engine)
        weight, log_decay = self.kernel.exponentials()
        backward = None if self.kernel.causal else (weight[1], log_decay[1])
        return ema_scan(x, weight[0], log_decay[0], backward=backward)


def literal(channels: int, length: int, *, causal: bool, fixed: bool = False) -> nn.Module:
    """Make a layer of MEGA's published algorithm. fixed: compute the taps once and keep them as parameters."""
    layer = LiteralEMA(channels, causal=causal, dimension=16 if causal else 8)
    if fixed:
        layer.fix(length)
    return layer


def table_rows(rows: Sequence[Row]) -> list[tuple[Any, ...]]:
    """Format rows of (length, method, forward, backward, both relative to the TCN, memory, error)."""
    lines = []
    for row in rows:
        for name, forward in row.forward.items():
            lines.append(
                (
                    row.length,
                    name,
                    f"{forward.median * 1e3:.1f}",
                    f"{row.backward(name) * 1e3:.1f}",
                    f"{forward.median / row.forward[TCN].median:.2f}x",
                    f"{row.backward(name) / row.backward(TCN):.2f}x",
                    f"{row.memory[name] / 2**20:,.0f} MB" if name in row.memory else "",
                    f"{row.error[name]:.0e}",
                )
            )
    return lines


def figure(results: Mapping[str, Sequence[Row]]) -> Figure:
    """Plot forward and backward times against the length, by direction (TCNCA fig. 2 and 7)."""
    panels = {}
    for direction, rows in results.items():
        names = list(rows[0].forward)
        panels[f"{direction}, forward"] = {
            name: [(row.length, row.forward[name].median * 1e3) for row in rows] for name in names
        }
        panels[f"{direction}, backward"] = {
            name: [(row.length, row.backward(name) * 1e3) for row in rows] for name in names
        }
    return times_over_length(panels)
