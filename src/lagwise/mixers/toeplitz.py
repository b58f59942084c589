"""The Toeplitz neural operator: a lag kernel applied to every channel."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor

from lagwise.kernels import KERNELS
from lagwise.kernels.remembered import remembered_taps
from lagwise.mixers.base import Mixer, masked
from lagwise.mixers.causal_ski import CausalSKI, SKIState
from lagwise.mixers.two_sided_ski import TwoSidedSKI
from lagwise.ops import ENGINES, Layout, online_prefill, toeplitz_product
from lagwise.ops.packing import from_first_token
from lagwise.ops.recurrence.modal import SplitModes, modal_prefill
from lagwise.ops.streaming import OnlineState, OnlineTaps
from lagwise.ops.symbolic import symbolic
from lagwise.ops.toeplitz import fast_length, spectral_product
from lagwise.tables import build, known


class ModalState(NamedTuple):
    """The state of a kernel that is a state space, ``(batch, channels, modes)`` complex, and the kernel."""

    memory: Tensor
    modes: SplitModes

    def map_batch(self, change: Callable[[Tensor], Tensor]) -> ModalState:
        return self._replace(memory=change(self.memory))

    @staticmethod
    def join(states: Sequence[ModalState]) -> ModalState:
        return states[0]._replace(memory=torch.cat([state.memory for state in states]))


class ToeplitzMixer(Mixer):
    """TNO: ``y_i = sum_j k(i - j) x_j`` in every channel (TNN §3.2, eq. 4; fig. 2).

    Causal convolutions and linear state spaces are such mixers (TNN §3.4, eq. 10 to 16).

    Options:
        kernel: spec of a lag kernel.
        engine: as in `toeplitz_product`, or ``ski``: SKI-TNN's approximation, with options as ``{"name": "ski", ...}``
            (`CausalSKI` or `TwoSidedSKI`).

    Exact engines stream by `online_prefill`: O(log² n) per token, where n is the length of the text or the kernel's
    horizon, if it has one; memory is then constant too. A kernel that is a state space (``modal``) streams as one. SKI
    keeps a few tokens and one node for every ``spacing`` tokens.
    """

    def __init__(
        self,
        channels: int,
        *,
        causal: bool = True,
        kernel: Mapping[str, Any] | None = None,
        engine: str | Mapping[str, Any] = "auto",
    ):
        super().__init__(channels, causal)
        self.kernel = build(KERNELS, kernel or {"name": "rpe"}, channels, what="kernel", causal=causal)
        if not isinstance(engine, str | Mapping):
            raise ValueError(f"engine must be a name or a mapping with a 'name', got {engine!r}")
        spec = {"name": engine} if isinstance(engine, str) else engine
        self.ski: CausalSKI | TwoSidedSKI | None = None
        if spec.get("name") == "ski":
            self.ski = build(
                {"ski": CausalSKI if causal else TwoSidedSKI},
                spec,
                self.kernel,
                what="causal engine" if causal else "two-sided engine",
            )
        elif len(spec) > 1:
            raise ValueError(f"only engine 'ski' has options, got {dict(spec)}")
        self.engine: str = known(spec.get("name"), ENGINES, "engine")

    def mix(self, x: Tensor, layout: Layout) -> Tensor:
        if self.ski is not None:
            return self.ski.mix(self.kernel, x, layout.mask)
        limit = self.kernel.max_length
        if limit is not None and layout.mask is not None and not symbolic(x.shape[1]) and x.shape[1] > limit:
            return from_first_token(lambda x, _: self._product(x), x, layout.mask)  # padding does not count
        return self._product(x)

    def _product(self, x: Tensor) -> Tensor:
        spectrum = self._spectrum(x.shape[1])
        if spectrum is not None:
            return spectral_product(x, spectrum)
        return toeplitz_product(x, self.taps(x.shape[1]), causal=self.causal, engine=self.engine)

    def mix_columns(self, x: Tensor, layout: Layout, width: int) -> Tensor:
        """`mix` along the columns of a grid ``(batch, height * width, channels)``, with the layout of the columns
        ``(batch * width, height)``. Few lags need no further copy of the grid."""
        height = x.shape[1] // width
        if self.ski is None:
            taps = self.taps(height)
            if layout.mask is not None:
                x = masked(x, layout.mask.unflatten(0, (-1, width)).transpose(1, 2).flatten(1))
            return toeplitz_product(x, taps, causal=self.causal, engine=self.engine, dilation=width)
        return super().mix_columns(x, layout, width)

    def taps(self, length: int) -> Tensor:
        """Taps for a signal of this length, or all taps if a graph leaves it open."""
        reach = self.kernel.reach
        return remembered_taps(self.kernel, reach if symbolic(length) and reach else length)

    def _spectrum(self, length: int) -> Tensor | None:
        """The kernel's own spectrum, if it is one on the circle that a product of this length uses."""
        if symbolic(length) or self.engine not in ("auto", "fft"):
            return None
        return self.kernel.spectrum(fast_length(2 * length - 1))

    def init_state(self, batch_size: int) -> OnlineState | SKIState | ModalState:
        self.require_causal()
        if isinstance(self.ski, CausalSKI):
            return self.ski.init_state(self.kernel, batch_size)
        if self.kernel.recurrent:
            modes = self.kernel.recurrence()
            modes = modes.split(modes.direct.dtype)
            return ModalState(modes.weights.new_zeros(batch_size, *modes.poles.shape), modes)
        reach = self.kernel.reach
        return OnlineState.start(batch_size, OnlineTaps(self.kernel.taps, reach))

    def mix_next(self, x: Tensor, state: Any, mask: Tensor | None) -> tuple[Tensor, Any]:
        if isinstance(self.ski, CausalSKI):
            return self.ski.prefill(self.kernel, x, state, mask)
        if self.kernel.recurrent:
            y, memory = modal_prefill(x.to(state.modes.direct.dtype), state.modes, state.memory)
            return y.to(x.dtype), state._replace(memory=memory)
        self.kernel.check_length(state.seen + x.shape[1])
        y, state = online_prefill(x, state)
        return y.to(x.dtype), state
