"""How late a classifier of signals answers, and how many times faster than the signal it is."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from lagwise.models import LagwiseForTokenClassification, StreamingClassifier

_TOLERANCE = 1e-3  # of probabilities in float32, whose weights may be large


@dataclass(frozen=True)
class SignalSpeed:
    """chunk: samples of a push. median, late, worst: seconds that a push takes, the middle one, the 99th percentile and
    the longest. completing: the median of pushes that complete a step. real_time: seconds of signal in a second of the
    clock, and one_core in a second of a core's time, which other programs do not change."""

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
    """Stream ``seconds`` of noise, at ``rate`` samples a second, through a model in pushes of each size.

    First the stream of the smallest chunks is compared with the model's output for the whole signal: ValueError if a
    probability is off by over 1e-3. warmup: seconds of signal that are not timed.
    """
    stream = StreamingClassifier(model)
    total, before = round((warmup + seconds) * rate), round(warmup * rate)
    signal = torch.randn(total, stream.features)
    _check(model, stream, signal[: max(4 * stream.stride, min(total, round(rate)))], min(chunks))
    results = []
    for chunk in chunks:
        stream.reset()
        times, complete, used = [], [], 0.0
        for start in range(0, total - chunk + 1, chunk):
            part = signal[start : start + chunk]
            begun, used_before = time.perf_counter(), time.process_time()
            steps = stream.push(part)
            ended = time.perf_counter()
            if start >= before:
                times.append(ended - begun)
                used += time.process_time() - used_before
                complete.append(len(steps) > 0)
        taken, done = np.asarray(times), np.asarray(complete)
        if not len(taken) or not done.any():
            raise ValueError(f"{seconds} seconds are too short for pushes of {chunk} samples")
        results.append(
            SignalSpeed(
                chunk=chunk,
                median=float(np.median(taken)),
                late=float(np.percentile(taken, 99)),
                worst=float(taken.max()),
                completing=float(np.median(taken[done])),
                real_time=len(taken) * chunk / rate / float(taken.sum()),
                one_core=len(taken) * chunk / rate / used,
            )
        )
    return results


@torch.inference_mode()
def _check(model: Any, stream: StreamingClassifier, signal: torch.Tensor, chunk: int) -> None:
    if not isinstance(model, LagwiseForTokenClassification):
        return  # what it says of a prefix is tested, not timed here
    streamed = torch.cat([stream.push(part) for part in signal.split(chunk)])
    whole = model(input_values=signal[None, : len(streamed) * stream.stride]).logits[0].softmax(-1)
    error = float((streamed - whole).abs().max())
    if not error <= _TOLERANCE:
        raise ValueError(f"the stream is off by {error:.1e} from the output for the whole signal")


def table_rows(results: Sequence[SignalSpeed], rate: float) -> list[tuple[str, ...]]:
    """Samples of a push and their seconds; median, p99 and worst in ms, ms with a step; times real time, twice."""
    return [
        (
            str(r.chunk),
            f"{r.chunk / rate:.3g}",
            *(f"{1e3 * value:.3f}" for value in (r.median, r.late, r.worst, r.completing)),
            *(f"{value:,.0f}x" for value in (r.real_time, r.one_core)),
        )
        for r in results
    ]
