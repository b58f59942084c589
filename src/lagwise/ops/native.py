"""Loops in C, compiled on the machine that runs them, for the little that the framework does slowly on a CPU.

`native.c` is compiled at first use, in less than a second, with the compiler that ``$CC`` names or ``cc``, and kept in
the cache for later processes. Where there is no compiler, off Linux, or where ``LAGWISE_NATIVE=0`` forbids it, callers
take the framework's way, which gives the same results.
"""

from __future__ import annotations

import ctypes
import functools
import hashlib
import math
import os
import platform
import shlex
import shutil
import subprocess
import tempfile
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import torch
from torch import Tensor

from lagwise.cache import default_cache

_SOURCE = Path(__file__).with_name("native.c")
_FLAGS = ("-O3", "-march=native", "-fopenmp", "-shared", "-fPIC")
# Parts of a sum share the work out and round less than a long one, but are added up in the end.
_PARTS_PER_THREAD, _TOKENS_OF_A_PART, _ELEMENTS_OF_PARTS = 8, 512, 1 << 22
_MOST_LAGS = 1024  # at once: the loop keeps as many tokens, and more, on a thread's stack
_COMPILE_SECONDS = 20


@torch.compiler.assume_constant_result
def available() -> bool:
    """Whether the loops are there to be called."""
    return _loops() is not None


def lag_products(y: Tensor, x: Tensor, first: int, last: int, dilation: int) -> Tensor:
    """Sums ``sum_i y_i x_{i - l dilation}`` of every channel, over the batch too, for l = first..last.

    Shapes: x and y ``(batch, length, channels)``, float32, on the CPU; result ``(channels, last - first + 1)``.
    """
    y, x = (t if t.stride(2) == 1 else t.contiguous() for t in (y, x))
    ranges = [(start, min(start + _MOST_LAGS - 1, last)) for start in range(first, last + 1, _MOST_LAGS)]
    return torch.cat([_some_lag_products(y, x, start, stop, dilation) for start, stop in ranges], dim=1)


def _some_lag_products(y: Tensor, x: Tensor, first: int, last: int, dilation: int) -> Tensor:
    loops = _loops()
    assert loops is not None
    (batch, length, channels), lags, threads = x.shape, last - first + 1, torch.get_num_threads()
    part = (-(-channels // loops.lanes), -(-lags // loops.lags) * loops.lags, loops.lanes)
    most = min(batch * length // _TOKENS_OF_A_PART, _PARTS_PER_THREAD * threads, _ELEMENTS_OF_PARTS // math.prod(part))
    parts = max(1, most)
    out = torch.empty((parts, *part))
    loops.lag_products(
        *(ctypes.c_void_p(y.data_ptr()), ctypes.c_long(y.stride(0)), ctypes.c_long(y.stride(1))),
        *(ctypes.c_void_p(x.data_ptr()), ctypes.c_long(x.stride(0)), ctypes.c_long(x.stride(1))),
        ctypes.c_void_p(out.data_ptr()),
        *(ctypes.c_long(n) for n in (batch, length, channels, dilation, first, last, parts)),
        ctypes.c_int(threads),
    )
    return out.sum(0).transpose(1, 2).flatten(0, 1)[:channels, :lags].flip(1)


class _Loops(NamedTuple):
    """`native.c`, loaded: its function, and the channels and lags of a group as it lays partial results out."""

    lag_products: Callable[..., None]
    lanes: int
    lags: int


@functools.cache
def _loops() -> _Loops | None:
    if os.environ.get("LAGWISE_NATIVE") == "0" or platform.system() != "Linux":  # other compilers have no OpenMP
        return None
    if "CC" not in os.environ and shutil.which("cc") is None:
        return None
    try:
        command = [*shlex.split(os.environ.get("CC", "cc")), *_FLAGS, str(_SOURCE)]
        library = ctypes.CDLL(str(_compiled(default_cache() / "native", command)))
        lanes, lags = ctypes.c_long(), ctypes.c_long()
        library.layout(ctypes.byref(lanes), ctypes.byref(lags))
        return _Loops(library.lag_products, lanes.value, lags.value)
    except (OSError, RuntimeError, AttributeError, subprocess.SubprocessError) as error:
        details = getattr(error, "stderr", None) or error
        warnings.warn(f"short convolutions train slower, as their loop in C is not to be had: {details}", stacklevel=2)
        return None


def _compiled(folder: Path, command: list[str]) -> Path:
    """What the command makes of the source, from the folder if it is there: complete, or it is made again."""
    key = _key(command)
    for path in folder.glob(f"{key}-*.so"):
        if path.stem == f"{key}-{_digest(path.read_bytes())}":
            return path
        path.unlink(missing_ok=True)
    folder.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=folder) as made:
        partial = Path(made) / "native.so"
        subprocess.run(
            [*command, "-o", str(partial)], check=True, capture_output=True, text=True, timeout=_COMPILE_SECONDS
        )
        return partial.replace(folder / f"{key}-{_digest(partial.read_bytes())}.so")


def _key(command: list[str]) -> str:
    """A name for what this command makes of the source on this processor: caches may be shared between machines."""
    lines = Path("/proc/cpuinfo").read_text().splitlines()
    processor = sorted({line for line in lines if line.startswith(("flags", "Features", "model name"))})
    made_of = [_SOURCE.read_text(), *command, platform.machine(), *processor]
    return _digest("\n".join(made_of).encode())


def _digest(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()[:16]
