"""Time exact convolution of whole texts, token by token: lagwise's streams and FutureFill's schedules."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import torch
from torch import Tensor

from lagwise.ops import online_prefill, toeplitz_product
from lagwise.ops.streaming import OnlineState, OnlineTaps
from lagwise.progress import progress_bar
from lagwise_papers.bench.future_fill import ContinuousFutureFill, EpochedFutureFill
from lagwise_papers.bench.streams import state_bytes
from lagwise_papers.bench.timing import Timing

LAGWISE = "lagwise"
_TOLERANCE = 1e-4


class Stream(Protocol):
    """A convolution in progress."""

    def step(self, x: Tensor) -> Tensor:
        """The output ``(batch, 1, channels)`` for the next input, of the same shape."""
        ...


# Called with taps (channels, length), lag 0 first, and the batch size.
StreamFactory = Callable[[Tensor, int], Stream]
PEERS: dict[str, StreamFactory] = {
    "Epoched-FutureFill": EpochedFutureFill,
    "Continuous-FutureFill": lambda taps, batch: ContinuousFutureFill(taps, batch, tile=1),
    "Continuous-FutureFill, tiles from 64": ContinuousFutureFill,
}


class OnlineStream:
    """The stream of a Toeplitz layer with given taps."""

    def __init__(self, taps: Tensor, batch: int):
        self.state = OnlineState.start(batch, OnlineTaps(lambda lags: taps[:, :lags], taps.shape[1]))

    def step(self, x: Tensor) -> Tensor:
        y, self.state = online_prefill(x, self.state)
        return y


@dataclass(frozen=True)
class Row:
    """Results of one method on texts of one length: seconds per token on average over a text, seconds of the slowest
    token (the median over texts), and bytes of the state after the text, taps included."""

    method: str
    length: int
    token: Timing
    slowest: float
    memory: int


def time_streams(
    lengths: Sequence[int],
    *,
    channels: int = 256,
    batch: int = 1,
    repeats: int = 3,
    threads: int | None = None,
    baselines: bool = True,
    peers: Mapping[str, StreamFactory] | None = None,
    progress: bool = True,
) -> list[Row]:
    """Time convolutions of texts of each length by as many taps, from the first token to the last, methods in turn.

    The taps do not decay, so that no method can shorten them. All outputs of the first text of each method must equal
    the product of the whole text to 1e-4 of the largest value.

    Args:
        lengths: Tokens of a text.
        channels: Channels.
        batch: Texts streamed together.
        repeats: Timed texts of each method.
        threads: CPU threads; by default those of torch.
        baselines: Whether to time FutureFill.
        peers: Further methods by name.
        progress: Whether to show a progress bar.

    Raises:
        ValueError: If repeats < 2 or a result is wrong.
    """
    if repeats < 2:
        raise ValueError(f"repeats must be at least 2, got {repeats}")
    if threads:
        torch.set_num_threads(threads)
    methods: dict[str, StreamFactory] = {LAGWISE: OnlineStream, **(PEERS if baselines else {}), **(peers or {})}
    rows = []
    with torch.inference_mode():
        for length in progress_bar(lengths, desc="streams", show=progress):
            torch.manual_seed(0)
            taps = torch.randn(channels, length) / length**0.5
            x = torch.randn(batch, length, channels)
            expected = toeplitz_product(x, taps)
            seconds: dict[str, list[float]] = {name: [] for name in methods}
            slowest: dict[str, list[float]] = {name: [] for name in methods}
            memory = {}
            for turn in range(repeats + 1):  # the first is checked
                for name, make in methods.items():
                    stream = make(taps, batch)
                    y, spent = _streamed(stream, x)
                    if not turn:
                        _check(name, y, expected)
                        memory[name] = state_bytes(stream)
                        continue
                    seconds[name].append(sum(spent) / length)
                    slowest[name].append(max(spent))
            rows += [
                Row(name, length, Timing.of(seconds[name]), statistics.median(slowest[name]), memory[name])
                for name in methods
            ]
    return rows


def _streamed(stream: Stream, x: Tensor) -> tuple[Tensor, list[float]]:
    outputs, spent = torch.empty_like(x), []
    for i in range(x.shape[1]):
        token = x[:, i : i + 1]
        start = time.perf_counter()
        y = stream.step(token)
        spent.append(time.perf_counter() - start)
        outputs[:, i : i + 1] = y
    return outputs, spent


def _check(name: str, y: Tensor, expected: Tensor) -> None:
    error = ((y - expected).abs().max() / expected.abs().max()).item()
    if not error <= _TOLERANCE:
        raise ValueError(
            f"{name} differs from the product of the whole text of {y.shape[1]} tokens by {error:.1e} of the largest "
            "value; wrong results are not timed"
        )


def table_rows(rows: Sequence[Row]) -> list[tuple[Any, ...]]:
    """Rows of (length, method, tokens/s, times our seconds per token, slowest token in ms, memory)."""
    ours = {row.length: row.token.median for row in rows if row.method == LAGWISE}
    return [
        (
            row.length,
            row.method,
            f"{1 / row.token.median:,.0f}",
            f"{row.token.median / ours[row.length]:.2f}x",
            f"{row.slowest * 1e3:.1f}",
            f"{row.memory / 2**20:,.1f} MB",
        )
        for row in rows
    ]
