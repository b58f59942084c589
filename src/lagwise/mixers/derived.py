"""Tensors that a streaming step needs beside its state and that depend on parameters alone, such as taps or poles."""

from __future__ import annotations

import copy
from itertools import chain
from typing import Any, ClassVar, NamedTuple

import torch
from torch import Tensor, nn

from lagwise.kernels.base import cached


class BackwardTaps(NamedTuple):
    """Taps of a convolution, lag 0 last: ``(..., K, channels)``."""

    taps: Tensor


class Derived(nn.Module):
    """A module with tensors derived from its parameters that its streaming step uses. Abstract: subclasses implement
    `derive`.

    They belong to the module, not to its states: all streams share them, and they are computed again when a parameter
    changes. In a copy for graphs (`frozen`) they are buffers, so that a graph does not compute them at every token.
    """

    #: whether `derive` uses the parameters of parts, such as a kernel's, or only the module's own
    derives_from_parts: ClassVar[bool] = True
    _frozen: Any = None  # the type of what `derive` returns, in a frozen copy

    def derive(self, form: str = "eager") -> Any:
        """A named tuple of tensors, and None for what this module does not have. ``()`` for nothing. form: what states
        it serves: ``eager`` ones, ``fixed`` shapes, or ``online``, fixed shapes with the long blocks of exact kernels
        computed elsewhere."""
        raise NotImplementedError

    def derived(self, *, checked: bool = False) -> Any:
        """Return the cached result of `derive`. checked: compare parameters by value, as every `init_state` must;
        otherwise their versions are compared, which PyTorch does not count for writes through ``.data``."""
        if self._frozen is not None:
            return self._frozen._make(getattr(self, _buffer(name)) for name in self._frozen._fields)
        return cached(self, "derived", None, self.derive, by_value=checked, parts=self.derives_from_parts)

    def freeze(self, form: str) -> None:
        """Keep what `derive` returns in buffers from now on."""
        cached = self.derive(form)
        if not cached:
            return
        for name, tensor in cached._asdict().items():
            own = None if tensor is None else tensor.detach().clone(memory_format=torch.contiguous_format)
            self.register_buffer(_buffer(name), own, persistent=False)
        self._frozen = type(cached)


@torch.no_grad()
def frozen(module: nn.Module, form: str = "fixed") -> Any:
    """Copy a causal mixer, block or model in evaluation mode, for graphs: with derived tensors in buffers. Weights are
    shared. form: what states it serves, as in `Derived.derive`.

    The copy's steps and whole sequences are in real arithmetic, without loops over a length that a graph leaves open.
    Make a new copy after the weights change.
    """
    shared = {id(tensor): tensor for tensor in chain(module.parameters(), module.buffers())}
    copied = copy.deepcopy(module, shared).eval()
    for part in copied.modules():
        if isinstance(part, Derived):
            part.freeze(form)
    return copied


def _buffer(name: str) -> str:
    return f"derived_{name}"
