"""Loops in C, compiled on the machine that runs them, for the few operations that PyTorch does slowly on a CPU.

`native.c` is compiled at first use, in less than a second, with the compiler in ``$CC`` or ``cc``, and kept in the
cache for later processes (`load_compiled`). Without a compiler, on systems other than Linux, or with
``LAGWISE_NATIVE=0``, callers use PyTorch, which gives the same results.
"""

from __future__ import annotations

import ctypes
import functools
import math
import os
import platform
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import torch
from torch import Tensor

from lagwise.compiler import find_compiler, load_compiled

_SOURCE = Path(__file__).with_name("native.c")
_FLAGS = ("-O3", "-march=native", "-fopenmp", "-shared", "-fPIC")
# Partial sums distribute the work and round less than one long sum, but must be added up at the end.
_PARTS_PER_THREAD, _TOKENS_OF_A_PART, _ELEMENTS_OF_PARTS = 8, 512, 1 << 22
_MOST_LAGS = 1024  # at once: the loop keeps more than this many tokens on a thread's stack


@torch.compiler.assume_constant_result
def available() -> bool:
    """Whether the loops can be called."""
    return _loops() is not None


def lag_products(y: Tensor, x: Tensor, first: int, last: int, dilation: int) -> Tensor:
    """Sums ``sum_i y_i x_{i - l dilation}`` of every channel, also over the batch, for l = first..last.

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
    """`native.c`, loaded: its function, and the group sizes of channels and lags in its layout of partial results."""

    lag_products: Callable[..., None]
    lanes: int
    lags: int


@functools.cache
def _loops() -> _Loops | None:
    if os.environ.get("LAGWISE_NATIVE") == "0" or platform.system() != "Linux":  # other compilers have no OpenMP
        return None
    try:
        compiler = find_compiler()
        return None if compiler is None else load_compiled(_SOURCE, compiler, _FLAGS, _bound)
    except Exception as error:  # whatever failed, PyTorch gives the same results
        warnings.warn(
            f"Could not compile the C kernel; falling back to PyTorch (short convolutions train more slowly): {error}",
            stacklevel=2,
        )
        return None


def _bound(library: ctypes.CDLL) -> _Loops:
    lanes, lags = ctypes.c_long(), ctypes.c_long()
    library.layout(ctypes.byref(lanes), ctypes.byref(lags))
    return _Loops(library.lag_products, lanes.value, lags.value)
