"""Tokens per second and memory of streaming against the context length, for layers and whole models."""

from __future__ import annotations

import itertools
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from lagwise.mixers.attention import AttentionMixer, AttentionState
from lagwise.progress import progress_bar
from lagwise_papers.bench.plots import times_over_length
from lagwise_papers.bench.stream_peers import NStates
from lagwise_papers.bench.streams import (
    BASELINES,
    CACHE,
    CHECKED_STEPS,
    EXACT,
    N_STATES,
    RECOMPUTE,
    RING,
    Layer,
    Model,
    Subject,
    layers,
    models,
    state_bytes,
)
from lagwise_papers.bench.timing import Timing

if TYPE_CHECKING:
    from matplotlib.figure import Figure

_CHUNK = 4096  # tokens of a context prefilled at once
_TOLERANCE = 1e-3
# Longest context at which a method is checked (whole models as for attention); longer checks would take minutes.
_CHECKED = {CACHE: 4096, N_STATES: 1024}
_TURN, _SLOW_TURN = 64, 4  # tokens per timed turn (64 is a whole block of the online convolution); of baselines


@dataclass(frozen=True)
class Row:
    """Result of one method at one context length: seconds per token of the whole batch, their 99th percentile (None for
    baselines), and the size of the streaming state in bytes."""

    method: str
    length: int
    batch: int
    token: Timing
    slow_token: float | None
    memory: int

    @property
    def tokens_per_second(self) -> float:
        return self.batch / self.token.median


def time_generation(
    what: str,
    lengths: Sequence[int],
    batches: Sequence[int],
    *,
    channels: int = 256,
    repeats: int = 5,
    threads: int | None = None,
    max_tokens: int = 1 << 18,
    baselines: bool = True,
    progress: bool = True,
) -> list[Row]:
    """Time streaming after contexts of each length, methods in turn.

    A turn has 64 tokens, or 4 for baselines. ``recompute`` is a forward pass over the whole context by the model or
    layer without decay. Each method is checked first: 70 tokens streamed one by one after a context must match the
    forward pass to 1e-3 of the largest value. Layers are checked at every length, attention and models up to 4096. The
    key-value caches of attention and the n states are filled with noise, which takes the same time to read.

    Args:
        what: ``layers`` or ``models``.
        lengths: Context lengths.
        batches: Batch sizes.
        channels: Channels of a layer.
        repeats: Timed turns.
        threads: CPU threads; by default those of torch.
        max_tokens: Skip contexts with more tokens over all rows.
        baselines: Whether to time the baselines too.
        progress: Whether to show a progress bar.

    Raises:
        ValueError: If ``what`` is unknown or a result is wrong.
    """
    if threads:
        torch.set_num_threads(threads)
    if what not in ("layers", "models"):
        raise ValueError(f"what must be layers or models, got {what!r}")
    cases = [(b, n) for b, n in itertools.product(batches, lengths) if b * n <= max_tokens]
    rows: list[Row] = []
    model_factories = models() if what == "models" else {}
    with torch.inference_mode():
        for batch, length in progress_bar(cases, desc=what, show=progress):
            factories = model_factories or layers(channels, length)
            subjects = {name: make(batch) for name, make in factories.items() if baselines or name not in BASELINES}
            for name, subject in subjects.items():
                if batch == min(batches):
                    checked = _CHECKED.get(name, _CHECKED[CACHE] if what == "models" else length)
                    if checked < length and name == N_STATES:
                        _check(name, layers(channels, checked)[name](1), checked)
                    else:
                        _check(name, factories[name](1), min(length, checked))
                _fill(subject, length)
            rows += _timed(subjects, length, batch, repeats, recompute=baselines)
    return rows


def _check(name: str, subject: Subject, length: int) -> None:
    x = subject.inputs(length + CHECKED_STEPS)
    for chunk in x[:, :length].split(_CHUNK, dim=1):
        subject.fill(chunk)
    steps = torch.cat([subject.fill(token)[:, -1:] for token in x[:, length:].split(1, dim=1)], dim=1)
    full = subject.forward(x)[:, -CHECKED_STEPS:]
    error = ((steps - full).abs().max() / full.abs().max()).item()
    if not error <= _TOLERANCE:
        raise ValueError(
            f"streaming of {name} differs from its forward pass by {error:.1e} of the largest value after {length} "
            "tokens; wrong results are not timed"
        )


def _fill(subject: Subject, length: int) -> None:
    """Fill a stream's state with a context. Attention and n states are filled with noise, which is much faster."""
    if isinstance(subject, Layer) and isinstance(subject.mixer, AttentionMixer):
        subject.state = _noise_cache(subject.mixer, subject.batch, length)
        return
    if isinstance(subject, Layer) and isinstance(subject.mixer, NStates):
        subject.state = torch.randn_like(subject.state)
        return
    if isinstance(subject, Model):
        mixers = [m for m in subject.model.modules() if isinstance(m, AttentionMixer)]
        if mixers:
            subject.fill(subject.inputs(1))
            subject.state.states = [_noise_cache(mixer, subject.batch, length) for mixer in mixers]
            subject.state.seen += length - 1
            return
    for start in range(0, length, _CHUNK):
        subject.fill(subject.inputs(min(_CHUNK, length - start)))


def _noise_cache(mixer: AttentionMixer, batch: int, length: int) -> AttentionState:
    device = mixer.out.weight.device
    _, state = mixer.prefill(torch.randn(batch, 1, mixer.channels, device=device), mixer.init_state(batch))
    noise = torch.randn(batch, mixer.heads, length - 1, mixer.channels // mixer.heads, device=device)
    return AttentionState(state.key.append(noise), state.value.append(noise.flip(2)), state.seen + length - 1)


def _timed(subjects: Mapping[str, Subject], length: int, batch: int, repeats: int, *, recompute: bool) -> list[Row]:
    seconds: dict[str, list[float]] = {name: [] for name in subjects}
    means: dict[str, list[float]] = {name: [] for name in subjects}
    for turn in range(repeats + 1):  # the first warms up
        for name, subject in subjects.items():
            turns = _SLOW_TURN if name in BASELINES else _TURN
            spent = [_seconds(subject.fill, token) for token in subject.inputs(turns).split(1, dim=1)]
            if turn:
                seconds[name] += spent
                means[name].append(sum(spent) / len(spent))
    rows = []
    for name, subject in subjects.items():
        slow = None if name in BASELINES else torch.tensor(seconds[name]).quantile(0.99).item()
        rows.append(Row(name, length, batch, Timing.of(means[name]), slow, state_bytes(subject.state)))
    if recompute:
        subject = subjects[EXACT]
        x = subject.inputs(length)
        spent = [_seconds(subject.forward, x) for _ in range(3)][1:]
        rows.append(Row(RECOMPUTE, length, batch, Timing.of(spent), None, 0))
    return rows


def _seconds(method: Callable[[Tensor], Any], x: Tensor) -> float:
    start = time.perf_counter()
    method(x)
    if torch.cuda.is_available():
        torch.cuda.synchronize()
    return time.perf_counter() - start


def table_rows(rows: Sequence[Row]) -> list[tuple[Any, ...]]:
    """Format rows of (length, method, tokens/s, slowest ms, speedup over recomputing, ring buffer and attention,
    memory)."""
    speed = {(row.method, row.length): row.tokens_per_second for row in rows}
    lines = []
    for row in rows:
        over = [speed.get((name, row.length)) for name in (RECOMPUTE, RING, CACHE)]
        lines.append(
            (
                row.length,
                row.method,
                f"{row.tokens_per_second:,.0f}" if row.tokens_per_second >= 10 else f"{row.tokens_per_second:.2f}",
                "" if row.slow_token is None else f"{row.slow_token * 1e3:.1f}",
                *("" if other is None else f"{row.tokens_per_second / other:,.1f}x" for other in over),
                f"{row.memory / 2**20:,.1f} MB" if row.memory else "",
            )
        )
    return lines


def figure(results: Mapping[str, Sequence[Row]]) -> Figure:
    """Plot milliseconds per token against the context length, by batch size."""
    panels = {}
    for what, rows in results.items():
        for batch in sorted({row.batch for row in rows}):
            batch_rows = [row for row in rows if row.batch == batch]
            panels[f"{what}, batch {batch}: ms per token"] = {
                name: [(row.length, row.token.median * 1e3) for row in batch_rows if row.method == name]
                for name in dict.fromkeys(row.method for row in batch_rows)
            }
    return times_over_length(panels)
