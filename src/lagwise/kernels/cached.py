"""Cache of tensors that depend on a module's parameters, such as taps, for use while the parameters stay the same."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable
from typing import Any, NamedTuple
from weakref import WeakKeyDictionary

import torch
from torch import Tensor, nn
from torch.utils import _pytree as pytree

from lagwise.kernels.base import LagKernel
from lagwise.ops.operation import traced

_MAX_COMPARED_VALUES, _MAX_CACHED_VALUES = 1 << 18, 1 << 22  # 1 MB to compare, 16 MB to keep, in float32


class _Member(NamedTuple):
    """A part, parameter or buffer, the table of the module that has it, and a tensor's address and version."""

    table: dict[str, Any]
    name: str
    value: Any
    address: int
    version: int


class _Entry(NamedTuple):
    key: Hashable
    settings: list[Any]
    sizes: list[tuple[dict[str, Any], int]]  # members of every table
    members: list[_Member]
    copies: list[Tensor] | None  # values of the members that are tensors
    result: Any


# Not attributes of the modules, so that copies and pickles of a model do not contain them.
_latest: WeakKeyDictionary[nn.Module, dict[str, _Entry]] = WeakKeyDictionary()


def cached_taps(kernel: LagKernel, length: int) -> Tensor:
    """``kernel.taps(length)``. On the CPU and without gradients, the last taps are returned again, without a copy, if
    length, settings and parameters are the same."""
    return cached(kernel, "taps", length, lambda: kernel.taps(length), by_value=True)


def cached(
    module: nn.Module, kind: str, key: Hashable, make: Callable[[], Any], *, by_value: bool, parts: bool = True
) -> Any:
    """``make()``, or its last result of this kind and key if the module's parts, settings and parameters are the same.

    With gradients and in graphs the result is always computed.

    Args:
        module: The module whose parameters the result depends on.
        kind: Kind of the result. The cache has one result of each kind.
        key: Other values that the result depends on.
        make: Returns a tensor or a tuple of tensors.
        by_value: Compare parameters by value with copies of them, on the CPU; too many, and those on another device,
            count as changed. Otherwise compare their addresses and version counters: a hundred times as fast, for every
            token of a stream, but PyTorch does not count writes through ``.data``, and settings are not compared.
        parts: Whether the result depends on the module's parts too, not only on its own parameters.
    """
    if torch.is_grad_enabled() or _traced():
        return make()
    entries = _latest.get(module)
    entry = None if entries is None else entries.get(kind)
    autocast = tuple(torch.is_autocast_enabled(device) for device in ("cpu", "cuda", "mps"))
    if entry is not None and entry.key == (key, autocast):
        same = _equal(entry, module, parts) if by_value else _unchanged(entry)
        if same:
            return entry.result
    tables = [table for part in _parts(module, parts) for table in _tables(part, parts)]
    members = [_member(table, name, value) for table in tables for name, value in table.items()]
    tensors = _tensors(members)
    many = sum(t.numel() for t in tensors) > _MAX_COMPARED_VALUES or any(t.device.type != "cpu" for t in tensors)
    result = make()
    if sum(leaf.numel() for leaf in pytree.tree_leaves(result) if isinstance(leaf, Tensor)) <= _MAX_CACHED_VALUES:
        copies = None if many else [t.detach().clone() for t in tensors]
        sizes = [(table, len(table)) for table in tables]
        entry = _Entry((key, autocast), _settings(module, parts), sizes, members, copies, result)
        _latest.setdefault(module, {})[kind] = entry
    return result


def _traced() -> bool:
    return traced() or torch._C._len_torch_dispatch_stack() > 0  # fake tensors, and recorders of operations


def _parts(module: nn.Module, parts: bool) -> Iterable[nn.Module]:
    return module.modules() if parts else (module,)


def _tables(part: nn.Module, parts: bool) -> tuple[dict[str, Any], ...]:
    own = (part._parameters, part._buffers)
    return (*own, part._modules) if parts else own


def _member(table: dict[str, Any], name: str, value: Any) -> _Member:
    if isinstance(value, Tensor):
        return _Member(table, name, value, value.data_ptr(), _version(value))
    return _Member(table, name, value, 0, 0)


def _tensors(members: list[_Member]) -> list[Tensor]:
    return [member.value for member in members if isinstance(member.value, Tensor)]


def _settings(module: nn.Module, parts: bool) -> list[Any]:
    """The plain attributes of a module and its parts, such as a decay."""
    plain = (bool, int, float, str, tuple, type(None))
    return [
        (type(part), name, value)
        for part in _parts(module, parts)
        for name, value in vars(part).items()
        if isinstance(value, plain)
    ]


def _equal(entry: _Entry, module: nn.Module, parts: bool) -> bool:
    """Whether the module has the parts, settings and parameter values that it had when the result was computed."""
    if entry.copies is None or entry.settings != _settings(module, parts) or not _same_tables(entry):
        return False
    present = [member.table.get(member.name) for member in entry.members]
    if any(
        now is not member.value and not (isinstance(now, Tensor) and isinstance(member.value, Tensor))
        for now, member in zip(present, entry.members, strict=True)
    ):
        return False
    tensors = [now for now in present if isinstance(now, Tensor)]
    return all(
        copy.dtype == now.dtype and torch.equal(copy, now) for copy, now in zip(entry.copies, tensors, strict=True)
    )


def _unchanged(entry: _Entry) -> bool:
    """Whether the module has the parts and parameters, unwritten, that it had when the result was computed."""
    return _same_tables(entry) and all(map(_untouched, entry.members))


def _same_tables(entry: _Entry) -> bool:
    return all(len(table) == size for table, size in entry.sizes)


def _untouched(member: _Member) -> bool:
    value = member.table.get(member.name)
    if value is not member.value:
        return False
    return not isinstance(value, Tensor) or (value.data_ptr() == member.address and _version(value) == member.version)


def _version(tensor: Tensor) -> int:
    return 0 if tensor.is_inference() else tensor._version
