"""Latency of the streams of signals, and their speed relative to real time."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from lagwise.models import (
    LagwiseForSignalRegression,
    LagwiseForTokenClassification,
    StreamingClassifier,
    StreamingRegressor,
)
from lagwise.models.signal_stream import SignalStream, whole_output

_TOLERANCE = 1e-3  # for probabilities, or relative to the deviation of outputs, in float32 with possibly large weights


@dataclass(frozen=True)
class SignalSpeed:
    """Latency and speed for one chunk size.

    Args:
        chunk: Samples per push.
        median: Median seconds of a push.
        late: 99th percentile of the seconds.
        worst: Longest time in seconds.
        completing: Median seconds of pushes that complete a step.
        real_time: Seconds of signal processed per second.
        one_core: Seconds of signal processed per second of CPU time, which other programs do not affect.
    """

    chunk: int
    median: float
    late: float
    worst: float
    completing: float
    real_time: float
    one_core: float


def time_signal(
    model: Any, rate: float, seconds: float, chunks: Sequence[int], *, warmup: float = 1.0
) -> list[SignalSpeed]:
    """Stream noise through a model in chunks of each size.

    First, streaming with the smallest chunks is compared with the model's output for the whole signal.

    Args:
        model: A classifier of signals, or a model that gives another signal.
        rate: Samples per second.
        seconds: Seconds of signal to time.
        chunks: Samples per push.
        warmup: Seconds of signal that are not timed.

    Raises:
        ValueError: If a probability, or an output relative to the outputs' deviation, differs by more than 1e-3, or if
            the signal is too short for a chunk size.
    """
    regression = isinstance(model, LagwiseForSignalRegression)
    stream: SignalStream = StreamingRegressor(model) if regression else StreamingClassifier(model)
    total, before = round((warmup + seconds) * rate), round(warmup * rate)
    signal = torch.randn(total, stream.features)
    _check(model, stream, signal[: max(4 * stream.stride, min(total, round(rate)))], min(chunks))
    results = []
    for chunk in chunks:
        stream.reset()
        times, complete, used = [], [], 0.0
        for start in range(0, total - chunk + 1, chunk):
            samples = signal[start : start + chunk]
            begun, used_before = time.perf_counter(), time.process_time()
            steps = stream.push(samples)
            ended = time.perf_counter()
            if start >= before:
                times.append(ended - begun)
                used += time.process_time() - used_before
                complete.append(len(steps) > 0)
        seconds_per_push, completed = np.asarray(times), np.asarray(complete)
        if not len(seconds_per_push) or not completed.any():
            raise ValueError(f"{seconds} seconds are too short for pushes of {chunk} samples")
        results.append(
            SignalSpeed(
                chunk=chunk,
                median=float(np.median(seconds_per_push)),
                late=float(np.percentile(seconds_per_push, 99)),
                worst=float(seconds_per_push.max()),
                completing=float(np.median(seconds_per_push[completed])),
                real_time=len(seconds_per_push) * chunk / rate / float(seconds_per_push.sum()),
                one_core=len(seconds_per_push) * chunk / rate / used,
            )
        )
    return results


@torch.inference_mode()
def _check(model: Any, stream: SignalStream, signal: torch.Tensor, chunk: int) -> None:
    if not isinstance(model, LagwiseForTokenClassification | LagwiseForSignalRegression):
        return  # outputs for prefixes are covered by tests
    outputs = [stream.push(samples) for samples in signal.split(chunk)]
    if isinstance(stream, StreamingRegressor):
        streamed, full = torch.cat([*outputs, stream.finish()]), whole_output(stream.model, signal)
        streamed, full = (each / full.std().clamp(min=1e-6) for each in (streamed, full))
    else:
        streamed = torch.cat(outputs)
        full = model(input_values=signal[None, : len(streamed) * stream.stride]).logits[0].softmax(-1)
    error = float((streamed - full).abs().max())
    if not error <= _TOLERANCE:
        raise ValueError(f"streaming differs by {error:.1e} from the output for the whole signal")


def table_rows(results: Sequence[SignalSpeed], rate: float) -> list[tuple[str, ...]]:
    """Format rows of (samples, seconds of signal, median, p99, worst and completing ms, times real time, the same of
    one core)."""
    return [
        (
            str(r.chunk),
            f"{r.chunk / rate:.3g}",
            *(f"{1e3 * value:.3f}" for value in (r.median, r.late, r.worst, r.completing)),
            *(f"{value:,.0f}x" for value in (r.real_time, r.one_core)),
        )
        for r in results
    ]
