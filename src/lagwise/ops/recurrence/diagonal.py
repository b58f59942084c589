"""Diagonal state spaces of single channels, which are moving averages if their poles are real: as taps, in blocks of
tokens, token by token, and at tokens of different times."""
# One concept: one recurrence, in every form that computes it.

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from lagwise.ops.operation import (
    at_most,
    beyond,
    chunk_count,
    compute_dtype,
    cpu_graph,
    in_graph,
    open_length,
    operation,
    symbolic,
)
from lagwise.ops.recurrence.scan import block_scan, varying_scan
from lagwise.ops.toeplitz.block import toeplitz_blocks
from lagwise.ops.toeplitz.direct import symbolic_product

_BLOCK_TOKENS = 32
_LONG_BLOCK = 64  # tokens, for long signals: their states, one per block, cost more than the work inside blocks
_LONG_SIGNAL_TOKENS, _LONG_AVERAGE_TOKENS = 8192, 32768
_SIGNAL_ELEMENTS = 1 << 20  # elements of the tokens processed at a time
_NEAR, _TERMS = 0.5, 14  # the series is exact to float64's last digit up to this radius
_MIN_RADIUS = 1e-30  # smallest pole whose logarithm is taken: its powers are negligible
_FINE = 64  # distance of exponentials over a symbolic number of lags; those between are products
_FASTEST = -1e3  # least ln q: nothing is left after one token, and powers are not NaN as they would be for ln 0


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

    def blocks(self, size: int) -> Blocks:
        """The factors of blocks of this many tokens, in the precision of the weights."""
        return Blocks.of(_powers(self.poles, size + 1, self.weights.dtype)[0], self.weights, self.direct[:, None])


class DiagonalSSM(NamedTuple):
    """Diagonal state spaces in real arithmetic, as streams and graphs compute them: ``h_t = p h_{t-1} + x_t``, ``y_t =
    Re sum_i w_i h_{t,i} + direct x_t`` in every channel.

    Shapes: poles and weights ``(parts, modes, channels)``, real and imaginary parts, or real parts alone; direct
    ``(channels,)``, None for zeros; a state has the parts as ``(batch, modes, channels)``.

    Attributes:
        lost: what the poles lose in this precision, like poles; None for nothing.
        exponents: logarithms of radii and, if poles are complex, angles, like poles, in float64 then.
    """

    poles: Tensor
    lost: Tensor | None
    weights: Tensor
    direct: Tensor | None
    exponents: Tensor

    @classmethod
    def of(cls, modes: Modes) -> DiagonalSSM:
        """For arithmetic in the precision of the weights."""
        exact, rounded = modes.poles.to(torch.complex128), modes.poles.to(modes.weights.dtype)
        exponents = torch.stack([exact.abs().clamp(min=_MIN_RADIUS).log(), exact.angle()]).transpose(1, 2)
        lost = None if rounded.dtype == modes.poles.dtype else _parts((modes.poles - rounded).to(rounded.dtype))
        return cls(_parts(rounded), lost, _parts(modes.weights), modes.direct, exponents)

    @classmethod
    def averages(cls, weight: Tensor, log_decay: Tensor) -> DiagonalSSM:
        """Moving averages with weights and logarithms of decays ``(channels, modes)``."""
        weight, log_decay = (t.t().contiguous()[None] for t in (weight, log_decay))
        return cls(log_decay.exp(), None, weight, None, log_decay)

    def start(self, batch_size: int) -> list[Tensor]:
        """The state before the first token."""
        return [self.poles.new_zeros(batch_size, *self.poles.shape[1:]) for _ in self.poles]

    def step(self, x: Tensor, state: Sequence[Tensor]) -> tuple[Tensor, list[Tensor]]:
        """Process one token ``(batch, channels)``. Returns the output in the precision of the weights, and the new
        state."""
        token = x.to(self.weights.dtype)
        if len(self.poles) == 1:
            average = self.poles[0] * state[0] + token[:, None]
            return (self.weights[0] * average).sum(1), [average]
        (a, b), (u, v), (r, i) = self.poles.unbind(), self.weights.unbind(), state
        real = torch.addcmul(token[:, None], a, r).addcmul_(b, i, value=-1)
        imaginary = (a * i).addcmul_(b, r)
        if self.lost is not None:
            c, d = self.lost.unbind()
            real.addcmul_(c, r).addcmul_(d, i, value=-1)
            imaginary.addcmul_(c, i).addcmul_(d, r)
        y = (u * real).addcmul_(v, imaginary, value=-1).sum(1)
        return y if self.direct is None else y.addcmul_(self.direct, token), [real, imaginary]

    def prefill(
        self, x: Tensor, state: Sequence[Tensor], blocks: Callable[[int], Blocks], *, graph: bool = False
    ) -> tuple[Tensor, list[Tensor]]:
        """Process the next ``length >= 1`` tokens, exactly causal from block to block. Returns the outputs in the
        precision of the weights, and the new state.

        Formula: in a block, ``y = T x + Re sum_i w_i p_i**(j+1) h_i`` with T the Toeplitz matrix of the taps and h the
        state before the block, so that only one state per 32 or 64 tokens is computed.

        x is ``(batch, length, channels)``; blocks, called with a number of tokens, returns the factors of such blocks;
        with ``graph`` it computes as an exported graph does (`by_powers`).

        Source: S4D (Gu et al. 2022), for poles in discrete time.
        """
        n = x.shape[1]
        if graph or symbolic(n):
            return self.by_powers(x, state)
        factors = blocks(min(n, _LONG_BLOCK if n >= _LONG_SIGNAL_TOKENS else _BLOCK_TOKENS))
        size, memory, outputs = factors.near.shape[1], torch.cat(list(state), 1).transpose(1, 2), []
        run = max(size, _SIGNAL_ELEMENTS // max(1, x.shape[0] * x.shape[2]) // size * size)
        for part in x.split(run, 1):
            y, memory = factors.scan(part.to(memory.dtype), memory)
            outputs.append(y)
        y = torch.cat(outputs, 1) if len(outputs) > 1 else outputs[0]
        return y, list(memory.transpose(1, 2).chunk(len(self.poles), 1))

    def by_powers(self, x: Tensor, state: Sequence[Tensor]) -> tuple[Tensor, list[Tensor]]:
        """Process tokens whose number an exported graph leaves open: by powers of the poles, without loops.
        O(length**2)."""
        n, signal = x.shape[1], x.to(self.weights.dtype)
        lags = torch.arange(n + 1, dtype=self.exponents.dtype, device=x.device)
        powers = _exponentials(lags, signal.dtype, *self.exponents)  # parts of (modes, channels, n + 1)
        taps = _times(self.weights[..., None], powers)[0].sum(0)[:, :n]
        if self.direct is not None:
            taps = taps + self.direct[:, None] * (lags[:n] == 0)
        y = symbolic_product(signal, taps, 0)
        signs = (1, -1)
        for sign, old, power in zip(signs, _times(self.weights, state), powers, strict=False):
            y = y + sign * torch.einsum("bmc,mcn->bnc", old, power[..., 1:])
        moved = _times([power[..., -1] for power in powers], state)
        added = (torch.einsum("bnc,mcn->bmc", signal, power[..., :n].flip(2)) for power in powers)
        return y, [a + b for a, b in zip(moved, added, strict=True)]


class Blocks(NamedTuple):
    """The factors that every block of a signal is multiplied by, with real parts above imaginary parts.

    Shapes: near ``(channels, size, size)``, the Toeplitz matrix; inward, ``p**(size - 1 - j)``, and outward, ``w p**(j
    + 1)``, ``(channels, states, size)``; powers, ``p**j``, ``(channels, modes, size + 1)``.
    """

    near: Tensor
    inward: Tensor
    outward: Tensor
    powers: Tensor

    @classmethod
    def of(cls, powers: Tensor, weights: Tensor, direct: Tensor | float = 0.0) -> Blocks:
        """Build from the powers; weights ``(channels, modes)``, direct ``(channels, 1)``."""
        outward = _pair(weights[..., None] * powers[..., 1:], -1)
        first = weights.real.sum(1, keepdim=True) + direct
        taps = torch.cat([first, outward[:, : weights.shape[1], :-1].sum(1)], 1)
        near = toeplitz_blocks(taps, 0, outward.shape[2], 0, 0)[0]
        return cls(near, _pair(powers[..., :-1].flip(2), 1), outward, powers)

    def scan(self, x: Tensor, state: Tensor) -> tuple[Tensor, Tensor]:
        """The outputs of the next tokens ``(batch, length >= 1, channels)``, and the state ``(batch, channels,
        states)`` after them."""
        y, state = block_scan(x, *self[:3], self.powers[..., -1], state)
        size = self.near.shape[1]
        last = x[:, (x.shape[1] - 1) // size * size :].to(self.near.dtype)
        with torch.autocast(x.device.type, enabled=False):
            rows = last.permute(2, 0, 1).contiguous()  # in any other layout channels are multiplied one by one
            added = (rows @ self.inward[:, :, size - last.shape[1] :].mT).transpose(0, 1)
            factor = self.powers[..., last.shape[1]]
            parts = state.chunk(2, 2) if factor.is_complex() else [state]
            moved = _times([factor.real, factor.imag] if factor.is_complex() else [factor], parts)
        return y, torch.cat(moved, 2) + added


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


def zoh_tokens(exponent: Tensor, token_time: Tensor) -> tuple[Tensor, Tensor]:
    """Poles and input factors of modes ``h_t = p h_{t-1} + x_t`` at tokens of different times, by zero-order hold.

    Formula: ``p_t = exp(e s_t)`` and ``(p_t - 1) / (p - 1)`` for ``p = exp(e)``, as `zoh_inputs`.

    Shapes: exponent ``(...)``, the logarithm of p, other than 0, whose imaginary part may be beyond pi: a power of p
    would not be that of the mode. token_time ``(batch, length)``, relative to the token of p. Returns two tensors
    ``(batch, length, ...)``. A token of no time leaves the state as it is.
    """
    grown = torch.expm1(exponent * token_time.view(*token_time.shape, *[1] * exponent.dim()).to(exponent.real.dtype))
    return 1 + grown, grown / torch.expm1(exponent)


def zoh_mix(
    x: Tensor,
    modes: Sequence[tuple[Tensor, Tensor]],
    weights: Sequence[Tensor],
    direct: Tensor,
    state: Tensor | None = None,
) -> tuple[Tensor, Tensor]:
    """Compute outputs of diagonal state spaces whose tokens last for different times: of a recurrence from the first
    token and, for two-sided ones, of another from the last.

    Formula: ``y_t = Re sum_i w_i h_{i,t} + direct x_t`` with ``h_t = p_t h_{t-1} + f_t x_t``, summed over directions.

    Shapes: x ``(batch, length, channels)``; modes: poles p and factors f of each direction (`zoh_tokens`), ``(batch,
    length, channels, modes)``; weights ``(channels, modes)`` of each; direct ``(channels,)``; state ``(batch, channels,
    modes)``, before the first token. Returns a tensor like x, and the first direction's state after the last token.
    """
    (poles, factors), *before = modes
    states = varying_scan(factors * x[..., None], poles, state)
    y = direct * x + (states * weights[0]).sum(3).real
    for (poles, factors), weight in zip(before, weights[1:], strict=True):
        back = varying_scan((factors * x[..., None]).flip(1), poles.flip(1))
        y = y + (back * weight).sum(3).real.flip(1)
    return y, states[:, -1]


def modal_taps(modes: Modes, length: int) -> Tensor:
    """The kernel of a diagonal state space as taps.

    Formula: ``k_l = Re sum_i w_i p_i**l``, plus direct at l = 0, as a matrix product of ``w p**(a s)`` and ``p**b`` for
    ``l = a s + b``.

    Returns ``(channels, length)``, in the precision of the weights. Powers are computed in float64 (of the poles as
    they are): otherwise an oscillation would lose a digit every ten lags. Differentiable, also at poles of 0.
    ValueError if length is less than 1.

    Source: the kernel of a diagonal state space (S4D, Gu et al. 2022), for poles in discrete time.
    """
    coarse, fine = _digits(_checked(length))
    near, step = _powers(modes.poles, fine, modes.weights.dtype)
    far = _powers(step, coarse, modes.weights.dtype)[0] * modes.weights[..., None]
    return _from_digits(_pair(far, -1), _pair(near, 1), length, modes.direct)


def modal_taps_of(decay: Tensor, angle: Tensor, amplitude: Tensor, direct: Tensor, length: int) -> Tensor:
    """`modal_taps` in real arithmetic, for graphs.

    Formula: ``k_l = sum_i exp(-decay_i l) (u_i cos(angle_i l) - v_i sin(angle_i l))``, plus direct at l = 0, with
    weights ``u + j v``.

    Shapes: decay and angle ``(channels, modes)``, in float64; amplitude ``(channels, modes, 2)``, u and v; direct
    ``(channels,)``; result ``(channels, length)``.
    """
    coarse, fine = _digits(length)
    far, near = (torch.arange(n, device=decay.device, dtype=torch.float64) for n in (coarse, fine))
    powers = _exponentials(far * fine, amplitude.dtype, -decay, angle)
    real, imaginary = _times(amplitude[..., None, :].unbind(-1), powers)
    near = torch.cat(_exponentials(near, amplitude.dtype, -decay, angle), 1)
    return _from_digits(torch.cat([real, -imaginary], 1), near, length, direct)


def ema_taps(weight: Tensor, log_decay: Tensor, length: int, *, truncation: int | None = None) -> Tensor:
    """The moving average as a convolution: its taps.

    Formula: ``k(l) = sum_n w_n q_n**l``, and 0 from lag ``truncation`` on.

    Args:
        weight: w ``(channels, dimension)``.
        log_decay: ln q ``(channels, dimension)``, in nats per token, at most 0.
        length: Number of taps.
        truncation: First lag that is zero; by default none.

    Returns:
        ``(channels, min(length, truncation))``, computed in the dtype of the inputs.

    Raises:
        ValueError: If length or truncation is less than 1.

    Source: TCNCA eq. 1 and app. I (kernel generation); MEGA (Ma et al. 2023), app. A and eq. 25. Evaluated directly, it
    takes channels · dimension · length exponentials. With ``q**(a s + b) = q**(a s) q**b`` it is a small matrix
    product, a hundred times faster at 131072 lags.
    """
    length = _checked(length, truncation)
    coarse, fine = _digits(length)
    far, near = (torch.arange(n, device=weight.device, dtype=weight.dtype) for n in (coarse, fine))
    rows = weight[:, None] * (log_decay[:, None] * (far * fine)[:, None]).exp()
    return _from_digits(rows.mT, (log_decay[:, :, None] * near).exp(), length)


def ema_scan(
    x: Tensor,
    weight: Tensor,
    log_decay: Tensor,
    *,
    backward: tuple[Tensor, Tensor] | None = None,
    truncation: int | None = None,
) -> Tensor:
    """The moving average of a whole signal in linear time, exactly causal.

    Formula: ``y_i = sum_{j <= i} k(i - j) x_j`` with k of `ema_taps`. With ``backward = (w', q')``, ``sum_{j >= i} k'(j
    - i) x_j`` is added, so that lag 0 counts in both, as in MEGA.

    Shapes: x ``(batch, length, channels)``; weight and log_decay, also those of backward, ``(channels, dimension)``;
    result like x.

    Units, ranges and errors: as `ema_taps`. Arithmetic is float64 if any input is, or with truncation, otherwise
    float32.

    Source: TCNCA eq. 1; MEGA eq. 3 to 5; the parallel scan of TCNCA app. B, by `block_scan`. A truncated average is the
    whole average minus a second one that starts ``truncation`` tokens later with weights ``w q**truncation``.

    >>> x = torch.tensor([1.0, 0.0, 0.0, 1.0], dtype=torch.float64).view(1, 4, 1)
    >>> y = ema_scan(x, torch.ones(1, 1), torch.tensor([[0.5]]).log())
    >>> [round(value, 3) for value in y.flatten().tolist()]
    [1.0, 0.5, 0.25, 1.125]
    """
    late = x.shape[1] if truncation is None else _checked(x.shape[1], truncation)
    if late == x.shape[1]:
        return _averages(x, weight, log_decay, backward)
    # Two averages that nearly cancel, and are much larger than the result if they decay slowly.
    dtype, (x, weight, log_decay) = x.dtype, (t.double() for t in (x, weight, log_decay))
    backward = None if backward is None else (backward[0].double(), backward[1].double())
    y = _averages(x, weight, log_decay, backward)
    ended = _averages(x[:, :-late], weight * (log_decay * late).exp(), log_decay)
    y = torch.cat([y[:, :late], y[:, late:] - ended], dim=1)
    if backward is not None:
        flipped = x[:, late:].flip(1)
        ended = _averages(flipped, backward[0] * (backward[1] * late).exp(), backward[1])
        y = torch.cat([y[:, :-late] - ended.flip(1), y[:, -late:]], dim=1)
    return y.to(dtype)


def ema_blocks(x: Tensor, weight: Tensor, log_decay: Tensor) -> Blocks:
    """The blocks of averages of a signal."""
    dtype = compute_dtype(x, weight)
    size = _LONG_BLOCK if x.shape[1] >= _LONG_AVERAGE_TOKENS else _BLOCK_TOKENS
    if not in_graph():  # a graph would have the smaller of two symbols in every size
        size = min(size, x.shape[1])
    return Blocks(*_average_blocks(weight.to(dtype), log_decay.to(dtype), size))


def _averages(x: Tensor, weight: Tensor, log_decay: Tensor, backward: tuple[Tensor, Tensor] | None = None) -> Tensor:
    """`ema_scan` without truncation."""
    near, inward, outward, powers = ema_blocks(x, weight, log_decay)
    if backward is not None:  # the same with tokens in the other order
        back = ema_blocks(x, *backward)
        near = near + back.near.mT
        pairs = ((inward, back.inward.flip(2)), (outward, back.outward.flip(2)), (powers, back.powers))
        inward, outward, powers = (torch.cat(pair, 1) for pair in pairs)
    reverse = 0 if backward is None else backward[0].shape[1]
    return block_scan(x, near, inward, outward, powers[..., -1], reverse=reverse)[0].to(x.dtype)


@operation
def _average_blocks(weight: Tensor, log_decay: Tensor, size: int) -> Blocks:
    lags = torch.arange(size + 1, device=weight.device, dtype=weight.dtype)
    return Blocks.of((log_decay[..., None] * lags).exp(), weight)


def _like_blocks(weight: Tensor, log_decay: Tensor, size: int) -> tuple[Tensor, ...]:
    channels, dimension = weight.shape
    states = (channels, dimension, size)
    return tuple(map(weight.new_empty, ((channels, size, size), states, states, (channels, dimension, size + 1))))


_average_blocks.in_graphs("ema_block_tables", _like_blocks, where=cpu_graph, results="near inward outward powers")


def ema_parameters(delta: Tensor, alpha: Tensor, beta: Tensor, gamma: Tensor) -> tuple[Tensor, Tensor]:
    """Compute weights and logarithms of decays from MEGA's parameters.

    Formula: ``p = sigmoid(delta)``, ``q = 1 - p sigmoid(alpha)``, ``w = p beta gamma / sqrt(dimension)``.

    Shapes: all ``(..., channels, dimension)``.

    Source: TCNCA eq. 1, with p for its α and sigmoid(alpha) for its δ; MEGA (Ma et al. 2023), §3.1 and app. A. ln q is
    computed as ``log1p(-p sigmoid(alpha))``, because q itself loses all digits for a slow decay.
    """
    p = delta.sigmoid()
    lost = p * alpha.sigmoid()
    # Keep the argument of log1p above -1: there the gradient is infinite, and a clamp's zero gradient would turn it
    # into NaN.
    log_decay = torch.where(lost < 1, torch.log1p(-lost.where(lost < 1, 0)), _FASTEST)
    return p * beta * gamma / math.sqrt(delta.shape[-1]), log_decay


def _checked(length: int, truncation: int | None = None) -> int:
    """The number of taps."""
    for name, value in (("length", length), ("truncation", truncation)):
        if value is not None and beyond(1, value):
            raise ValueError(f"{name} must be at least 1, got {value}")
    return length if truncation is None else at_most(truncation, length)


def _digits(length: int) -> tuple[int, int]:
    """Return the numbers of coarse and fine digits of lags. A graph serves other lengths too, so that none of its sizes
    may follow from the digits of one."""
    fine = _FINE if open_length(length) else 1 << ((length - 1).bit_length() + 1) // 2
    return chunk_count(length, fine), fine


def _exponentials(lags: Tensor, dtype: torch.dtype, log: Tensor, angle: Tensor | None = None) -> list[Tensor]:
    """Real and, with an angle, imaginary parts of ``exp((log + j angle) l)`` at all lags, ``(..., lags)`` of this
    dtype."""
    size = (log[..., None] * lags).exp()
    if angle is None:
        return [size.to(dtype)]
    turn = angle[..., None] * lags
    return [(size * turn.cos()).to(dtype), (size * turn.sin()).to(dtype)]


def _from_digits(far: Tensor, near: Tensor, length: int, direct: Tensor | None = None) -> Tensor:
    """Return taps from the factors of coarse and fine digits, ``(channels, states, digits)``."""
    with torch.autocast(near.device.type, enabled=False):
        taps = (far.mT @ near).flatten(1)[:, :length]
    return taps if direct is None else taps + F.pad(direct[:, None], (0, length - 1))


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
    """Return real parts above imaginary parts (with this sign) of ``(channels, modes, n)``, or z itself if it is real.
    A product of two such pairs, one with each sign, is the real part of the complex product."""
    return torch.cat([z.real, sign * z.imag], 1) if z.is_complex() else z


def _parts(z: Tensor) -> Tensor:
    """Real and imaginary parts ``(2, modes, channels)`` of ``(channels, modes)``."""
    return torch.view_as_real(z).permute(2, 1, 0).contiguous()


def _times(a: Sequence[Tensor] | Tensor, b: Sequence[Tensor]) -> list[Tensor]:
    """The product of numbers given by their parts."""
    if len(a) == 1:
        return [a[0] * b[0]]
    return [a[0] * b[0] - a[1] * b[1], a[0] * b[1] + a[1] * b[0]]
