"""Short convolutions: the temporal convolutional network that replaces MEGA's moving average in TCNCA, and the gated
one of LFM2."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from lagwise.mixers.base import Mixer
from lagwise.mixers.derived import BackwardTaps, Derived
from lagwise.ops import Layout, dilated_convolution
from lagwise.ops.activations import ACTIVATIONS, identity
from lagwise.ops.fused.convolution import gated_convolution, residual_convolutions
from lagwise.ops.streaming import WindowState
from lagwise.ops.toeplitz import (
    centre_tap,
    dilated_prefill,
    dilated_step,
    receptive_field,
    tap_reach,
)
from lagwise.ops.tokens import linears
from lagwise.ops.window import Window
from lagwise.tables import check_integer, known

_EPSILON = 1e-6


class TCNState(NamedTuple):
    """The latest inputs of every convolution, as far back as it reaches, and the number of tokens so far,
    ``(batch,)``."""

    rings: tuple[Window | Tensor, ...]
    seen: Tensor


class TCNMixer(Derived, Mixer):
    """Residual blocks of depthwise dilated convolutions: ``h + act(w_i * h)``, with dilation ``f**i``.

    Options:
        kernel_size: taps K of a convolution.
        dilation: factor f by which the dilation grows from block to block.
        depth: number D of blocks. The stack sees `receptive_field` tokens (by default 485); ``lagwise bench tcn``
            times stacks that cover a length.
        convolutions: number B of convolutions per block, each with its activation.
        activation: ``silu``, ``gelu``, ``gelu_tanh``, ``relu``, ``tanh`` or ``none``.
        norm: ``rms`` over the channels before each convolution, or ``none``.
        residual: whether a block adds its input.

    Taps beyond the training length are never trained and keep their random initial values: if a model is to run on
    longer texts, its receptive field must not exceed the training length.

    Causal, or centred for classification (K must then be odd). ValueError for options out of range. Streams in O(K D)
    per token from the latest inputs of every convolution, in constant memory (TCNCA app. B leaves this open).
    Convolutions have no bias, so that zeros stay zeros.

    Source: TCNCA §2, app. E.

    >>> TCNMixer(4, kernel_size=5, dilation=3, depth=5)(torch.randn(2, 100, 4)).shape
    torch.Size([2, 100, 4])
    """

    takes_shards = True
    derives_from_parts = False

    def __init__(
        self,
        channels: int,
        *,
        causal: bool = True,
        kernel_size: int = 5,
        dilation: int = 3,
        depth: int = 5,
        convolutions: int = 1,
        activation: str = "silu",
        norm: str = "none",
        residual: bool = True,
    ):
        super().__init__(channels, causal)
        self.receptive_field = receptive_field(kernel_size, dilation, depth, convolutions)
        centre_tap(kernel_size, causal)
        self.activation = ACTIVATIONS[known(activation, ACTIVATIONS, "activation")]
        self.norm: str = known(norm, ("none", "rms"), "norm")
        if not isinstance(residual, bool):
            raise ValueError(f"residual must be true or false, got {residual!r}")
        self.residual, self.convolutions = residual, convolutions
        self.dilations = [dilation**i for i in range(depth) for _ in range(convolutions)]
        # One parameter, held directly: transformers initialises only parameters that modules hold directly.
        self.taps = nn.Parameter(torch.empty(len(self.dilations), channels, kernel_size))
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Draw from a normal distribution, with variance 1/K: a convolution preserves the scale."""
        nn.init.normal_(self.taps, std=self.taps.shape[2] ** -0.5)

    def mix(self, x: Tensor, state: TCNState | None, layout: Layout) -> tuple[Tensor, Any]:
        if state is None:
            return layout.near(self._mix_whole, x, *tap_reach(self.receptive_field, causal=self.causal)), None
        new = x.shape[1] if layout.mask is None else layout.mask.sum(1)
        return self._stream(x, state, layout.mask, new, dilated_prefill, self.taps)

    def mix_token(self, x: Tensor, state: TCNState) -> tuple[Tensor, TCNState]:
        return self._stream(x, state, None, 1, dilated_step, self.derived().taps)

    def _stream(
        self, x: Tensor, state: TCNState, mask: Tensor | None, new: Tensor | int, stream: Any, taps: Tensor
    ) -> tuple[Tensor, TCNState]:
        rings = list(state.rings)

        def convolve(index: int, h: Tensor) -> Tensor:
            y, rings[index] = stream(h, taps[index], self.dilations[index], rings[index], state.seen)
            return y

        return self.blocks(x, mask, convolve), TCNState(tuple(rings), state.seen + new)

    def _mix_whole(self, x: Tensor, layout: Layout) -> Tensor:
        simple = self.convolutions == 1 and self.norm == "none" and self.activation in (F.silu, identity)
        if simple and layout.mask is None:
            origin, activate = centre_tap(self.taps.shape[2], self.causal), self.activation is F.silu
            return residual_convolutions(x, self.taps, origin, tuple(self.dilations), self.residual, activate)

        def convolve(index: int, h: Tensor) -> Tensor:
            return dilated_convolution(h, self.taps[index], self.dilations[index], causal=self.causal)

        return self.blocks(x, layout.mask, convolve)

    def derive(self, form: str = "eager") -> BackwardTaps:
        return BackwardTaps(self.taps.flip(2).transpose(1, 2).contiguous())

    def init_state(self, batch_size: int) -> TCNState:
        self.require_causal()
        taps = self.derived(checked=True).taps
        supports = [(taps.shape[1] - 1) * f + 1 for f in self.dilations]
        rings = (Window.empty(batch_size, self.channels, support, like=taps) for support in supports)
        return TCNState(tuple(rings), taps.new_zeros(batch_size, dtype=torch.long))

    def blocks(self, x: Tensor, mask: Tensor | None, convolve: Callable[[int, Tensor], Tensor]) -> Tensor:
        """The stack, given a function that convolves. Padding is set to zero before every convolution, whose output
        fills it."""
        # Products are faster than masked_fill. x is zero at padding (`Mixer.forward`), so nothing there is NaN.
        real = None if mask is None else mask[..., None].to(x.dtype)
        for start in range(0, len(self.dilations), self.convolutions):
            h = x
            for index in range(start, start + self.convolutions):
                if self.norm == "rms":
                    h = F.rms_norm(h, h.shape[-1:], eps=_EPSILON)
                h = self.activation(convolve(index, h if real is None else h * real))
            x = x + h if self.residual else h
        return x


class ShortConvMixer(Derived, Mixer):
    """A convolution of a few tokens between two gates: ``W_o (c * (w * (b * v)))`` with ``b, c, v = W_i x``, where w is
    a depthwise convolution and the other products are elementwise.

    Options:
        kernel_size: taps of the convolution, for lags 0 to kernel_size - 1; in a two-sided mixer centred ones, an odd
            number (the published one is causal).

    There is no bias, as published. ValueError for an even centred size.

    Streams in constant memory, the last kernel_size tokens.

    Source: LFM2 (Liquid AI 2025), its gated short convolution block.
    """

    takes_shards = True
    derives_from_parts = False

    def __init__(self, channels: int, *, causal: bool = True, kernel_size: int = 3):
        super().__init__(channels, causal)
        self._origin = centre_tap(check_integer("kernel_size", kernel_size), causal)
        self.input = nn.Linear(channels, 3 * channels, bias=False)
        self.taps = nn.Parameter(torch.empty(channels, kernel_size))
        self.out = nn.Linear(channels, channels, bias=False)
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Draw uniformly within the inverse root of the number of taps, as PyTorch's convolutions."""
        bound = self.taps.shape[1] ** -0.5
        nn.init.uniform_(self.taps, -bound, bound)

    def mix(self, x: Tensor, state: WindowState | None, layout: Layout) -> tuple[Tensor, Any]:
        whole = layout.mask is None and layout.seq_idx is None and layout.shard is None
        if state is None and whole:
            y = gated_convolution(linears(x, self.input)[0], self.taps, self._origin)
            return linears(y, self.out)[0], None
        before, after, value = self.input(x).chunk(3, 2)
        if state is None:
            reach = tap_reach(self.taps.shape[1], causal=self.causal)
            return self.out(after * layout.near(self._convolved, before * value, *reach)), None
        y, window = dilated_prefill(before * value, self.taps, 1, *state)
        seen = state.seen + (x.shape[1] if layout.mask is None else layout.mask.sum(1))
        return self.out(after * y), WindowState(window, seen)

    def _convolved(self, x: Tensor, layout: Layout) -> Tensor:
        return dilated_convolution(x, self.taps, 1, causal=self.causal)

    def derive(self, form: str = "eager") -> BackwardTaps:
        return BackwardTaps(self.taps.flip(1).t().contiguous())

    def init_state(self, batch_size: int) -> WindowState:
        self.require_causal()
        taps = self.derived(checked=True).taps
        window = Window.empty(batch_size, self.channels, len(taps), like=taps)
        return WindowState(window, taps.new_zeros(batch_size, dtype=torch.long))

    def mix_token(self, x: Tensor, state: WindowState) -> tuple[Tensor, WindowState]:
        before, after, value = self.input(x).chunk(3, 1)
        y, window = dilated_step(before * value, self.derived().taps, 1, *state)
        return self.out(after * y), WindowState(window, state.seen + 1)
