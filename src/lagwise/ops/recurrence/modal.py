"""Diagonal state spaces: a kernel that is a sum of damped oscillations, as taps, in blocks of tokens and token by
token."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from lagwise.ops.precision import compute_dtype
from lagwise.ops.symbolic import FINE, chunk_count, symbolic_product
from lagwise.ops.toeplitz.block import toeplitz_blocks

_BLOCK_TOKENS = 32
_LONG_BLOCK = 64  # tokens, for long signals: their states, one per block, cost more than the work inside blocks
_LONG_SIGNAL_TOKENS = 8192
_NEAR, _TERMS = 0.5, 14  # the series is exact to float64's last digit up to this radius
MIN_RADIUS = 1e-30  # smallest pole whose logarithm is taken: its powers are negligible
_SIGNAL_ELEMENTS = 1 << 20  # elements of the tokens processed at a time


class Modes(NamedTuple):
    """A diagonal state space for every channel: ``k_l = Re sum_i w_i p_i**l`` for l >= 1; ``k_0`` also includes direct.

    Shapes: poles p and weights w ``(channels, modes)`` complex, direct ``(channels,)`` real. A pair of conjugate poles
    is one mode with twice the weight. A channel with fewer modes is filled up with poles and weights of 0. Poles may be
    in float64 where the others are in float32: the error of a rounded pole grows with the text.

    >>> half = torch.tensor([[0.5 + 0j]])  # k_l = 0.5 ** l, and 1 at lag 0
    >>> modal_taps(Modes(half, torch.ones(1, 1, dtype=torch.complex64), torch.zeros(1)), 4).tolist()
    [[1.0, 0.5, 0.25, 0.125]]
    """

    poles: Tensor
    weights: Tensor
    direct: Tensor

    def to(self, dtype: torch.dtype, device: torch.device | None = None) -> Modes:
        """Convert to this real dtype and the complex dtype of the same precision."""
        poles, weights = (t.to(device, dtype.to_complex()) for t in (self.poles, self.weights))
        return Modes(poles, weights, self.direct.to(device, dtype))

    def split(self, dtype: torch.dtype) -> SplitModes:
        """Split the poles for arithmetic in this real dtype."""
        rounded = self.to(dtype)
        lost = None
        if torch.promote_types(self.poles.dtype, rounded.poles.dtype) != rounded.poles.dtype:
            lost = (self.poles - rounded.poles).to(rounded.poles.dtype)
        return SplitModes(*rounded, lost)


class SplitModes(NamedTuple):
    """`Modes` for arithmetic in the dtype of all parts, with what the poles lost when they were rounded to it; None if
    they were not."""

    poles: Tensor
    weights: Tensor
    direct: Tensor
    lost: Tensor | None

    @property
    def exact(self) -> Tensor:
        """The poles as they were."""
        return self.poles if self.lost is None else self.poles.to(torch.complex128) + self.lost

    def split(self, dtype: torch.dtype) -> SplitModes:
        return self if dtype == self.direct.dtype else Modes(self.exact, self.weights, self.direct).split(dtype)


def modal_poles(rate: Tensor, angle: Tensor) -> Tensor:
    """Poles ``exp(-exp(rate) + j angle)``: inside the unit circle for any finite rate.

    Args:
        rate: Logarithm of the decay per token, in nepers; real, of any shape.
        angle: In radians per token; like rate.

    Returns:
        Complex poles like rate, in its precision.

    Source: S4D (Gu et al. 2022), in discrete time.
    """
    radius = (-rate.exp()).exp()
    # Not `torch.polar`: its gradient divides by a radius whose square may underflow.
    return torch.complex(radius * angle.cos(), radius * angle.sin())


def mean_exponential(z: Tensor) -> Tensor:
    """The mean of ``exp(z s)`` over 0 <= s <= 1, ``(exp(z) - 1) / z``, for complex z other than 0.

    Near 0, where this is a quotient of small differences, a series is used, so that gradients keep their digits too.
    """
    near = z.abs() < _NEAR
    small = z.masked_fill(~near, 0)
    series = torch.ones_like(small)
    for n in range(_TERMS, 0, -1):
        series = 1 + small / (n + 1) * series
    far = z.masked_fill(near, 1)
    return torch.where(near, series, far.expm1() / far)


def zoh_inputs(log_pole: Tensor, steps: float) -> Tensor:
    """Input factor, by zero-order hold, of a mode ``h_t = p h_{t-1} + w x_t`` in a token that lasts for ``steps``
    tokens: it multiplies w, while p becomes ``p**steps``. For whole steps it is exact if the input is held.

    Formula: ``(p**steps - 1) / (p - 1)`` for the logarithms of poles, complex and other than 0.
    """
    return steps * mean_exponential(steps * log_pole) / mean_exponential(log_pole)


def modal_taps(modes: Modes, length: int) -> Tensor:
    """The kernel of a diagonal state space as taps.

    Formula: ``k_l = Re sum_i w_i p_i**l``, plus direct at l = 0, as a matrix product of ``w p**(a s)`` and ``p**b`` for
    ``l = a s + b``.

    Args:
        modes: See `Modes`.
        length: Number of taps.

    Returns:
        ``(channels, length)``, in the precision of the weights. Powers are computed in float64 (of the poles as they
        are): otherwise an oscillation would lose a digit every ten lags. Differentiable, also at poles of 0.

    Raises:
        ValueError: If length is less than 1.

    Source: the kernel of a diagonal state space (S4D, Gu et al. 2022), for poles in discrete time.
    """
    if length < 1:
        raise ValueError(f"length must be at least 1, got {length}")
    poles, weights, direct = modes
    fine = 1 << ((length - 1).bit_length() + 1) // 2
    near, step = _powers(poles, fine, weights.dtype)
    far = _powers(step, -(-length // fine), weights.dtype)[0] * weights[..., None]
    with torch.autocast(poles.device.type, enabled=False):
        taps = (_pair(far, -1).mT @ _pair(near, 1)).flatten(1)[:, :length]
    return torch.cat([taps[:, :1] + direct[:, None], taps[:, 1:]], 1)


def modal_taps_of(rate: Tensor, angle: Tensor, amplitude: Tensor, direct: Tensor, length: int) -> Tensor:
    """`modal_taps` in real arithmetic, for a length that an exported graph leaves open.

    Formula: ``k_l = sum_i exp(-exp(rate_i) l) (u_i cos(angle_i l) - v_i sin(angle_i l))``, plus direct at l = 0, with
    weights ``u + j v`` of the poles of `modal_poles`. Exponents and angles are float64.

    Shapes: rate and angle ``(channels, modes)``; amplitude ``(channels, modes, 2)``, u and v; direct ``(channels,)``;
    result ``(channels, length)``.
    """
    decay, turn, (u, v) = rate.double().exp(), angle.double(), amplitude[..., None, :].unbind(-1)

    def powers(lags: Tensor) -> tuple[Tensor, Tensor]:
        size = (-decay[..., None] * lags).exp()
        angles, dtype = turn[..., None] * lags, amplitude.dtype
        return (size * angles.cos()).to(dtype), (size * angles.sin()).to(dtype)

    far, near = (torch.arange(n, device=rate.device, dtype=torch.float64) for n in (chunk_count(length, FINE), FINE))
    (c, s), (x, y) = powers(far * FINE), powers(near)
    taps = (torch.cat([u * c - v * s, -u * s - v * c], 1).mT @ torch.cat([x, y], 1)).flatten(1)
    first = torch.arange(taps.shape[1], device=rate.device) == 0
    return (taps + direct[:, None] * first)[:, :length]


def modal_step(x: Tensor, state: Tensor, modes: Modes | SplitModes) -> tuple[Tensor, Tensor]:
    """Process one token with a diagonal state space.

    Formula: ``z_t = p z_{t-1} + x_t``, ``y_t = Re sum_i w_i z_{t,i} + direct x_t``.

    Shapes: x ``(batch, channels)``; state z ``(batch, channels, modes)`` complex, zero at the beginning. Returns y like
    x and the new state. Arithmetic is float64 if x or weights are, otherwise float32, also with poles in float64: what
    a pole loses in float32 is multiplied separately.

    Source: S4D (Gu et al. 2022), for poles in discrete time.
    """
    dtype = compute_dtype(x, modes.weights)
    poles, weights, direct, lost = modes.split(dtype)
    token, state = x.to(dtype), state.to(weights.dtype)
    if lost is None:
        state = poles * state
        state = state + token[..., None] if torch.is_grad_enabled() else state.add_(token[..., None])
    else:
        added = torch.addcmul(token[..., None].to(state.dtype), lost, state)
        state = torch.addcmul(added, poles, state)
    return ((weights * state).sum(-1).real + direct * token).to(x.dtype), state


def modal_prefill(
    x: Tensor, modes: Modes | SplitModes, state: Tensor | None, blocks: ModalBlocks | None = None
) -> tuple[Tensor, Tensor]:
    """The next tokens of a stream through a diagonal state space: `modal_step` for each, in blocks.

    Formula: in a block, ``y = T x + Re sum_i w_i p_i**(j+1) z_i`` with T the Toeplitz matrix of `modal_taps` and z the
    state before the block, so that only one state per 32 or 64 tokens is computed.

    Shapes: x ``(batch, length >= 1, channels)``; state ``(batch, channels, modes)`` complex, or None at the beginning.
    Returns y like x and the new state. Precision and source as in `modal_step`. Exactly causal from block to block.
    blocks, for several tokens: those of these modes and this length, which may take longer than the tokens.

    Preconditions: ValueError for an empty signal or another number of channels.
    """
    if x.dim() != 3 or x.shape[1] == 0 or x.shape[2] != len(modes.poles):
        raise ValueError(f"x must be (batch, length >= 1, channels={len(modes.poles)}), got {tuple(x.shape)}")
    dtype = compute_dtype(x, modes.weights)
    modes = modes.split(dtype)
    if state is None:
        state = modes.weights.new_zeros(x.shape[0], *modes.poles.shape)
    if x.shape[1] == 1:
        y, state = modal_step(x[:, 0], state, modes)
        return y[:, None], state
    blocks = ModalBlocks.of(modes, modal_block(x.shape[1])) if blocks is None else blocks
    size = blocks.near.shape[1]
    whole = x.shape[1] // size * size
    run = max(size, _SIGNAL_ELEMENTS // max(1, x.shape[0] * x.shape[2]) // size * size)
    state, parts = state.to(modes.weights.dtype).transpose(0, 1), []
    with torch.autocast(x.device.type, enabled=False):
        for part in x[:, :whole].split(run, 1):
            y, state = blocks.run(part, state)
            parts.append(y.to(x.dtype))
        if whole < x.shape[1]:
            y, state = blocks.shortened(x.shape[1] - whole).run(x[:, whole:], state)
            parts.append(y.to(x.dtype))
    return (torch.cat(parts, 1) if len(parts) > 1 else parts[0]), state.transpose(0, 1)


def modal_graph_prefill(
    x: Tensor,
    exponents: Tensor,
    weights: Tensor,
    direct: Tensor,
    real: Tensor,
    imaginary: Tensor,
) -> tuple[Tensor, Tensor, Tensor]:
    """`modal_prefill` for a length that an exported graph leaves open: in real arithmetic, by powers of the poles.

    Shapes: x ``(batch, length, channels)``; exponents, the logarithms of the poles' radii and their angles, in float64,
    and weights, real and imaginary parts, ``(2, modes, channels)``; direct ``(channels,)``; the state ``(batch, modes,
    channels)`` in two parts. Returns y like x and the new state.
    """
    n, signal, dtype = x.shape[1], x.to(direct.dtype), direct.dtype
    log_radius, angle = exponents
    lags = torch.arange(n + 1, dtype=torch.float64, device=x.device)
    size, turn = (log_radius[..., None] * lags).exp(), angle[..., None] * lags
    cos, sin = (size * turn.cos()).to(dtype), (size * turn.sin()).to(dtype)  # powers, (modes, channels, n + 1)
    u, v = weights
    taps = (u[..., None] * cos - v[..., None] * sin).sum(0)[:, :n] + direct[:, None] * (lags[:n] == 0)
    old = torch.einsum("bmc,mcn->bnc", u * real - v * imaginary, cos[..., 1:])
    old = old - torch.einsum("bmc,mcn->bnc", u * imaginary + v * real, sin[..., 1:])
    more, more_imaginary = (torch.einsum("bnc,mcn->bmc", signal, each[..., :n].flip(2)) for each in (cos, sin))
    last, turned = cos[..., -1], sin[..., -1]
    y = (symbolic_product(signal, taps, 0) + old).to(x.dtype)
    return y, last * real - turned * imaginary + more, last * imaginary + turned * real + more_imaginary


def modal_block(length: int) -> int:
    """Tokens of a block of a signal of this length."""
    return min(length, _LONG_BLOCK if length >= _LONG_SIGNAL_TOKENS else _BLOCK_TOKENS)


class ModalBlocks(NamedTuple):
    """The factors that every block of a signal is multiplied by, with real parts above imaginary parts."""

    near: Tensor  # (channels, size, size): the Toeplitz matrix
    inward: Tensor  # (channels, 2 modes, size): p**(size - 1 - j)
    outward: Tensor  # (channels, 2 modes, size): w p**(j + 1), so that products with states are real parts
    carry: Tensor  # (channels, 1, modes, size) complex: p**(j + 1), the last of which carries a state over a block

    @classmethod
    def of(cls, modes: SplitModes, size: int) -> ModalBlocks:
        powers = _powers(modes.exact, size + 1, modes.weights.dtype)[0]
        outward = _pair(modes.weights[..., None] * powers[..., 1:], -1)
        first = modes.weights.real.sum(1, keepdim=True) + modes.direct[:, None]
        taps = torch.cat([first, outward[:, : modes.poles.shape[1], :-1].sum(1)], 1)
        near = toeplitz_blocks(taps, 0, size, 0, 0)[0]
        return cls(near, _pair(powers[..., :-1].flip(2), 1), outward, powers[:, None, :, 1:])

    def shortened(self, size: int) -> ModalBlocks:
        near, inward, outward, carry = self
        return ModalBlocks(near[:, :size, :size], inward[..., -size:], outward[..., :size], carry[..., :size])

    def run(self, x: Tensor, state: Tensor) -> tuple[Tensor, Tensor]:
        """Whole blocks of a signal, from and to a state ``(channels, batch, modes)``."""
        batch, length, channels = x.shape
        size = self.near.shape[1]
        rows = x.to(self.near.dtype).reshape(-1, size, channels).permute(2, 0, 1).contiguous()
        added = torch.complex(*(rows @ self.inward.mT).chunk(2, 2))
        carry, before = self.carry[..., -1], []
        for block in added.unflatten(1, (batch, -1)).unbind(2):
            before.append(state)
            state = torch.addcmul(block, carry, state)
        states = torch.stack(before, 2).flatten(1, 2)
        y = rows @ self.near.mT + torch.cat([states.real, states.imag], 2) @ self.outward
        return y.permute(1, 2, 0).reshape(batch, length, channels), state


def _powers(base: Tensor, count: int, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
    """``base**l`` for l below count, ``(..., count)`` of this dtype, and in float64 ``base**(2**b)`` for the smallest
    power of two that is at least count. Only multiplications are used, so value and gradient are correct at 0."""
    step = base.to(torch.complex128)[..., None]
    powers = torch.ones_like(step)
    while powers.shape[-1] < count:
        powers = torch.cat([powers, powers * step], -1)
        step = step * step
    parts = torch.view_as_real(powers[..., :count].to(dtype))
    # Values too small to affect a sum must not become subnormal: products with subnormals take ten times as long.
    # Gradients are kept.
    lost = parts.detach() * (parts.detach().abs() < torch.finfo(dtype).eps ** 3)
    return torch.view_as_complex(parts - lost), step[..., 0]


def _pair(z: Tensor, sign: int) -> Tensor:
    """Real parts above imaginary parts (with this sign) of ``(channels, modes, n)``. A product of two such pairs, one
    with each sign, is the real part of the complex product."""
    return torch.cat([z.real, sign * z.imag], 1)
