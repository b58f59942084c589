"""Streaming steps with states of fixed shapes, for export and compilation.

A causal mixer's own state grows with the first tokens, has Python counters and may be complex. Here every state is a
tuple of real tensors of fixed shapes with the batch first: windows are ring buffers, and counters are tensors. A module
of this file replaces a mixer in its block, which calls `prefill` as before.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from lagwise.mixers.ema import EMAMixer, EMAState
from lagwise.mixers.tcn import TCNMixer, TCNState
from lagwise.mixers.toeplitz import ModalState, ToeplitzMixer
from lagwise.ops.streaming import ring_convolve, ring_of, ring_read, ring_tokens, ring_write
from lagwise.ops.symbolic import symbolic_product
from lagwise.ops.window import Window

_LEAST_RADIUS = 1e-30  # lower bound for a pole's radius: the logarithm is finite, and powers are negligible


class FixedMixer(nn.Module):
    """Abstract base class of streaming steps on states of fixed shapes.

    Tensors derived from a mixer's parameters, such as taps, are computed once and kept in buffers, so create a new
    module after the weights change. Subclasses implement `init_state`, `take`, `give`, and `step` or `run`, or both if
    a single token has a faster path.
    """

    def init_state(self, batch_size: int) -> Any:
        """The state before the first token: a named tuple of tensors, whose first axis is the batch."""
        raise NotImplementedError

    def step(self, x: Tensor, state: Any) -> tuple[Tensor, Any]:
        """As `Mixer.step`, without in-place changes. The default calls `run`."""
        y, state = self.run(x[:, None], state)
        return y[:, 0], state

    def take(self, state: Any) -> Any:
        """Convert a streaming state of the mixer to one of fixed shapes."""
        raise NotImplementedError

    def give(self, state: Any) -> Any:
        """The inverse of `take`."""
        raise NotImplementedError

    def prefill(self, x: Tensor, state: Any, *, mask: Tensor | None = None) -> tuple[Tensor, Any]:
        """Process the next tokens ``(batch, length, channels)``, without a mask: `step` for one, `run` for more."""
        assert mask is None
        if x.shape[1] != 1:
            return self.run(x, state)
        y, state = self.step(x[:, 0], state)
        return y[:, None], state

    def run(self, x: Tensor, state: Any) -> tuple[Tensor, Any]:
        """Process several tokens in a graph, in real arithmetic and without loops over a dynamic length. The default
        calls `step` for each token."""
        parts = []
        for token in x.unbind(1):
            y, state = self.step(token, state)
            parts.append(y)
        return torch.stack(parts, 1), state


class FixedModalState(NamedTuple):
    """Real and imaginary parts of the modes, ``(batch, modes, channels)``."""

    real: Tensor
    imaginary: Tensor


class FixedModal(FixedMixer):
    """A state space kernel, in real arithmetic (see `lagwise.ops.recurrence.modal_step`)."""

    poles: Tensor
    lost: Tensor | None
    weights: Tensor
    direct: Tensor

    def __init__(self, mixer: ToeplitzMixer):
        super().__init__()
        modes = mixer.kernel.recurrence()
        self.modes = modes = modes.split(modes.direct.dtype)
        for name in ("poles", "lost", "weights"):
            part = getattr(modes, name)
            pair = None if part is None else torch.view_as_real(part.detach()).permute(2, 1, 0).contiguous()
            self.register_buffer(name, pair)
        self.register_buffer("direct", modes.direct.detach().clone())
        poles = modes.exact.detach().t().to(torch.complex128)
        self.register_buffer("log_radius", poles.abs().clamp(min=_LEAST_RADIUS).log())
        self.register_buffer("angle", poles.angle())

    def init_state(self, batch_size: int) -> FixedModalState:
        zeros = self.poles.new_zeros(batch_size, *self.poles.shape[1:])
        return FixedModalState(zeros, zeros.clone())

    def step(self, x: Tensor, state: FixedModalState) -> tuple[Tensor, FixedModalState]:
        token, (real, imaginary) = x.to(self.direct.dtype), state
        (a, b), (u, v), (first, second) = self.poles, self.weights, (token[:, None], torch.zeros_like(token)[:, None])
        if self.lost is not None:
            c, d = self.lost
            first = torch.addcmul(torch.addcmul(first, c, real), d, imaginary, value=-1)
            second = torch.addcmul(c * imaginary, d, real)
        real, imaginary = (
            torch.addcmul(torch.addcmul(first, a, real), b, imaginary, value=-1),
            torch.addcmul(torch.addcmul(second, a, imaginary), b, real),
        )
        y = (u * real - v * imaginary).sum(1) + self.direct * token
        return y.to(x.dtype), FixedModalState(real, imaginary)

    def run(self, x: Tensor, state: FixedModalState) -> tuple[Tensor, FixedModalState]:
        n, signal, dtype = x.shape[1], x.to(self.direct.dtype), self.direct.dtype
        lags = torch.arange(n + 1, dtype=torch.float64, device=x.device)
        size, turn = (self.log_radius[..., None] * lags).exp(), self.angle[..., None] * lags
        cos, sin = (size * turn.cos()).to(dtype), (size * turn.sin()).to(dtype)  # of powers, (modes, channels, n + 1)
        (u, v), (a, b) = self.weights, state
        taps = (u[..., None] * cos - v[..., None] * sin).sum(0)[:, :n] + self.direct[:, None] * (lags[:n] == 0)
        old = torch.einsum("bmc,mcn->bnc", u * a - v * b, cos[..., 1:])
        old = old - torch.einsum("bmc,mcn->bnc", u * b + v * a, sin[..., 1:])
        real, imaginary = (torch.einsum("bnc,mcn->bmc", signal, each[..., :n].flip(2)) for each in (cos, sin))
        last, turned = cos[..., -1], sin[..., -1]
        state = FixedModalState(last * a - turned * b + real, last * b + turned * a + imaginary)
        return (symbolic_product(signal, taps, 0) + old).to(x.dtype), state

    def take(self, state: ModalState) -> FixedModalState:
        parts = torch.view_as_real(state.memory).permute(3, 0, 2, 1).to(self.poles.dtype)
        return FixedModalState(*(part.contiguous() for part in parts))

    def give(self, state: FixedModalState) -> ModalState:
        return ModalState(torch.complex(*state).transpose(1, 2).contiguous(), self.modes)


class FixedEMAState(NamedTuple):
    """As `EMAState`: averages ``(batch, dimension, channels)``. If truncated, also the averages of tokens that have
    left the window, a ring of the tokens in it, and the number of tokens so far, ``(batch,)``."""

    average: Tensor
    left: Tensor | None = None
    ring: Tensor | None = None
    seen: Tensor | None = None


class FixedEMA(FixedMixer):
    """MEGA's moving average (see `lagwise.ops.recurrence.ema_prefill`)."""

    weight: Tensor
    decay: Tensor
    omega: Tensor
    log_decay: Tensor
    late: Tensor

    def __init__(self, mixer: EMAMixer):
        super().__init__()
        dtype = mixer.init_state(1).average.dtype  # of a truncated average float64: two of them nearly cancel
        weight, log_decay = (part[0].detach().t().to(dtype) for part in mixer.kernel.exponentials())
        self.truncation = mixer.kernel.truncation
        self.register_buffer("weight", weight.contiguous())
        self.register_buffer("decay", log_decay.exp().contiguous())
        self.register_buffer("log_decay", log_decay.contiguous())
        self.register_buffer("omega", mixer.omega.detach().to(weight.dtype))
        if self.truncation is not None:
            self.register_buffer("late", (weight * (log_decay * self.truncation).exp()).contiguous())

    def init_state(self, batch_size: int) -> FixedEMAState:
        zeros = self.weight.new_zeros(batch_size, *self.weight.shape)
        if self.truncation is None:
            return FixedEMAState(zeros)
        ring = zeros.new_zeros(batch_size, self.truncation, zeros.shape[2])
        return FixedEMAState(zeros, zeros.clone(), ring, counter(ring))

    def step(self, x: Tensor, state: FixedEMAState) -> tuple[Tensor, FixedEMAState]:
        token = x.to(self.weight.dtype)
        average = self.decay * state.average + token[:, None]
        y, after = (self.weight * average).sum(1), FixedEMAState(average)
        if state.left is not None and state.ring is not None and state.seen is not None:
            leaving = ring_read(state.ring, state.seen, torch.zeros_like(state.seen[:1]))  # the oldest token
            left = self.decay * state.left + leaving
            y = y - (self.late * left).sum(1)
            after = FixedEMAState(average, left, ring_write(state.ring, token, state.seen), state.seen + 1)
        return F.silu(y + self.omega * token).to(x.dtype), after

    def run(self, x: Tensor, state: FixedEMAState) -> tuple[Tensor, FixedEMAState]:
        n, signal = x.shape[1], x.to(self.weight.dtype)
        powers = (self.log_decay[..., None] * torch.arange(n + 1, device=x.device)).exp()  # (dimension, channels, n+1)

        def after(average: Tensor, tokens: Tensor) -> Tensor:
            return powers[..., -1] * average + torch.einsum("bnc,dcn->bdc", tokens, powers[..., :n].flip(2))

        average = after(state.average, signal)
        if state.left is None or state.ring is None or state.seen is None:
            old = torch.einsum("bdc,dcn->bnc", self.weight * state.average, powers[..., 1:])
            y, end = symbolic_product(signal, (self.weight[..., None] * powers).sum(0)[:, :n], 0) + old, (None,) * 3
        else:  # truncated: one tap per token in the ring
            lags = torch.arange(state.ring.shape[1], device=x.device)
            taps = (self.weight[..., None] * (self.log_decay[..., None] * lags).exp()).sum(0)
            y, ring = ring_convolve(state.ring, signal, taps.t(), state.seen)
            leaving = torch.cat([ring_tokens(state.ring, state.seen), signal], 1)[:, :n]
            end = (after(state.left, leaving), ring, state.seen + n)
        return F.silu(y + self.omega * signal).to(x.dtype), FixedEMAState(average, *end)

    def take(self, state: EMAState) -> FixedEMAState:
        average = state.average.transpose(1, 2).contiguous()
        if state.left is None or state.recent is None or self.truncation is None:
            return FixedEMAState(average)
        seen = counter(average)
        ring = ring_of(state.recent.tokens, self.truncation, seen)
        return FixedEMAState(average, state.left.transpose(1, 2).contiguous(), ring, seen)

    def give(self, state: FixedEMAState) -> EMAState:
        average = state.average.transpose(1, 2).contiguous()
        if state.left is None or state.ring is None or state.seen is None:
            return EMAState(average, None, None)
        recent = Window(ring_tokens(state.ring, state.seen), self.truncation)
        return EMAState(average, state.left.transpose(1, 2).contiguous(), recent)


class FixedTCNState(NamedTuple):
    """Rings of the latest inputs of each convolution, ``(batch, reach, channels)``, and the number of tokens so far,
    ``(batch,)``."""

    rings: tuple[Tensor, ...]
    seen: Tensor


class FixedTCN(FixedMixer):
    """A stack of dilated convolutions (see `lagwise.ops.toeplitz.dilated_prefill`)."""

    taps: Tensor

    def __init__(self, mixer: TCNMixer):
        super().__init__()
        self.blocks, self.dilations = mixer.blocks, mixer.dilations
        self.reaches = [(mixer.taps.shape[2] - 1) * dilation + 1 for dilation in mixer.dilations]
        self.register_buffer("taps", mixer.taps.detach().transpose(1, 2).contiguous())

    def init_state(self, batch_size: int) -> FixedTCNState:
        rings = tuple(self.taps.new_zeros(batch_size, reach, self.taps.shape[2]) for reach in self.reaches)
        return FixedTCNState(rings, counter(rings[0]))

    def step(self, x: Tensor, state: FixedTCNState) -> tuple[Tensor, FixedTCNState]:
        rings, count = list(state.rings), torch.arange(self.taps.shape[1], device=x.device)

        def convolve(index: int, h: Tensor) -> Tensor:
            rings[index] = ring_write(rings[index], h[:, 0], state.seen)
            seen = ring_read(rings[index], state.seen, count * self.dilations[index])
            return (seen * self.taps[index]).sum(1, keepdim=True).to(h.dtype)

        y = self.blocks(x[:, None], None, convolve)
        return y[:, 0], FixedTCNState(tuple(rings), state.seen + 1)

    def run(self, x: Tensor, state: FixedTCNState) -> tuple[Tensor, FixedTCNState]:
        rings = list(state.rings)

        def convolve(index: int, h: Tensor) -> Tensor:
            y, rings[index] = ring_convolve(rings[index], h, self.taps[index], state.seen, self.dilations[index])
            return y.to(h.dtype)

        return self.blocks(x, None, convolve), FixedTCNState(tuple(rings), state.seen + x.shape[1])

    def take(self, state: TCNState) -> FixedTCNState:
        seen, windows = counter(state.windows[0].tokens), zip(state.windows, self.reaches, strict=True)
        return FixedTCNState(tuple(ring_of(window.tokens, reach, seen) for window, reach in windows), seen)

    def give(self, state: FixedTCNState) -> TCNState:
        return TCNState(tuple(Window(ring_tokens(ring, state.seen), ring.shape[1]) for ring in state.rings))


def counter(like: Tensor) -> Tensor:
    """Zero for every row of a state."""
    return torch.zeros(like.shape[0], dtype=torch.long, device=like.device)
