"""The hardware that a training runs on, and the processes that train together."""

from __future__ import annotations

import os
import platform
import time
from functools import cache
from typing import Any, TypeVar

import torch
import torch.distributed as dist
from accelerate import PartialState

from lagwise.models.loading import default_device
from lagwise.process import group_size

_Choice = TypeVar("_Choice", bool, float)


@cache
def bfloat16_is_fast() -> bool:
    """Whether matrix products on this machine are faster in bfloat16 than in float32. CPUs that have instructions for
    it are timed once: some are half as fast."""
    if torch.cuda.is_available():
        return torch.cuda.is_bf16_supported(including_emulation=False)
    capabilities = torch.cpu.get_capabilities()
    if not any("bf16" in name and bool(value) for name, value in capabilities.items()):
        return False
    return _product_seconds(torch.bfloat16) < 0.8 * _product_seconds(torch.float32)  # casts cost some of the gain


def _product_seconds(dtype: torch.dtype) -> float:
    """Time a matrix product, in seconds: the minimum of ten runs."""
    matrix = torch.ones(512, 512, dtype=dtype)
    times = []
    for _ in range(10):
        begun = time.perf_counter()
        matrix @ matrix
        times.append(time.perf_counter() - begun)
    return min(times)


def describe() -> dict[str, Any]:
    """Describe hardware and versions, for results files."""
    import numpy
    import transformers

    from lagwise._version import __version__
    from lagwise.ops import native

    return {
        "lagwise": __version__,
        "python": platform.python_version(),
        "torch": torch.__version__,
        "transformers": transformers.__version__,
        "numpy": numpy.__version__,
        "system": platform.system(),
        "machine": platform.machine(),
        "processor": _processor(),
        "cores": os.cpu_count(),
        "threads": torch.get_num_threads(),
        "gpu": torch.cuda.get_device_name() if torch.cuda.is_available() else None,
        "bfloat16": bfloat16_is_fast(),
        "native": None if torch.cuda.is_available() else native.available(),  # whether the loops in C are in use
    }


def _processor() -> str:
    try:
        with open("/proc/cpuinfo", encoding="utf-8", errors="replace") as f:
            return next(line.split(":", 1)[1].strip() for line in f if line.startswith("model name"))
    except (OSError, StopIteration):
        return platform.processor()


def processes() -> PartialState:
    """Return accelerate's state of this process. On a CPU, every process would take itself for the only one unless it
    is told to use the CPU."""
    if group_size() > 1 and default_device().type == "cpu":
        return PartialState(cpu=True, backend="gloo")
    return PartialState()


def of_first_process(choice: _Choice) -> _Choice:
    """Return the choice of the first process in all processes, which must call this together to keep the same
    weights."""
    if not (dist.is_available() and dist.is_initialized()):
        return choice
    choices = [choice]
    dist.broadcast_object_list(choices, src=0)
    return choices[0]
