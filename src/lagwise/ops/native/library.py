"""The compiled C files, and calls of their functions."""

from __future__ import annotations

import ctypes
import functools
import os
import platform
import warnings
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from lagwise.compiler import find_compiler, load_compiled
from lagwise.ops.operation import beyond, definitions_only, in_graph

_FOLDER = Path(__file__).parent
_SOURCES = [_FOLDER / name for name in ("vector.h", "transform.h", "convolution.c", "lags.c", "grids.c", "tokens.c")]
_FLAGS = ("-O3", "-march=native", "-fopenmp", "-shared", "-fPIC")
_DTYPES = (torch.float32, torch.bfloat16)
MIN_ELEMENTS = 1 << 16  # numbers for which a call of a loop over tokens is worthwhile
_FUNCTIONS = (
    "layout lag_products grid_layout grid_scratch gated_grid gated_grid_gradients silu_product silu_product_gradients "
    "residual_norm residual_norm_gradients convolution_scratch convolution_roots convolve convolve_gradients"
)


@torch.compiler.assume_constant_result
def available() -> bool:
    """Whether the loops can be called."""
    return _loops() is not None


def serves(*tensors: Tensor, min_elements: int = 0) -> bool:
    """Whether loops in C serve these tensors, of which the first has at least so many numbers, also when
    `torch.compile` calls them from its graph, of which the compiler then has less to compile."""
    count = tensors[0].numel()
    if beyond(min_elements, count) and not in_graph():  # first, since every token asks
        return False
    if not all(t.device.type == "cpu" and t.dtype in _DTYPES for t in tensors) or definitions_only():
        return False
    return 0 not in [t.numel() for t in tensors] and available()


def loops() -> Any:
    """The library, if it is `available`, and what its layouts consist of: ``lanes``, channels of a group; ``lags`` of a
    group, in `lag_products`; ``span``, groups of a task, and ``extra_lags``, zeros after the taps, in `gated_grid`."""
    return _loops()


@torch.compiler.assume_constant_result
def lanes() -> int:
    """Return the number of channels of a group, if the loops are `available`."""
    return loops().lanes


def call(name: str, *arguments: Any) -> Any:
    """Call a function in C with tensors (their addresses, NULL for None), integers and flags (``long``), numbers
    (``float``) and structures (their addresses)."""
    return getattr(loops(), name)(*map(_in_c, arguments))


def _in_c(argument: Any) -> Any:
    if argument is None or isinstance(argument, Tensor):
        return ctypes.c_void_p(None if argument is None else argument.data_ptr())
    if isinstance(argument, int):
        return ctypes.c_long(argument)
    return ctypes.c_float(argument) if isinstance(argument, float) else ctypes.byref(argument)


def scratch(*shape: int) -> Tensor:
    """Memory for loops, as float32."""
    return torch.empty(shape, dtype=torch.float32, device="cpu")


def filled_biases(biases: Tensor | None, channels: int) -> Tensor:
    """Return biases ``(2, channels)`` in float32 with zeros up to whole groups; only zeros for None."""
    filled = channels + -channels % loops().lanes
    if biases is None:
        return torch.zeros(2, filled, dtype=torch.float32, device="cpu")
    return F.pad(biases.float(), (0, filled - channels)).contiguous()


@functools.cache
def _loops() -> ctypes.CDLL | None:
    if os.environ.get("LAGWISE_NATIVE") == "0" or platform.system() != "Linux":  # other compilers have no OpenMP
        return None
    try:
        compiler = find_compiler()
        if compiler is None:
            raise FileNotFoundError("there is no C compiler 'cc'; install one, or set CC")
        return load_compiled(_SOURCES, compiler, _FLAGS, _bound)
    except Exception as error:  # whatever failed, PyTorch gives the same results
        warnings.warn(
            f"Could not compile the C kernel; falling back to PyTorch (training is slower): {error}",
            stacklevel=2,
        )
        return None


def _bound(library: Any) -> ctypes.CDLL:
    for name in _FUNCTIONS.split():
        getattr(library, name)  # an AttributeError has it compiled again
    library.grid_scratch.restype = library.convolution_scratch.restype = ctypes.c_long
    sizes = [ctypes.c_long() for _ in range(4)]
    library.layout(*map(ctypes.byref, sizes[:2]))
    library.grid_layout(*map(ctypes.byref, sizes[2:]))
    library.lanes, library.lags, library.span, library.extra_lags = (size.value for size in sizes)
    return library
