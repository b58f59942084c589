"""Copies of modules whose mixers have streaming states of fixed shapes."""

from __future__ import annotations

import copy
from collections.abc import Callable
from itertools import chain
from typing import Any

import torch
from torch import Tensor, nn

from lagwise.kernels.diagonal import DiagonalKernel
from lagwise.kernels.modal import ModalKernel
from lagwise.kernels.s4 import S4Kernel
from lagwise.mixers.attention import AttentionMixer
from lagwise.mixers.base import Mixer, StateTuple
from lagwise.mixers.chunked_attention import ChunkedAttention
from lagwise.mixers.ema import EMAMixer
from lagwise.mixers.fixed import FixedEMA, FixedMixer, FixedModal, FixedTCN
from lagwise.mixers.fixed_attention import FixedAttention
from lagwise.mixers.fixed_gates import FixedHyena, FixedLinearAttention, FixedRecurrence, FixedShortConv
from lagwise.mixers.fixed_online import FixedOnline
from lagwise.mixers.fixed_ring import FixedRing
from lagwise.mixers.fixed_ski import FixedSKI
from lagwise.mixers.fixed_windows import FixedFlash, FixedRelativeAttention
from lagwise.mixers.flash import FlashMixer
from lagwise.mixers.hyena import HyenaMixer
from lagwise.mixers.linear_attention import LinearAttentionMixer
from lagwise.mixers.recurrence import RecurrentMixer
from lagwise.mixers.relative_attention import RelativeAttentionMixer
from lagwise.mixers.short_conv import ShortConvMixer
from lagwise.mixers.tcn import TCNMixer
from lagwise.mixers.toeplitz import ToeplitzMixer


@torch.no_grad()
def fixed_form(module: nn.Module, like: Tensor, *, online: bool = False) -> tuple[Any, list[Any]]:
    """Copy a causal mixer, block or model in evaluation mode, with a state of nested tuples of fixed-shape tensors.

    The copy streams by ``init_state`` and by ``prefill`` of one token, without a mask. Weights are shared.

    Args:
        module: The module to copy.
        like: A tensor with the model's dtype and device.
        online: Use an `OnlineFollower` for each exact long kernel instead of a ring buffer over its reach.

    Returns:
        The copy, and the modules that replace its mixers, in the order of their states.

    Raises:
        ValueError: If the state of a mixer grows with the text, or if a mixer has no step with fixed shapes.
    """
    return _replaced(module, lambda part: _fixed(part, like, online))


@torch.no_grad()
def real_form(module: nn.Module, like: Tensor) -> nn.Module:
    """Copy a causal model in evaluation mode so that its forward pass over whole texts, without masks, has no complex
    numbers and no loops over the length, even for recurrences and state spaces. Weights are shared."""

    def real(part: nn.Module) -> nn.Module | None:
        complex_kernel = isinstance(part, ToeplitzMixer) and isinstance(part.kernel, DiagonalKernel | S4Kernel)
        if isinstance(part, RecurrentMixer) or (complex_kernel and not isinstance(part.kernel, ModalKernel)):
            return _FromStart(_fixed(part, like, online=False))
        return None

    return _replaced(module, real)[0]


class _FromStart(nn.Module):
    """A mixer's forward pass over whole texts with its fixed form."""

    def __init__(self, fixed: Any):
        super().__init__()
        self.fixed = fixed

    def forward(self, x: Tensor, *, layout: Any = None) -> Tensor:
        return self.fixed.run(x, self.fixed.init_state(x.shape[0]))[0]


def _replaced(module: nn.Module, make: Callable[[nn.Module], Any]) -> tuple[Any, list[Any]]:
    """Copy a module in evaluation mode and replace parts by ``make(part)`` where it is not None, outermost first.
    Weights are shared. Returns the copy and the replacements."""
    shared = {id(tensor): tensor for tensor in chain(module.parameters(), module.buffers())}
    form, made = copy.deepcopy(module, shared).eval(), []
    parts = dict(form.named_modules())
    while parts:
        name, part = next(iter(parts.items()))
        del parts[name]
        fixed = make(part)
        if fixed is not None:
            made.append(fixed)
            if not name:
                return fixed, made
            form.set_submodule(name, fixed)
            parts = {other: each for other, each in parts.items() if not other.startswith(f"{name}.")}
    return form, made


def _fixed(module: nn.Module, like: Tensor, online: bool) -> FixedMixer | FixedAttention | None:
    """The replacement of a module, or None if it stays."""
    if isinstance(module, ToeplitzMixer):
        if module.ski is not None:
            return FixedSKI(module)
        if module.kernel.recurrent:
            return FixedModal(module)
        return FixedOnline(module) if online else FixedRing(module)
    if isinstance(module, EMAMixer):
        return FixedEMA(module)
    if isinstance(module, TCNMixer):
        return FixedTCN(module)
    if isinstance(module, ChunkedAttention):
        return FixedAttention(module, like)
    if isinstance(module, RecurrentMixer):
        return FixedRecurrence(module)
    if isinstance(module, LinearAttentionMixer):
        return FixedLinearAttention(module)
    if isinstance(module, ShortConvMixer):
        return FixedShortConv(module)
    if isinstance(module, FlashMixer):
        return FixedFlash(module)
    if isinstance(module, RelativeAttentionMixer):
        return FixedRelativeAttention(module)
    if isinstance(module, HyenaMixer):  # its long convolutions are parts of one state and have no followers
        return FixedHyena(module, lambda long: _fixed(long, like, online=False))
    if isinstance(module, AttentionMixer):
        raise ValueError("full attention has a streaming state that grows with the text, so it has no fixed-shape step")
    if isinstance(module, Mixer) and not module.streams:
        module.require_causal()  # raises the error
    if isinstance(module, Mixer) and isinstance(module.init_state(1), StateTuple):  # from another package
        raise ValueError(f"{type(module).__name__} has no fixed-shape step; stream it with `prefill`")
    return None
