"""Compare methods by time: runs are interleaved, and medians are reported with their spread."""

from __future__ import annotations

import json
import statistics
import subprocess
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from lagwise.process import denormals_as_zero
from lagwise.training.machine import describe


@dataclass(frozen=True)
class Timing:
    """Median and quartiles of seconds over the repeats."""

    median: float
    lower: float
    upper: float

    @classmethod
    def of(cls, seconds: Sequence[float]) -> Timing:
        lower, median, upper = statistics.quantiles(seconds, n=4, method="inclusive")
        return cls(median, lower, upper)


@denormals_as_zero()
def interleaved(
    methods: Mapping[str, Callable[[], Any]],
    *,
    repeats: int,
    warmup: int = 2,
    clock: Callable[[], float] = time.perf_counter,
) -> dict[str, Timing]:
    """Time methods in turn, A B A B ..., so that changes of the machine's speed affect all of them equally, and with
    the arithmetic of trainings (`denormals_as_zero`).

    Args:
        methods: Functions to time, by name.
        repeats: Timed calls of each.
        warmup: Untimed calls of each.
        clock: Seconds; `time.process_time` where other processes take much of the machine.

    Raises:
        ValueError: If repeats < 2.
    """
    if repeats < 2:
        raise ValueError(f"repeats must be at least 2, got {repeats}")
    seconds: dict[str, list[float]] = {name: [] for name in methods}
    for turn in range(warmup + repeats):
        for name, method in methods.items():
            _synchronize()
            start = clock()
            method()
            _synchronize()
            if turn >= warmup:
                seconds[name].append(clock() - start)
    return {name: Timing.of(values) for name, values in seconds.items()}


def training_step(layer: nn.Module, x: Tensor) -> Callable[[], None]:
    """A function that clears gradients and runs a layer's forward and backward passes."""
    x = x.detach().requires_grad_()
    grad = torch.ones_like(x)

    def step() -> None:
        layer.zero_grad()
        x.grad = None
        layer(x).backward(grad)

    return step


def save_results(path: Path, command: str, results: Any) -> None:
    """Write results as JSON with the command, commit, machine and versions."""
    commit = subprocess.run(["git", "rev-parse", "HEAD"], capture_output=True, text=True, check=False).stdout.strip()
    content = {"command": command, "commit": commit or None, **describe(), "results": results}
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(content, indent=1, default=asdict) + "\n", encoding="utf-8")


def _synchronize() -> None:
    if torch.cuda.is_available():
        torch.cuda.synchronize()
