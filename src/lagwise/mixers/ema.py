"""MEGA's moving average layer."""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from lagwise.kernels import EMAKernel
from lagwise.mixers.base import Mixer, masked
from lagwise.mixers.derived import Derived
from lagwise.ops import EXACT_ENGINES, Layout, ema_scan, toeplitz_product
from lagwise.ops.fused.average import moving_average
from lagwise.ops.operation import symbolic
from lagwise.ops.packing import per_document
from lagwise.ops.product import saved_engine
from lagwise.ops.recurrence import DiagonalSSM, ema_blocks, ema_taps, zoh_mix, zoh_tokens
from lagwise.ops.shards import Shard
from lagwise.ops.window import Window, displaced, extended
from lagwise.tables import known

EMA_ENGINES = ("scan", *EXACT_ENGINES)


class EMAState(NamedTuple):
    """Averages so far, ``(batch, dimension, channels)``. If truncated, also the tokens in the window, and their number
    so far, ``(batch,)``."""

    average: Tensor
    ring: Window | Tensor | None = None
    seen: Tensor | None = None


class EMAMixer(Derived, Mixer):
    """Damped multi-dimensional moving average: ``silu(k * x + omega x)`` with k an `EMAKernel`.

    Options:
        dimension: number of exponentials per channel and direction (MEGA: 16).
        truncation: number of lags to keep on each side; by default all.
        engine: ``scan`` (linear time, exactly causal, the fastest at every length measured) or an engine for the
            kernel's taps, as in `toeplitz_product`.

    Streams in constant memory and time: the state has ``dimension`` numbers per channel, and for a truncated average
    also the tokens that it covers.

    Source: TCNCA eq. 1; MEGA (Ma et al. 2023), §3.1.

    >>> mixer, x = EMAMixer(4).double(), torch.randn(2, 100, 4, dtype=torch.float64)
    >>> first, state = mixer.prefill(x[:, :60], mixer.init_state(2))
    >>> rest, state = mixer.prefill(x[:, 60:], state)  # chunks give what the whole gives
    >>> torch.allclose(torch.cat([first, rest], 1), mixer(x))
    True
    """

    any_rate = takes_times = takes_shards = True

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
        self.needs_float64 = truncation is not None
        self.engine: str = known(saved_engine(engine), EMA_ENGINES, "engine")
        self.omega = nn.Parameter(torch.empty(channels))
        self.reset_parameters()

    def reset_parameters(self) -> None:
        nn.init.normal_(self.omega)

    def mix(self, x: Tensor, state: EMAState | None, layout: Layout) -> tuple[Tensor, Any]:
        if layout.token_time is not None:
            return self._mix_timed(x, state, layout)
        if layout.shard is not None:
            return self._mix_shard(x, layout), None
        return (self._mix_whole(x, layout), None) if state is None else self._mix_chunk(x, state, layout.mask)

    def _mix_whole(self, x: Tensor, layout: Layout) -> Tensor:
        if self.engine == "scan" and not symbolic(x.shape[1]):
            weight, log_decay = self.kernel.exponentials()
            backward = None if self.causal else (weight[1], log_decay[1])
            truncation = self.kernel.truncation
            if backward is None and truncation is None:
                return moving_average(x, weight[0], log_decay[0], self.omega, None)
            y = ema_scan(x, weight[0], log_decay[0], backward=backward, truncation=truncation)
        else:
            y = toeplitz_product(x, self.kernel.taps(x.shape[1]), causal=self.causal, engine=self.engine)
        return F.silu(y + self.omega * x).to(x.dtype)

    def _mix_shard(self, x: Tensor, layout: Layout) -> Tensor:
        shard = layout.shard
        if (reach := self.kernel.truncation) is not None:
            return shard.near(self._mix_whole, x, reach - 1, 0 if self.causal else reach - 1)
        weights, log_decays = self.kernel.exponentials()

        def alone(x: Tensor, layout: Layout) -> Tensor:
            backward = None if self.causal else (weights[1], log_decays[1])
            return ema_scan(x, weights[0], log_decays[0], backward=backward)

        y = per_document(alone, x, Layout(layout.mask, layout.seq_idx))
        for weight, log_decay, backward in zip(weights, log_decays, (False, True), strict=False):
            y = y + _carried_average(shard, x, weight, log_decay, backward=backward)
        return F.silu(y + self.omega * x).to(x.dtype)

    @property
    def counts_tokens(self) -> str | None:
        return None if self.kernel.truncation is None else "an average with a truncation"

    def _mix_timed(self, x: Tensor, state: EMAState | None, layout: Layout) -> tuple[Tensor, Any]:
        signal, (weights, log_decays) = x.to(self.kernel.precision(self.omega)), self.kernel.exponentials()
        modes = [zoh_tokens(*each) for each in zip(log_decays, layout.times(self.causal), strict=True)]
        before = None if state is None else state.average.transpose(1, 2)
        y, end = zoh_mix(signal, modes, list(weights), self.omega, before)
        return F.silu(y).to(x.dtype), None if state is None else EMAState(end.transpose(1, 2))

    def derive(self, form: str = "eager") -> Any:
        if not self.causal:
            return ()
        weight, log_decay = (part[0] for part in self.kernel.exponentials())
        if self.kernel.truncation is not None:  # tokens that leave the window nearly cancel those that came
            weight, log_decay = weight.double(), log_decay.double()
        return DiagonalSSM.averages(weight, log_decay)

    def init_state(self, batch_size: int) -> EMAState:
        self.require_causal()
        (average,) = self.derived(checked=True).start(batch_size)
        if self.kernel.truncation is None:
            return EMAState(average)
        recent = Window.empty(batch_size, self.channels, self.kernel.truncation, like=average)
        return EMAState(average, recent, average.new_zeros(batch_size, dtype=torch.long))

    def _mix_chunk(self, x: Tensor, state: EMAState, mask: Tensor | None) -> tuple[Tensor, EMAState]:
        ssm, n = self.derived(), x.shape[1]
        signal = x.to(ssm.weights.dtype)
        y, average = self._averaged(ssm, signal, state.average)
        after = EMAState(average)
        if state.ring is not None and state.seen is not None:
            late, leaving = self._late(ssm), displaced(state.ring, n, signal, state.seen)
            ending = ssm._replace(weights=ssm.weights * late)
            ended, left = self._averaged(ending, leaving, torch.zeros_like(state.average))
            seen = state.seen + (n if mask is None else mask.sum(1))
            y, after = y - ended, EMAState(average - late * left, extended(state.ring, signal, state.seen), seen)
        return F.silu(y + self.omega * signal).to(x.dtype), after

    def mix_token(self, x: Tensor, state: EMAState) -> tuple[Tensor, EMAState]:
        ssm = self.derived()
        token = x.to(ssm.weights.dtype)
        y, (average,) = ssm.step(token, state[:1])
        after = EMAState(average)
        if state.ring is not None and state.seen is not None:
            left = self._late(ssm) * displaced(state.ring, 1, token[:, None], state.seen)
            ring = extended(state.ring, token[:, None], state.seen)
            y, after = y - (ssm.weights[0] * left).sum(1), EMAState(average - left, ring, state.seen + 1)
        return F.silu(y + self.omega * token).to(x.dtype), after

    def _late(self, ssm: DiagonalSSM) -> Tensor:
        """The weight that is left of a token that leaves the window, ``(dimension, channels)``."""
        return (ssm.exponents[0] * (self.kernel.truncation or 0)).exp()

    def _averaged(self, ssm: DiagonalSSM, x: Tensor, average: Tensor) -> tuple[Tensor, Tensor]:
        """The averages of the next tokens, and the state after them."""
        blocks = lambda _: ema_blocks(x, ssm.weights[0].t(), ssm.exponents[0].t())  # noqa: E731
        y, (average,) = ssm.prefill(x, [average], blocks)
        return y, average


def _carried_average(shard: Shard, x: Tensor, weight: Tensor, log_decay: Tensor, *, backward: bool) -> Tensor:
    """Contribution of other shards' tokens to the averages of this one, in one direction."""
    last, first = shard.open_end(backward=backward), shard.open_end(backward=not backward)
    ending = masked(x, last)
    ending = ending.flip(1) if backward else ending
    _, state = ema_blocks(ending, weight, log_decay).scan(ending, weight.new_zeros(len(x), *weight.shape))
    before = shard.state_before(state, log_decay, backward=backward)
    weights = (weight * log_decay.exp() * before).flatten(0, 1)
    taps = ema_taps(weights, log_decay.repeat(len(x), 1), x.shape[1]).unflatten(0, x.shape[::2]).transpose(1, 2)
    return masked(taps.flip(1) if backward else taps, first).to(x.dtype)
