"""Diagonal linear recurrences: states of every token, and outputs in blocks of tokens."""

from __future__ import annotations

import functools
import math
from collections.abc import Sequence

import torch
import torch.nn.functional as F
from torch import Tensor

from lagwise.ops.operation import Engine, Values, operation

_FEW = 8  # positions that are scanned one after the other


def varying_scan(x: Tensor, poles: Tensor, state: Tensor | None = None) -> Tensor:
    """Compute all states of a diagonal recurrence with poles that vary from token to token.

    Formula: ``h_t = p_t h_{t-1} + x_t``, from ``h_{-1} = state``. Groups of √n tokens run from zero, all at once; then
    the state goes from group to group, and the start of each group is added to its states.

    Shapes: x and poles ``(batch, length >= 1, ...)``, each real or complex; state ``(batch, ...)``, zero by default.
    Returns a tensor like x, complex if one of them is. Linear in the length, in time and memory, with 2 √n passes.
    Differentiable, also twice.

    >>> varying_scan(torch.ones(1, 3), torch.tensor([[1.0, 0.5, 0.25]])).tolist()
    [[1.0, 1.5, 1.375]]
    """
    if state is None:
        state = torch.zeros_like(x[:, 0])
    dtype = functools.reduce(torch.promote_types, (x.dtype, poles.dtype, state.dtype))
    return _varying(x.to(dtype), poles.to(dtype), state.to(dtype))  # real gradients of real ones, beside complex ones


@operation
def _varying(x: Tensor, poles: Tensor, state: Tensor) -> Tensor:
    return _states(x, poles, state, 1)


@_varying.engine("scan")
class _Reverse(Engine):
    """A scan from the end as the gradient."""

    unsaved = (0,)  # the states are enough

    @staticmethod
    def forward(x: Tensor, poles: Tensor, state: Tensor) -> tuple[Tensor, Values]:
        y = _states(x, poles, state, 1)
        return y, (y,)

    @staticmethod
    def backward(args: Values, saved: Values, grads: Values, needs_grad: Sequence[bool]) -> Values:
        _, poles, state = args
        after = torch.cat([poles[:, 1:], torch.zeros_like(poles[:, :1])], 1).conj()
        dx = _states(grads[0].flip(1), after.flip(1), torch.zeros_like(state), 1).flip(1)
        return dx, dx * _before(saved[0], state).conj(), poles[:, 0].conj() * dx[:, 0]

    @staticmethod
    def restored(args: Values, saved: Values) -> Values:
        _, poles, state = args
        return saved[0] - poles * _before(saved[0], state), poles, state


def _before(states: Tensor, first: Tensor) -> Tensor:
    """The state before each token."""
    return torch.cat([first[:, None], states[:, :-1]], 1)


def _states(x: Tensor, poles: Tensor, start: Tensor, dim: int, *, before: bool = False) -> Tensor:
    """``h_t = p_t h_{t-1} + x_t`` along an axis; the states before each position instead of those after it, if
    ``before``. Poles of length 1 there are the same for all positions."""
    length = x.shape[dim]
    size = length if length <= _FEW else math.isqrt(length)
    rows = _groups(x, size, dim)
    poles_of = [poles] * size if poles.shape[dim] == 1 else _groups(poles, size, dim)
    state, factor, within, factors = torch.zeros_like(rows[0]), torch.ones_like(poles_of[0]), [], []
    for row, pole in zip(rows, poles_of, strict=True):
        after = torch.addcmul(row, pole, state), pole * factor
        within.append(state if before else after[0])
        factors.append(factor if before else after[1])
        state, factor = after
    starts = [start]
    for total, over in zip(state.unbind(dim)[:-1], factor.expand(state.shape).unbind(dim), strict=False):
        starts.append(torch.addcmul(total, over, starts[-1]))
    from_starts = torch.stack(starts, dim).unsqueeze(dim + 1)
    y = torch.addcmul(torch.stack(within, dim + 1), torch.stack(factors, dim + 1), from_starts)
    return y.flatten(dim, dim + 1).narrow(dim, 0, length)


def _groups(x: Tensor, size: int, dim: int) -> tuple[Tensor, ...]:
    """The first positions of all groups of a size, the second ones, and so on; zero beyond the last of x."""
    if more := -x.shape[dim] % size:
        x = torch.cat([x, torch.zeros_like(x.narrow(dim, 0, more))], dim)
    return x.unflatten(dim, (-1, size)).unbind(dim + 1)


def block_scan(
    x: Tensor,
    near: Tensor,
    inward: Tensor,
    outward: Tensor,
    carry: Tensor,
    state: Tensor | None = None,
    *,
    reverse: int = 0,
) -> tuple[Tensor, Tensor]:
    """A linear recurrence with diagonal states, computed in blocks.

    Formula: with ``x_k`` block k of a channel, ``y_k = near x_k + outwardᵀ h_k`` and ``h_{k+1} = carry h_k + inward
    x_k``, from ``h_0 = state``. The last ``reverse`` states run from the end instead: ``h_k = carry h_{k+1} + inward
    x_{k+1}``, from zero. If carry is complex, so are the states, all of which run forwards: real parts come first, then
    imaginary ones.

    Args:
        x: ``(batch, length, channels)``. The last block may be partial: it is padded with zeros.
        near: ``(channels, size, size)``.
        inward: ``(channels, states, size)``.
        outward: Like inward.
        carry: ``(channels, states)``, or half as many complex ones; at most 1 in size.
        state: ``(batch, channels, states - reverse)``; zero by default.
        reverse: How many states run from the end.

    Returns:
        y like x in near's dtype, and the forward states at the start of the last block, like state.

    Raises:
        ValueError: For an empty signal.

    Source: the parallel scan that TCNCA app. B and I leave open (Martin and Cundy 2018), with blocks as its leaves.
    Inside a block a matrix product replaces the recurrence, and only one state per ``size`` tokens is computed. Of
    these states, those √n blocks apart are scanned first, in two passes of vectorised steps.
    """
    if x.dim() != 3 or x.shape[1] == 0:
        raise ValueError(f"x must be (batch, length >= 1, channels), got {tuple(x.shape)}")
    if state is None:
        state = near.new_zeros(x.shape[0], x.shape[2], inward.shape[1] - reverse)
    return _block_scan(x, near, inward, outward, carry, state, reverse)


@operation
def _block_scan(
    x: Tensor, near: Tensor, inward: Tensor, outward: Tensor, carry: Tensor, state: Tensor, reverse: int
) -> tuple[Tensor, Tensor]:
    (batch, length, _), size, forward = x.shape, near.shape[1], inward.shape[1] - reverse
    blocks = -(-length // size)
    with torch.autocast(x.device.type, enabled=False):
        padded = F.pad(x.to(near.dtype), (0, 0, 0, blocks * size - length)).unflatten(1, (blocks, size))
        rows = padded.permute(3, 0, 1, 2).flatten(1, 2)
        states = _carried(rows @ inward.transpose(1, 2), carry, batch, blocks, forward, start=state)
        y = rows @ near.transpose(1, 2) + states @ outward
    y = y.unflatten(1, (batch, blocks)).permute(1, 2, 3, 0).flatten(1, 2)
    return y[:, :length], states.unflatten(1, (batch, blocks))[:, :, -1, :forward].transpose(0, 1)


@_block_scan.engine("blocks")
class _Blocks(Engine):
    """A scan in the other direction as the gradient. Only the states are kept in between."""

    @staticmethod
    def forward(
        x: Tensor, near: Tensor, inward: Tensor, outward: Tensor, carry: Tensor, state: Tensor, reverse: int
    ) -> tuple[tuple[Tensor, Tensor], Values]:
        size, forward = near.shape[1], inward.shape[1] - reverse
        batch, blocks = x.shape[0], -(-x.shape[1] // size)
        with torch.autocast(x.device.type, enabled=False):
            rows = _rows(x, size, near.dtype)
            states = _carried(rows @ inward.transpose(1, 2), carry, batch, blocks, forward, start=state)
            y = torch.bmm(rows, near.transpose(1, 2)).baddbmm_(states, outward)
        last = states[:, blocks - 1 : batch * blocks : blocks, :forward].transpose(0, 1)
        return (_signal(y, x.shape).contiguous(), last.contiguous()), (states,)

    @staticmethod
    def backward(args: Values, saved: Values, grads: Values, needs_grad: Sequence[bool]) -> Values:
        (x, near, inward, outward, carry, _, reverse), (states,), (grad, grad_last) = args, saved, grads
        size, forward = near.shape[1], inward.shape[1] - reverse
        batch, blocks = x.shape[0], -(-x.shape[1] // size)
        with torch.autocast(x.device.type, enabled=False):
            grad_rows = _rows(torch.zeros_like(x) if grad is None else grad, size, near.dtype)
            to_states = grad_rows @ outward.transpose(1, 2)
            if grad_last is not None:
                to_states[:, blocks - 1 : batch * blocks : blocks, :forward] += grad_last.transpose(0, 1)
            # A state's gradient comes from the states after it: forward states are scanned from the end.
            adjoint = _carried(to_states, carry.conj(), batch, blocks, forward, flip=True)
            rows = _rows(x, size, near.dtype)
            dx = _signal(torch.bmm(grad_rows, near).baddbmm_(adjoint, inward), x.shape).to(x.dtype)
            dnear = grad_rows.transpose(1, 2) @ rows
            dinward = adjoint.transpose(1, 2) @ rows
            doutward = states.transpose(1, 2) @ grad_rows
            first = slice(0, batch * blocks, blocks)
            h, later = (_complex(t, carry) for t in (states, adjoint))
            dcarry = (h.conj() * later).sum(1)
            dstate = to_states[:, first] + _real(carry.conj()[:, None] * later[:, first])
        return dx, dnear, dinward, doutward, dcarry, dstate[:, :, :forward].transpose(0, 1)


def _like(
    x: Tensor, near: Tensor, inward: Tensor, outward: Tensor, carry: Tensor, state: Tensor, reverse: int
) -> tuple[Tensor, Tensor, Tensor]:
    batch, length, channels = x.shape
    rows = near.new_empty(channels, (batch * -(-length // near.shape[1])) | 1, inward.shape[1])
    return near.new_empty(x.shape), near.new_empty(state.shape), rows


# A loop over blocks would be compiled anew for every length.
_block_scan.in_graphs("block_scan", _like, engine=_Blocks, results="y last", saved="states")


def _rows(x: Tensor, size: int, dtype: torch.dtype) -> Tensor:
    """Return blocks of every channel, ``(channels, batch * blocks or one more, size)``, zero beyond the signal.

    A block's channels are contiguous in memory, so that transposing stays in the cache. The number of blocks is odd,
    because otherwise channels would share cache sets on the way back.
    """
    batch, length, channels = x.shape
    whole, rest = length // size, length % size  # a symbol has no `divmod`
    blocks = whole + (rest > 0)
    rows = x.new_empty((batch * blocks) | 1, channels, size, dtype=dtype)
    rows[batch * blocks :] = 0
    each = rows[: batch * blocks].unflatten(0, (batch, blocks))
    each[:, :whole] = x[:, : whole * size].unflatten(1, (whole, size)).transpose(2, 3)
    if rest:
        each[:, whole, :, :rest] = x[:, whole * size :].transpose(1, 2)
        each[:, whole, :, rest:] = 0
    return rows.transpose(0, 1)


def _signal(rows: Tensor, shape: torch.Size) -> Tensor:
    """Inverse of `_rows`: ``(channels, batch * blocks or one more, size)`` to ``(batch, length, channels)``."""
    batch, length, channels = shape
    size = rows.shape[2]
    blocks = -(-length // size)
    y = rows.new_empty(batch * blocks, size, channels)
    y.copy_(rows[:, : batch * blocks].permute(1, 2, 0))
    return y.view(batch, blocks * size, channels)[:, :length]


def _carried(
    sums: Tensor, carry: Tensor, batch: int, blocks: int, forward: int, *, start: Tensor | None = None, flip=False
) -> Tensor:
    """Return states at the start of each block from the blocks' contributions ``(channels, batch * blocks or one more,
    states)``: the first ``forward`` states run forwards from ``start``, the others backwards; with flip the other way
    round."""
    blockwise, parts = _complex(sums[:, : batch * blocks], carry).unflatten(1, (batch, blocks)), []
    for part, backwards in ((slice(0, forward), flip), (slice(forward, sums.shape[2]), not flip)):
        if part.start == part.stop:
            continue
        sums_of_part = blockwise[..., part].flip(2) if backwards else blockwise[..., part]
        if start is None or backwards:
            state = torch.zeros_like(sums_of_part[:, :, 0])
        else:
            state = _complex(start, carry).transpose(0, 1).to(sums_of_part.dtype)
        scanned = _states(sums_of_part, carry[:, None, None, part], state, 2, before=True)
        parts.append(scanned.flip(2) if backwards else scanned)
    states = _real((torch.cat(parts, dim=3) if len(parts) > 1 else parts[0]).flatten(1, 2))
    return F.pad(states, (0, 0, 0, sums.shape[1] - states.shape[1])) if sums.shape[1] > states.shape[1] else states


def _complex(states: Tensor, carry: Tensor) -> Tensor:
    """The states as complex numbers, if the carry is complex."""
    return torch.complex(*states.chunk(2, -1)) if carry.is_complex() else states


def _real(states: Tensor) -> Tensor:
    """The inverse of `_complex`."""
    return torch.cat([states.real, states.imag], -1) if states.is_complex() else states
