"""The capabilities of this machine that training and benchmarks need to know."""

from __future__ import annotations

import os
import platform
from typing import Any

import torch


def bfloat16_is_fast() -> bool:
    """Whether this machine has instructions for matrix products in bfloat16 (GPU, AMX, AVX512-BF16)."""
    if torch.cuda.is_available():
        return torch.cuda.is_bf16_supported(including_emulation=False)
    capabilities = torch.cpu.get_capabilities()
    return any("bf16" in name and bool(value) for name, value in capabilities.items())


def describe() -> dict[str, Any]:
    """Hardware and versions, for results files."""
    import numpy
    import transformers

    from lagwise import __version__

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
    }


def _processor() -> str:
    try:
        with open("/proc/cpuinfo") as f:
            return next(line.split(":", 1)[1].strip() for line in f if line.startswith("model name"))
    except (OSError, StopIteration):
        return platform.processor()
