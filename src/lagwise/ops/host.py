"""Cached copies on the host of booleans and integers on a device, which nothing changes."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor
from torch.utils.weak import WeakTensorKeyDictionary

from lagwise.ops.constants import moved

# Copies on the CPU of tensors on another device that nothing changes.
_host_copies = WeakTensorKeyDictionary()


def on_host(*tensors: Tensor | None) -> list[Tensor | None]:
    """Return booleans and integers on the CPU, by one copy of those whose values the host does not know."""
    present = [t for t in tensors if t is not None]
    new = [t for t in present if t.device.type != "cpu" and t not in _host_copies]
    flat = torch.cat([t.flatten().long() for t in new]).cpu() if new else None
    copies = iter(() if flat is None else flat.split([t.numel() for t in new]))
    results: list[Tensor | None] = []
    for t in tensors:
        if t is None or t.device.type == "cpu":
            results.append(t)
        else:
            results.append(_host_copies[t] if t in _host_copies else next(copies).view(t.shape).to(t.dtype))
    return results


def on_device(tensors: Sequence[Tensor | None], device: torch.device) -> list[Tensor | None]:
    """Return booleans and integers of the CPU on a device, by one copy, for which the host does not wait. Nothing will
    change them, so that the host knows them (`note_host_copy`)."""
    present = [t for t in tensors if t is not None]
    if not present or device.type == "cpu":
        return list(tensors)
    flat = torch.cat([t.flatten().long() for t in present])
    parts = iter(moved(flat, device).split([t.numel() for t in present]))
    return [None if t is None else note_host_copy(next(parts).view(t.shape).to(t.dtype), t) for t in tensors]


def read_counts(counts: Tensor) -> list[int]:
    """Read numbers of tokens ``(batch,)``, which nothing will change: the host reads them once."""
    (here,) = on_host(counts)
    assert here is not None
    note_host_copy(counts, here)
    return here.tolist()


def host_knows(tensor: Tensor) -> bool:
    """Whether `note_host_copy` or `read_counts` has noted the values of a tensor on a device."""
    return tensor in _host_copies


def added(counts: Tensor, tokens: int) -> Tensor:
    """``counts + tokens``, which the host knows if it knows the counts."""
    after = counts + tokens
    return note_host_copy(after, _host_copies[counts] + tokens) if counts in _host_copies else after


def note_host_copy(there: Tensor, here: Tensor) -> Tensor:
    """Note that nothing will change a tensor on a device, and its copy on the CPU. Returns the tensor."""
    if there is not here:
        _host_copies[there] = here
    return there
