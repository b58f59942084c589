"""Diagonal linear recurrences whose tokens last for different times."""

from __future__ import annotations

import functools
import math
from collections.abc import Sequence

import torch
from torch import Tensor

from lagwise.ops.operation import transformed


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
    x, poles, state = x.to(dtype), poles.to(dtype), state.to(dtype)  # real gradients of real ones, beside complex ones
    return _states(x, poles, state) if transformed() else _Scan.apply(x, poles, state)


def _states(x: Tensor, poles: Tensor, state: Tensor) -> Tensor:
    length = x.shape[1]
    size = max(1, math.isqrt(length))
    more = -length % size
    if more:  # states after the last token are not used
        x, poles = (torch.cat([each, torch.zeros_like(each[:, :more])], 1) for each in (x, poles))
    rows, carries = x.unflatten(1, (-1, size)), poles.unflatten(1, (-1, size))
    within, carried = [rows[:, :, 0]], [carries[:, :, 0]]
    for k in range(1, size):
        within.append(torch.addcmul(rows[:, :, k], carries[:, :, k], within[-1]))
        carried.append(carries[:, :, k] * carried[-1])
    starts = [state]
    for g in range(rows.shape[1] - 1):
        starts.append(torch.addcmul(within[-1][:, g], carried[-1][:, g], starts[-1]))
    y = torch.addcmul(torch.stack(within, 2), torch.stack(carried, 2), torch.stack(starts, 1)[:, :, None])
    return y.flatten(1, 2)[:, :length]


class _Scan(torch.autograd.Function):
    """`varying_scan`, with a scan from the end as its gradient."""

    @staticmethod
    def forward(ctx, x: Tensor, poles: Tensor, state: Tensor) -> Tensor:
        y = _states(x, poles, state)
        ctx.save_for_backward(poles, state, y)
        return y

    @staticmethod
    def backward(ctx, grad: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        poles, state, y = ctx.saved_tensors
        after = torch.cat([poles[:, 1:], torch.zeros_like(poles[:, :1])], 1).conj()
        dx = varying_scan(grad.flip(1), after.flip(1)).flip(1)
        before = torch.cat([state[:, None], y[:, :-1]], 1)
        return dx, dx * before.conj(), poles[:, 0].conj() * dx[:, 0]


def zoh_tokens(exponent: Tensor, token_time: Tensor) -> tuple[Tensor, Tensor]:
    """Poles and input factors of modes ``h_t = p h_{t-1} + x_t`` at tokens of different times, by zero-order hold.

    Formula: ``p_t = exp(e s_t)`` and ``(p_t - 1) / (p - 1)`` for ``p = exp(e)``, as `zoh_inputs`.

    Shapes: exponent ``(...)``, the logarithm of p, other than 0, whose imaginary part may be beyond pi: a power of p
    would not be that of the mode. token_time ``(batch, length)``, relative to the token of p. Returns two tensors
    ``(batch, length, ...)``. A token of no time leaves the state as it is.
    """
    grown = torch.expm1(exponent * token_time.view(*token_time.shape, *[1] * exponent.dim()).to(exponent.real.dtype))
    return 1 + grown, grown / torch.expm1(exponent)


def zoh_sums(
    x: Tensor, modes: Sequence[tuple[Tensor, Tensor]], weights: Sequence[Tensor], state: Tensor | None = None
) -> tuple[list[Tensor], Tensor]:
    """Outputs of diagonal state spaces whose tokens last for different times: of a recurrence from the first token and,
    for two-sided ones, of another from the last.

    Formula: ``y_t = Re sum_i w_i h_{i,t}`` with ``h_t = p_t h_{t-1} + f_t x_t``, for each direction.

    Shapes: x ``(batch, length, channels)``; modes: poles p and factors f of each direction (`zoh_tokens`), ``(batch,
    length, channels, modes)``; weights ``(channels, modes)`` of each; state ``(batch, channels, modes)``, before the
    first token. Returns the sum of each direction, like x, and the first one's state after the last token.
    """
    sums, ends = [], []
    for backward, ((poles, factors), weight) in enumerate(zip(modes, weights, strict=True)):
        if backward:
            x, poles, factors = (each.flip(1) for each in (x, poles, factors))
        states = varying_scan(factors * x[..., None], poles, state)
        output = (states * weight).sum(3).real
        sums.append(output.flip(1) if backward else output)
        ends.append(states[:, -1])
    return sums, ends[0]
