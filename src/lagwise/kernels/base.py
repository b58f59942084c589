"""The base class of lag kernels, which produce taps, and the cache of taps and other tensors that depend on parameters,
for use while these stay the same."""

from __future__ import annotations

import copy
from collections.abc import Callable, Hashable
from typing import Any, ClassVar, NamedTuple, Self, TypeVar
from weakref import WeakKeyDictionary

import torch
from torch import Tensor, nn
from torch.utils import _pytree as pytree

from lagwise.ops import Modes
from lagwise.ops.operation import recorded

_Part = TypeVar("_Part", bound=nn.Module)

_MAX_COMPARED_VALUES, _MAX_CACHED_VALUES = 1 << 18, 1 << 22  # 1 MB to compare, 16 MB to keep, in float32

# Taps below this, relative to the largest, cannot change a sum in this precision.
_NEGLIGIBLE = {torch.float64: 1e-17}
_NEGLIGIBLE_FLOAT32 = 1e-8


class KeepsFloat32(nn.Module):
    """A module some of whose parameters stay in at least float32 when it is changed to less, as by
    ``module.bfloat16()``, or loaded in less: the error of a rounded pole grows with the text."""

    #: names of these parameters; models collect them from all of their modules
    kept_in_float32: ClassVar[tuple[str, ...]] = ()

    def _apply(self, fn: Callable[[Tensor], Tensor], recurse: bool = True) -> Self:
        parameters = [p for name in self.kept_in_float32 if (p := getattr(self, name)) is not None]
        parameters += [p.grad for p in parameters if p.grad is not None]

        def careful(t: Tensor) -> Tensor:
            changed = fn(t)
            if not any(t is each for each in parameters) or torch.finfo(changed.dtype).bits >= 32:
                return changed
            return t.to(changed.device)

        return super()._apply(careful, recurse)


class LagKernel(KeepsFloat32):
    """A parametrisation of k(lag) for each channel. Abstract: subclasses implement `taps` and, if they end or
    decay, `support`.

    `taps` must not depend on the requested length (taps(n) starts with taps(m) for m < n); otherwise a streamed prompt
    would see another kernel than the whole prompt.

    >>> class Exponential(LagKernel):
    ...     def __init__(self, channels, *, causal=True):
    ...         super().__init__(channels, causal)
    ...         self.rate = torch.nn.Parameter(torch.linspace(0.1, 1, channels))
    ...
    ...     def taps(self, length):
    ...         return torch.exp(-self.rate[:, None] * torch.arange(length))
    >>> Exponential(4).taps(100).shape
    torch.Size([4, 100])
    """

    #: parameters with two or more axes that weight decay must skip, such as decay rates; any module may name some
    undecayed: ClassVar[tuple[str, ...]] = ()
    #: parameters and networks that all channels share; any module may name some (see `some_channels`)
    shared: ClassVar[tuple[str, ...]] = ()
    #: whether `smooth_at` works: the kernel has values between tokens
    continuous: bool = False
    #: whether `recurrence` gives the kernel as a state space, to stream by
    recurrent: ClassVar[bool] = False
    #: whether it computes in float64 whatever its parameters' dtype, which Apple's GPUs do not have
    needs_float64: bool = False
    #: whether it is in continuous time, so that ``token_time`` may be other than 1
    any_rate: bool = False
    #: time from token to token, relative to that for which the parameters are
    token_time: float = 1.0
    #: longest signal that `taps` supports; None for any
    max_length: int | None = None

    def __init__(self, channels: int, causal: bool):
        super().__init__()
        if channels < 1:
            raise ValueError(f"channels must be at least 1, got {channels}")
        self.channels = channels
        self.first_channel, self.all_channels = 0, channels  # `some_channels` takes a part of them
        self.causal = causal

    def taps(self, length: int) -> Tensor:
        """Return taps for a signal of this length, cut at the kernel's support.

        Returns:
            ``(channels, n)`` for lags 0..n-1 when causal, ``(channels, 2 n - 1)`` for lags -(n-1)..n-1 otherwise, with
            n = min(length, support). In float32 or better, whatever the dtype of the parameters.

        Raises:
            ValueError: for a signal longer than ``max_length``.
        """
        raise NotImplementedError

    def check_length(self, length: int) -> None:
        """Raise ValueError for a signal longer than `taps` supports."""
        if self.max_length is not None and length > self.max_length:
            raise ValueError(
                f"this kernel has coefficients for {self.max_length} tokens, got a sequence of {length}; "
                "use kernel 'rpe' for lengths beyond training"
            )

    def at(self, lags: Tensor) -> Tensor:
        """Return values ``(channels, n)`` at integer lags ``(n,)``, in any order; zero where `taps` ends.

        A continuous kernel computes only these. Of another one, all taps up to the largest lag are computed.
        """
        if self.continuous:
            values = self.with_local(self.smooth_at(lags), lags)
            return values * (lags >= 0) if self.causal else values
        furthest = int(lags.abs().max()) + 1
        taps = self.taps(min(furthest, self.max_length or furthest))
        return _picked(taps, lags + (0 if self.causal else taps.shape[1] // 2))

    def smooth_at(self, lags: Tensor) -> Tensor:
        """Values ``(channels, n)`` of the kernel's smooth part, which may be interpolated, at any real lags ``(n,)``.

        ValueError for a kernel that has values at integer lags only.
        """
        raise ValueError(f"{type(self).__name__} has no values between tokens; use a kernel such as 'warped' or 'rpe'")

    def local_taps(self) -> tuple[Tensor, int] | None:
        """Return taps ``(channels, m)`` that `smooth_at` omits, and the index of lag 0 among them; None if it omits
        nothing."""
        return None

    def with_local(self, values: Tensor, lags: Tensor) -> Tensor:
        """The kernel's values from those of `smooth_at`."""
        local = self.local_taps()
        return values if local is None else values + _picked(local[0], lags + local[1])

    def recurrence(self) -> Modes:
        """A causal kernel as a state space. ValueError for a kernel that has no such form."""
        raise ValueError(
            f"{type(self).__name__} has no state-space form; `lagwise.ops.reduce_taps` finds one from its taps"
        )

    @property
    def support(self) -> int | None:
        """Number of lags on one side; None if it is infinite. Taps from this lag on are zero, or below rounding in the
        kernel's precision."""
        return self.max_length

    def lags(self, length: int, device: torch.device) -> Tensor:
        """The integer lags of `taps`, in its order."""
        support = self.support
        n = length if support is None else min(length, support)
        return torch.arange(0 if self.causal else 1 - n, n, device=device)

    def reset_parameters(self) -> None:
        """Draw the parameters that the kernel holds directly; layers of a `KernelNetwork` draw theirs."""

    @staticmethod
    def precision(parameter: Tensor) -> torch.dtype:
        """Dtype in which taps are computed: bfloat16 cannot even represent all lags above 256."""
        return torch.promote_types(parameter.dtype, torch.float32)


def _picked(taps: Tensor, index: Tensor) -> Tensor:
    """Return taps at any indices, zero outside."""
    inside = (index >= 0) & (index < taps.shape[1])
    return taps.index_select(1, index.clamp(0, taps.shape[1] - 1)) * inside


def joined_sides(after: Tensor, before: Tensor | None = None) -> Tensor:
    """Join the taps of both directions to two-sided taps ``(channels, 2 n - 1)``; lag 0 is the sum of both. A causal
    kernel has one.

    Shapes: after ``(channels, n)``, for lags 0, 1, ...; before ``(channels, n)``, for lags 0, -1, ....
    """
    if before is None:
        return after
    return torch.cat([before[:, 1:].flip(1), before[:, :1] + after[:, :1], after[:, 1:]], 1)


def negligible(dtype: torch.dtype) -> float:
    """Relative size below which a tap does not change a sum of that dtype (float32 rounding is 6e-8)."""
    return _NEGLIGIBLE.get(dtype, _NEGLIGIBLE_FLOAT32)


class _Entry(NamedTuple):
    key: Hashable
    settings: list[Any]
    tables: list[tuple[dict[str, Any], int]]  # the members of every part, and how many there are
    members: list[tuple[dict[str, Any], str, Any, tuple[int, int] | None]]  # and the mark of those that are tensors
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
    if torch.is_grad_enabled() or recorded():
        return make()
    entries = _latest.get(module)
    entry = None if entries is None else entries.get(kind)
    key = key, tuple(torch.is_autocast_enabled(device) for device in ("cpu", "cuda", "mps"))
    if entry is not None and entry.key == key and _unchanged(entry, module, parts, by_value):
        return entry.result
    owners = module.modules() if parts else (module,)
    tables = [t for part in owners for t in (part._parameters, part._buffers, *([part._modules] if parts else []))]
    members = [(table, name, value, _mark(value)) for table in tables for name, value in table.items()]
    tensors = [value for _, _, value, _ in members if isinstance(value, Tensor)]
    many = sum(t.numel() for t in tensors) > _MAX_COMPARED_VALUES or any(t.device.type != "cpu" for t in tensors)
    result = make()
    if sum(leaf.numel() for leaf in pytree.tree_leaves(result) if isinstance(leaf, Tensor)) <= _MAX_CACHED_VALUES:
        copies = None if many else [t.detach().clone() for t in tensors]
        sizes = [(table, len(table)) for table in tables]
        entry = _Entry(key, _settings(module, parts), sizes, members, copies, result)
        _latest.setdefault(module, {})[kind] = entry
    return result


def _mark(value: Any) -> tuple[int, int] | None:
    """Address and version of a tensor."""
    if not isinstance(value, Tensor):
        return None
    return value.data_ptr(), 0 if value.is_inference() else value._version


def _settings(module: nn.Module, parts: bool) -> list[Any]:
    """The plain attributes of a module and its parts, such as a decay."""
    plain = (bool, int, float, str, tuple, type(None))
    owners = module.modules() if parts else (module,)
    return [(type(part), *item) for part in owners for item in vars(part).items() if isinstance(item[1], plain)]


def _unchanged(entry: _Entry, module: nn.Module, parts: bool, by_value: bool) -> bool:
    """Whether the module has the parts and parameters, by value and with their settings or unwritten, that it had when
    the result was computed."""
    if any(len(table) != size for table, size in entry.tables):
        return False
    if by_value and (entry.copies is None or entry.settings != _settings(module, parts)):
        return False
    copies = iter(entry.copies or ())
    for table, name, value, mark in entry.members:
        present = table.get(name)
        if by_value and mark is not None:
            before = next(copies)
            if not isinstance(present, Tensor) or before.dtype != present.dtype or not torch.equal(before, present):
                return False
        elif present is not value or (mark is not None and _mark(present) != mark):
            return False
    return True


def some_channels(module: _Part, first: int, end: int) -> _Part:
    """The channels from ``first`` to ``end`` of a module with a `channels` attribute, a kernel or a mixer that keeps
    channels apart: slices of its parameters, which pass their gradients on to it.

    A parameter has its channels on the first axis, or on the second if it has three or more; networks have them in
    their last layer (`LagKernel.shared`). An axis may have several numbers per channel, as that of two directions has.
    """
    return _of_channels(module, first, end, int(module.channels))  # type: ignore[bad-argument-type]


def _of_channels(module: _Part, first: int, end: int, channels: int) -> _Part:
    part, shared = copy.copy(module), getattr(module, "shared", ())
    part._parameters, part._modules = dict(module._parameters), dict(module._modules)
    for name, parameter in part._parameters.items():
        if parameter is not None and name not in shared:
            axis = 1 if parameter.dim() >= 3 else 0
            apart = parameter.unflatten(axis, (-1, channels)).narrow(axis + 1, first, end - first)
            part._parameters[name] = apart.flatten(axis, axis + 1)  # type: ignore[unsupported-operation]
    for name, child in part._modules.items():
        if child is not None and name not in shared:
            part._modules[name] = _of_channels(child, first, end, channels)
    if getattr(module, "channels", None) == channels:
        part.channels = end - first  # type: ignore[bad-argument-type]
    if isinstance(part, LagKernel):
        part.first_channel += first
    return part
