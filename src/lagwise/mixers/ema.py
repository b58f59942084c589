"""MEGA's moving average layer."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from lagwise.kernels import EMAKernel
from lagwise.mixers.base import Mixer
from lagwise.ops import EXACT_ENGINES, Layout, ema_scan, toeplitz_product
from lagwise.ops.recurrence import ema_prefill
from lagwise.ops.symbolic import symbolic
from lagwise.ops.window import Window
from lagwise.tables import known

EMA_ENGINES = ("scan", *EXACT_ENGINES)


class EMAState(NamedTuple):
    """Averages so far, ``(batch, channels, dimension)``; for a truncated average also the averages that have left it,
    and the tokens that have not yet left."""

    average: Tensor
    left: Tensor | None
    recent: Window | None

    def map_batch(self, change: Callable[[Tensor], Tensor]) -> EMAState:
        return EMAState(
            change(self.average),
            None if self.left is None else change(self.left),
            None if self.recent is None else self.recent.map_batch(change),
        )

    @staticmethod
    def join(states: Sequence[EMAState]) -> EMAState:
        left = [state.left for state in states if state.left is not None]
        recent = [state.recent for state in states if state.recent is not None]
        return EMAState(
            torch.cat([state.average for state in states]),
            torch.cat(left) if left else None,
            Window.join(recent) if recent else None,
        )


class EMAMixer(Mixer):
    """Damped multi-dimensional moving average: ``silu(k * x + omega x)`` with k an `EMAKernel`.

    Options:
        dimension: number of exponentials per channel and direction (MEGA: 16).
        truncation: number of lags to keep on each side; by default all.
        engine: ``scan`` (linear time, exactly causal, the fastest at every length measured) or an engine for the
            kernel's taps, as in `toeplitz_product`.

    Streams in constant memory and time: the state has ``dimension`` numbers per channel, and for a truncated average
    also the tokens that it covers.

    Source: TCNCA eq. 1; MEGA (Ma et al. 2023), §3.1.
    """

    def __init__(
        self,
        channels: int,
        *,
        causal: bool = True,
        dimension: int = 16,
        truncation: int | None = None,
        engine: str = "scan",
    ):
        super().__init__(channels, causal)
        self.kernel = EMAKernel(channels, causal=causal, dimension=dimension, truncation=truncation)
        self.engine: str = known(engine, EMA_ENGINES, "engine")
        self.omega = nn.Parameter(torch.empty(channels))
        self.reset_parameters()

    def reset_parameters(self) -> None:
        nn.init.normal_(self.omega)

    def mix(self, x: Tensor, layout: Layout) -> Tensor:
        if self.engine == "scan" and not symbolic(x.shape[1]):
            weight, log_decay = self.kernel.exponentials()
            backward = None if self.causal else (weight[1], log_decay[1])
            truncation = self.kernel.truncation
            y = ema_scan(x, weight[0], log_decay[0], backward=backward, truncation=truncation)
        else:
            y = toeplitz_product(x, self.kernel.taps(x.shape[1]), causal=self.causal, engine=self.engine)
        return F.silu(y + self.omega * x).to(x.dtype)

    def init_state(self, batch_size: int) -> EMAState:
        self.require_causal()
        weight = self.kernel.exponentials()[0][0]
        if self.kernel.truncation is None:
            return EMAState(weight.new_zeros(batch_size, *weight.shape), None, None)
        average = weight.new_zeros(batch_size, *weight.shape, dtype=torch.float64)  # two of them nearly cancel
        recent = Window.empty(batch_size, self.channels, self.kernel.truncation, like=weight)
        return EMAState(average, average, recent)

    def mix_next(self, x: Tensor, state: EMAState, mask: Tensor | None) -> tuple[Tensor, Any]:
        weight, log_decay = (part[0].to(state.average.dtype) for part in self.kernel.exponentials())
        given, x = x.dtype, x.to(weight.dtype)
        y, average = ema_prefill(x, weight, log_decay, state.average)
        left, recent = state.left, state.recent
        if recent is not None and self.kernel.truncation is not None:
            truncation = self.kernel.truncation
            late = recent.size + x.shape[1] - truncation  # tokens out of reach of a new one
            if late > 0:
                leaving = torch.cat([recent.tokens[:, :late], x[:, : max(0, late - recent.size)]], dim=1)
                weight = weight * (log_decay * truncation).exp()
                ended, left = ema_prefill(leaving, weight, log_decay, left)
                y = torch.cat([y[:, :-late], y[:, -late:] - ended], dim=1)
            recent = recent.append(x)
        return F.silu(y + self.omega * x).to(given), EMAState(average, left, recent)
