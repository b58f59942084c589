"""The Toeplitz neural operator: a lag kernel applied to every channel."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from typing import Any, NamedTuple

import torch
from torch import Tensor

from lagwise.kernels import KERNELS
from lagwise.mixers.base import Mixer, masked
from lagwise.mixers.ski import SKI, SKIState
from lagwise.ops import ENGINES, SPECTRAL_ENGINES, spectral_product, toeplitz_product
from lagwise.tables import build, known

_FIRST_CAPACITY = 256


class ToeplitzState(NamedTuple):
    """Inputs so far, ``(batch, n, channels)``, as far back as the kernel reaches, and the taps they meet.

    ``reversed_taps`` is ``(capacity, channels)``, lag 0 last, so that its tail lines up with the history.
    """

    history: Tensor
    reversed_taps: Tensor

    def map_batch(self, change: Callable[[Tensor], Tensor]) -> ToeplitzState:
        return self._replace(history=change(self.history))


class ToeplitzMixer(Mixer):
    """TNO: ``y_i = sum_j k(i - j) x_j`` in every channel (TNN §3.2, eq. 4; fig. 2).

    Options: kernel, a spec from the table of kernels; engine, as in `toeplitz_product`, or ``ski``: SKI-TNN's
    approximation, with options as ``{"name": "ski", ...}`` (`lagwise.mixers.ski.SKI`).

    Streaming with an exact engine keeps the inputs that the kernel still reaches: constant memory for a kernel with a
    horizon, growing with the text otherwise. A token costs one dot product over them. SKI keeps a few tokens and the
    nodes, one for every ``spacing`` tokens.
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
        self.ski: SKI | None = None
        if spec.get("name") == "ski":
            self.ski = build({"ski": SKI}, spec, self.kernel, what="engine")
        elif len(spec) > 1:
            raise ValueError(f"only engine 'ski' has options, got {dict(spec)}")
        self.engine: str = known(spec.get("name"), ENGINES, "engine")

    def mix(self, x: Tensor, mask: Tensor | None) -> Tensor:
        if self.ski is not None:
            return self.ski.mix(self.kernel, x, mask)
        length = x.shape[1]
        x = masked(x, mask)
        if self.kernel.spectral and self.engine in SPECTRAL_ENGINES:
            reach = min(length, self.kernel.horizon() or length)
            spectrum = partial(self.kernel.spectrum, length=length)
            n_taps = reach if self.causal else 2 * reach - 1
            return spectral_product(x, spectrum, n_taps=n_taps, causal=self.causal, engine=self.engine)
        return toeplitz_product(x, self.kernel.taps(length), causal=self.causal, engine=self.engine)

    def init_state(self, batch_size: int) -> ToeplitzState | SKIState:
        self.require_causal()
        if self.ski is not None:
            return self.ski.init_state(self.kernel, batch_size)
        horizon = self.kernel.horizon()
        capacity = horizon or min(_FIRST_CAPACITY, self.kernel.max_length or _FIRST_CAPACITY)
        reversed_taps = self._reversed_taps(capacity)
        return ToeplitzState(reversed_taps.new_zeros(batch_size, 0, self.channels), reversed_taps)

    def prefill(self, x: Tensor, state: Any, *, mask: Tensor | None = None) -> tuple[Tensor, Any]:
        if self.ski is not None:
            return self.ski.prefill(self.kernel, x, state, mask)
        signal = torch.cat([state.history, masked(x, mask).to(state.history.dtype)], dim=1)
        length = signal.shape[1]
        horizon = self.kernel.horizon()
        taps = state.reversed_taps
        if horizon is None and length > taps.shape[0]:
            # Doubling makes the kernel network's cost a constant a token.
            capacity = 2 ** (length - 1).bit_length()
            taps = self._reversed_taps(max(length, min(capacity, self.kernel.max_length or capacity)))
        reach = taps[-length:]
        if x.shape[1] == 1:
            y = (signal[:, length - reach.shape[0] :] * reach).sum(dim=1, keepdim=True)
        else:
            y = toeplitz_product(signal, reach.flip(0).t(), engine=self.engine)[:, length - x.shape[1] :]
        keep = length if horizon is None else min(length, horizon - 1)
        return y.to(x.dtype), ToeplitzState(signal[:, length - keep :], taps)

    def _reversed_taps(self, length: int) -> Tensor:
        return self.kernel.taps(length).t().flip(0)
