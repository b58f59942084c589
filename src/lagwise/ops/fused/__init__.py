"""Fused kernels for GPUs, in Triton, which PyTorch brings there. Everything they compute, PyTorch computes too, in more
passes over memory: where `fused` is false, callers use that.

A kernel is an operator of the namespace ``lagwise_triton``, without a gradient, so that fake tensors and compilers know
its results. Modules named ``..._kernels`` hold the source, and are only imported where they run (`launch`). Arithmetic
is float32, whatever the tensors' dtype.
"""

from __future__ import annotations

import functools
import importlib
import importlib.util
import os
from collections.abc import Callable, Iterable
from typing import Any

import torch
from torch import Tensor

from lagwise.ops.operation import Engine, definitions_only, in_graph, loop_operator

_DTYPES = (torch.float32, torch.bfloat16, torch.float16)
_devices = ["cuda"]  # tests add the CPU, where Triton interprets kernels
_installed = os.environ.get("LAGWISE_TRITON") != "0" and importlib.util.find_spec("triton") is not None


def fused(*arguments: Any) -> bool:
    """Whether a Triton kernel can run on the tensors among these, of which the first is one, eagerly or under
    `torch.compile`."""
    if arguments[0].device.type not in _devices or not _installed:  # first, since every token on a CPU asks
        return False
    tensors = [each for each in arguments if isinstance(each, Tensor)]
    if not all(t.device.type in _devices and t.dtype in _DTYPES for t in tensors):
        return False
    return not definitions_only() and 0 not in [t.numel() for t in tensors]


class TritonEngine(Engine):
    """An engine that serves whatever tensors Triton does."""

    serves = staticmethod(fused)


def autocast_dtype(x: Tensor) -> torch.dtype:
    """The dtype that autocast gives a matrix product of x, or x's own."""
    kind = x.device.type
    cast = torch.is_autocast_enabled(kind) and x.dtype != torch.float64
    return torch.get_autocast_dtype(kind) if cast else x.dtype


def kernel(
    like: Callable[..., Any], *, writes: Iterable[str] = ()
) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Decorate a function that launches one Triton kernel. Arguments as of `loop_operator`."""
    return loop_operator(like, "lagwise_triton", writes=writes)


def launch(name: str, grid: tuple[int, ...], *arguments: Any, **constants: Any) -> None:
    """Launch a kernel by its name, ``"module.kernel"`` for one in ``module_kernels``."""
    _source(name)[grid](*arguments, **constants)


@functools.cache
def _source(name: str) -> Any:
    module, _, kernel = name.partition(".")
    return getattr(importlib.import_module(f"{__name__}.{module}_kernels"), kernel)


def contiguous_rows(x: Tensor) -> Tensor:
    """x ``(..., channels)`` with the channels of a row next to each other."""
    return x if x.stride(-1) == 1 or x.shape[-1] == 1 else x.contiguous()


def rows_of(x: Tensor) -> Tensor:
    """x ``(..., channels)`` as ``(rows, channels)``, each row contiguous; a copy if rows are not at even distances."""
    return contiguous_rows(x).flatten(0, -2)


def joined(parts: list[Tensor]) -> Tensor:
    """Concatenate parts ``(..., channels)`` along the channels: without a copy where they are neighbours in memory, as
    gradients that were computed into one tensor. In graphs, which have no memory yet, compilers leave out the copy of
    parts that `split` has made."""
    if len(parts) == 1:
        return parts[0]
    if in_graph():
        return torch.cat(parts, dim=-1)
    first, channels = parts[0], sum(part.shape[-1] for part in parts)
    position, lead = first.storage_offset(), first.stride()[:-1]
    for part in parts:
        same = part.untyped_storage().data_ptr() == first.untyped_storage().data_ptr() and part.dtype == first.dtype
        if not same or part.storage_offset() != position or part.stride() != (*lead, 1):
            return torch.cat(parts, dim=-1)
        position += part.shape[-1]
    return first.as_strided((*first.shape[:-1], channels), (*lead, 1))
