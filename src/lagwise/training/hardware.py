"""The capabilities of this machine that training and benchmarks need to know."""

from __future__ import annotations

import functools
import os
import platform
import time
from typing import Any

import torch


@functools.cache
def bfloat16_is_fast() -> bool:
    """Whether matrix products on this machine are faster in bfloat16 than in float32.

    GPUs are asked. CPUs that have instructions for it are timed once per process: those with AMX are several times as
    fast as in float32, but some with only AVX512-BF16 are half as fast.
    """
    if torch.cuda.is_available():
        return torch.cuda.is_bf16_supported(including_emulation=False)
    capabilities = torch.cpu.get_capabilities()
    if not any("bf16" in name and bool(value) for name, value in capabilities.items()):
        return False
    return _product_seconds(torch.bfloat16) < 0.8 * _product_seconds(torch.float32)  # casts take some of the gain


def check_tf32(wanted: bool) -> None:
    """ValueError if this machine has no products in TF32."""
    from transformers.utils import is_torch_tf32_available

    if wanted and not is_torch_tf32_available():
        raise ValueError("`tf32` needs an NVIDIA GPU since Ampere, which is not here; leave it out")


def check_precision(precision: str) -> None:
    """ValueError for float16 on a machine without an NVIDIA GPU."""
    if precision == "float16" and not torch.cuda.is_available():
        raise ValueError("`precision=float16` needs an NVIDIA GPU, which is not here; leave it out, or take bfloat16")


def of_first_process(choice: bool) -> bool:
    """The choice of the first process, for all of them, which must call this together. Processors may differ, but
    processes that choose differently do not keep the same weights."""
    if not (torch.distributed.is_available() and torch.distributed.is_initialized()):
        return choice
    choices = [choice]
    torch.distributed.broadcast_object_list(choices, src=0)
    return choices[0]


def _product_seconds(dtype: torch.dtype) -> float:
    """The shortest of several times of a matrix product."""
    matrix = torch.ones(512, 512, dtype=dtype)
    times = []
    for _ in range(10):
        begun = time.perf_counter()
        matrix @ matrix
        times.append(time.perf_counter() - begun)
    return min(times)


def describe() -> dict[str, Any]:
    """Hardware and versions, for results files."""
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
