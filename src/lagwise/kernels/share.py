"""Modules that share some of the channels of a kernel, or of a mixer that keeps channels apart."""

from __future__ import annotations

import copy
from typing import TypeVar

from torch import nn

from lagwise.kernels.base import LagKernel

Part = TypeVar("Part", bound=nn.Module)


def some_channels(module: Part, first: int, end: int) -> Part:
    """The channels from ``first`` to ``end`` of a module with a `channels` attribute: slices of its parameters, which
    pass their gradients on to it.

    A parameter has its channels on the first axis, or on the second if it has three or more; networks have them in
    their last layer (`KernelNetwork.shared`). An axis may have several numbers per channel, as that of two directions
    has.
    """
    return _of_channels(module, first, end, int(module.channels))  # type: ignore[bad-argument-type]


def _of_channels(module: Part, first: int, end: int, channels: int) -> Part:
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
