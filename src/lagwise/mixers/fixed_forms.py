"""Modules with a step of fixed shapes in place of every mixer that keeps a state."""

from __future__ import annotations

import copy
from itertools import chain
from typing import Any

import torch
from torch import Tensor, nn

from lagwise.mixers.attention import AttentionMixer
from lagwise.mixers.base import Mixer, StateTuple
from lagwise.mixers.chunked_attention import ChunkedAttention
from lagwise.mixers.ema import EMAMixer
from lagwise.mixers.fixed import FixedEMA, FixedMixer, FixedModal, FixedRing, FixedTCN
from lagwise.mixers.fixed_attention import FixedAttention
from lagwise.mixers.fixed_gates import FixedHyena, FixedLinearAttention, FixedRecurrence, FixedShortConv
from lagwise.mixers.fixed_online import FixedOnline
from lagwise.mixers.fixed_ski import FixedSKI
from lagwise.mixers.hyena import HyenaMixer
from lagwise.mixers.linear_attention import LinearAttentionMixer
from lagwise.mixers.recurrence import RecurrentMixer
from lagwise.mixers.short_conv import ShortConvMixer
from lagwise.mixers.tcn import TCNMixer
from lagwise.mixers.toeplitz import ToeplitzMixer


@torch.no_grad()
def fixed_form(module: nn.Module, like: Tensor, *, online: bool = False) -> tuple[Any, list[Any]]:
    """A copy of a causal mixer, block or model in evaluation mode whose state is a tree of tensors of fixed shapes, and
    the modules that took the places of its mixers, in the order of their states.

    The copy streams by ``init_state`` and by ``prefill`` of one token, without a mask. Weights are shared. like: a
    tensor of the model's dtype and device. online: exact long kernels need an `OnlineFollower` each, rather than a ring
    buffer of all that they reach. ValueError if the state of a mixer grows with the text, or
    if there is no such step for it.
    """
    shared = {id(tensor): tensor for tensor in chain(module.parameters(), module.buffers())}
    form, made = copy.deepcopy(module, shared).eval(), []
    parts = dict(form.named_modules())
    while parts:
        name, part = next(iter(parts.items()))
        del parts[name]
        fixed = _fixed(part, like, online)
        if fixed is not None:
            made.append(fixed)
            if not name:
                return fixed, made
            form.set_submodule(name, fixed)
            parts = {other: each for other, each in parts.items() if not other.startswith(f"{name}.")}
    return form, made


def _fixed(module: nn.Module, like: Tensor, online: bool) -> FixedMixer | FixedAttention | None:
    """What takes the place of a module; None if it stays."""
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
    if isinstance(module, HyenaMixer):  # its long convolutions have no followers: they are parts of one state
        return FixedHyena(module, lambda long: _fixed(long, like, online=False))
    if isinstance(module, AttentionMixer):
        raise ValueError("attention over the whole text has a streaming state that grows with it: it has no such step")
    if isinstance(module, Mixer) and not module.streams:
        module.require_causal()  # says why not
    if isinstance(module, Mixer) and isinstance(module.init_state(1), StateTuple):
        raise ValueError(f"{type(module).__name__} has no step on a state of fixed shapes; stream it by `prefill`")
    return None
