"""Tensors that are made on the host and used on a device: tables of sizes alone are remembered there."""

from __future__ import annotations

from collections.abc import Callable, Hashable
from concurrent.futures import ThreadPoolExecutor
from typing import Any, TypeVar

import torch
from torch import Tensor
from torch._subclasses.fake_tensor import unset_fake_temporarily
from torch.utils._device import DeviceContext

from lagwise.ops.bilinear import traced

_Tables = TypeVar("_Tables", bound=tuple[Tensor, ...])
_MOST = 8  # tables of one kind: a batch of another length has another
_kept: dict[Any, dict[Any, Any]] = {}


def remembered_tables(make: Callable[..., _Tables], *sizes: Hashable, like: Tensor) -> _Tables:
    """``make(*sizes)``, a tuple of tensors on the host, on the device of ``like``, those of real numbers in its dtype.

    The last of each kind are remembered: they take many small steps on the host, and copies to the device.
    """
    if traced():
        with DeviceContext(like.device):  # a graph that made them on the host would copy them at every step
            return _move_to(make(*sizes), like)
    fake = torch._C._get_dispatch_mode(torch._C._TorchDispatchModeKey.FAKE)  # whose tensors have no values
    key, kept = (sizes, like.device, like.dtype, fake), _kept.setdefault(make, {})
    tables = kept.pop(key, None)
    if tables is None:

        def made() -> _Tables:
            with torch.inference_mode(False), torch.no_grad():  # or they could not be saved for a backward pass
                with unset_fake_temporarily(), torch.device("cpu"):  # sizes depend on values
                    found = make(*sizes)
                return _move_to(found, like)

        tables = _on_own_thread(made, like.device) if like.is_cuda and fake is None else made()
        while len(kept) >= _MOST:
            del kept[next(iter(kept))]
    kept[key] = tables  # the last to be forgotten
    return tables


def table_device() -> torch.device:
    """The device on which `remembered_tables` has a table made: for `torch.arange` and `torch.tensor`, which ignore it
    in graphs of torch 2.11."""
    return torch.empty(0).device


def _on_own_thread(make: Callable[[], _Tables], device: torch.device) -> _Tables:
    """What ``make()`` returns, with its memory outside of any CUDA graph. While `torch.compile` prepares one, it takes
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


def _move_to(tables: Any, like: Tensor) -> Any:
    moved = [t.to(like.device, like.dtype if t.is_floating_point() else t.dtype) for t in tables]
    return tuple(moved) if type(tables) is tuple else type(tables)(*moved)
