"""Tables: tensors that depend on sizes alone, made on the host and cached on the device that uses them."""

from __future__ import annotations

import functools
from collections.abc import Callable, Hashable
from concurrent.futures import ThreadPoolExecutor
from typing import Any, TypeVar

import torch
from torch import Tensor
from torch._subclasses.fake_tensor import unset_fake_temporarily
from torch.utils._device import DeviceContext

from lagwise.ops.operation import fake_mode, traced

_Tables = TypeVar("_Tables", bound=tuple[Tensor, ...])
_MAX_CACHED = 8  # tables of one kind: batches of different lengths have different tables


def cached_tables(make: Callable[..., _Tables], *sizes: Hashable, like: Tensor) -> _Tables:
    """``make(*sizes)``, a tuple of tensors on the host, on the device of ``like``, those of real numbers in its dtype.

    The last 8 results of each function are cached, as they take many small steps on the host, and copies to the device.
    """
    if traced():
        with DeviceContext(like.device):  # a graph that made them on the host would copy them at every step
            return _move_to(make(*sizes), like.device, like.dtype)
    return _cache(make)(sizes, like.device, like.dtype, fake_mode())


@functools.cache  # thread-safe, as `lru_cache`
def _cache(make: Callable[..., _Tables]) -> Callable[..., _Tables]:
    @functools.lru_cache(maxsize=_MAX_CACHED)
    def tables(sizes: tuple[Hashable, ...], device: torch.device, dtype: torch.dtype, fake: Any) -> _Tables:
        def on_device() -> _Tables:
            with torch.inference_mode(False), torch.no_grad():  # or they could not be saved for a backward pass
                with unset_fake_temporarily(), torch.device("cpu"):  # sizes depend on values
                    on_host = make(*sizes)
                return _move_to(on_host, device, dtype)

        return _on_own_thread(on_device, device) if device.type == "cuda" and fake is None else on_device()

    return tables


def table_device() -> torch.device:
    """The device on which `cached_tables` makes a table: for `torch.arange` and `torch.tensor`, which ignore it
    in graphs of torch 2.11."""
    return torch.empty(0).device


def _on_own_thread(make: Callable[[], _Tables], device: torch.device) -> _Tables:
    """Call ``make()`` with its memory outside of any CUDA graph. While `torch.compile` prepares one, it takes
    what its thread allocates into the graph's memory, and refuses tensors that stay."""

    def run() -> _Tables:
        tables = make()
        torch.cuda.current_stream(device).synchronize()
        return tables

    with ThreadPoolExecutor(1) as executor:
        return executor.submit(run).result()


def moved(t: Tensor, device: torch.device) -> Tensor:
    """A tensor of the CPU on a device, by a copy for which the host does not wait on CUDA."""
    pinned = device.type == "cuda"
    return (t.pin_memory() if pinned else t).to(device, non_blocking=pinned)


def _move_to(tables: Any, device: torch.device, dtype: torch.dtype) -> Any:
    moved = [t.to(device, dtype if t.is_floating_point() else t.dtype) for t in tables]
    return tuple(moved) if type(tables) is tuple else type(tables)(*moved)
