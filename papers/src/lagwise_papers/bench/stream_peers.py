"""Baselines for streaming: a dot product over all inputs, and the exact state space with n states."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import torch
from torch import Tensor

from lagwise.mixers import Mixer, ToeplitzMixer
from lagwise.models import LagwiseForCausalLM
from lagwise.ops import Layout, toeplitz_product
from lagwise.ops.recurrence import DiagonalSSM
from lagwise.ops.window import Window
from lagwise_papers.bench.n_state import n_state_modes

_SLICE_ELEMENTS = 1 << 17  # the products of a slice fit in the CPU cache; the fastest of the sizes tried


class RingState(NamedTuple):
    """State of a ring buffer: past inputs, and the taps with lag 0 last."""

    window: Window
    taps: Tensor


class RingBuffer(Mixer):
    """A Toeplitz mixer that keeps past inputs in a buffer and computes one dot product per token."""

    def __init__(self, mixer: Mixer):
        super().__init__(mixer.channels, causal=True)
        assert isinstance(mixer, ToeplitzMixer)
        self.mixer = mixer

    def init_state(self, batch_size: int) -> RingState:
        taps = self.mixer.kernel.taps(256).t().flip(0)
        return RingState(Window.empty(batch_size, self.channels, self.mixer.kernel.support, like=taps), taps)

    def mix(self, x: Tensor, state: Any, layout: Layout) -> tuple[Tensor, Any]:
        if state is None:
            return self.mixer.mix(x, None, layout)
        window, taps = state
        window = window.append(x)
        length = window.size
        if length > len(taps):
            taps = self.mixer.kernel.taps(1 << (length - 1).bit_length()).t().flip(0).contiguous()
        if x.shape[1] > 1:  # only to fill the buffer
            signal = torch.cat([state.window.tokens, x], dim=1)
            y = toeplitz_product(signal, taps.flip(0).t()[:, : signal.shape[1]])[:, -x.shape[1] :]
            return y.to(x.dtype), RingState(window, taps)
        size = max(1, _SLICE_ELEMENTS // (x.shape[0] * x.shape[2]))
        y = torch.zeros_like(x[:, 0])
        for inputs, taps_chunk in zip(window.tokens.split(size, 1), taps[-length:].split(size), strict=True):
            y += (inputs * taps_chunk).sum(1)
        return y[:, None], RingState(window, taps)


class NStates(Mixer):
    """A Toeplitz mixer as the state space of `n_state_modes`, exact for the first n tokens."""

    def __init__(self, mixer: Mixer, n: int):
        super().__init__(mixer.channels, causal=True)
        assert isinstance(mixer, ToeplitzMixer)
        self.mixer = mixer
        self.modes = n_state_modes(mixer.kernel.taps(n))
        self.ssm = DiagonalSSM.of(self.modes)

    def init_state(self, batch_size: int) -> Any:
        return tuple(self.ssm.start(batch_size))

    def mix(self, x: Tensor, state: Any, layout: Layout) -> tuple[Tensor, Any]:
        if state is None:
            return self.mixer.mix(x, None, layout)
        y, after = self.ssm.prefill(x, state, self.modes.blocks)
        return y, tuple(after)


def replace_toeplitz(model: LagwiseForCausalLM, make: Callable[[ToeplitzMixer], Mixer]) -> LagwiseForCausalLM:
    """Replace each Toeplitz mixer of a model by ``make(mixer)``, in place."""
    for parent in list(model.modules()):
        for name, child in list(parent.named_children()):
            if isinstance(child, ToeplitzMixer) and not isinstance(parent, RingBuffer | NStates):
                setattr(parent, name, make(child))
    return model
