"""Diagonal linear recurrences with complex poles, for callers that need every state."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from lagwise.ops.operation import traced
from lagwise.ops.recurrence import ema_blocks
from lagwise.ops.toeplitz.direct import symbolic_product


def diagonal_scan(x: Tensor, log_decay: Tensor, angle: Tensor, state: Tensor | None = None) -> tuple[Tensor, Tensor]:
    """Compute the states of a diagonal recurrence, in linear time.

    Formula: ``h_t = exp(log_decay + j angle) h_{t-1} + x_t``, from ``h_{-1} = state``. In the frame that rotates with
    the poles, ``g_t = exp(-j angle t) h_t``, real and imaginary parts are moving averages with real decays, which
    `Blocks.scan` computes in blocks.

    Args:
        x: ``(batch, length >= 1, states)``, complex.
        log_decay: ``(states,)``, real, in nats per token, at most 0.
        angle: ``(states,)``, real, in radians per token. Rotations are computed in float64.
        state: ``(batch, states)``, complex; zero by default.

    Returns:
        All states, like x, and the last one, like state.

    Gradients of poles are sums over tokens of ``conj(g_t) exp(log_decay + j angle) h_{t-1}`` with the gradient g of x.
    In a graph that is compiled they come from the rotations, whose larger terms cancel: with more rounding.

    Source: LRU (Orvieto et al. 2023), §3; S5 (Smith et al. 2023), §2.2.

    >>> x = torch.tensor([1, 0, 0, 1], dtype=torch.complex128).view(1, 4, 1)
    >>> states, last = diagonal_scan(x, torch.tensor([0.5]).log(), torch.tensor([0.0]))
    >>> [round(value, 3) for value in states.real.flatten().tolist()]
    [1.0, 0.5, 0.25, 1.125]
    """
    if state is None:
        state = x.new_zeros(x.shape[0], x.shape[2])
    poles_learn = torch.is_grad_enabled() and (log_decay.requires_grad or angle.requires_grad)
    scan = _Scan.apply if poles_learn and not traced() else _states
    y = scan(x, log_decay, angle, state)
    return y, y[:, -1].clone()


def _states(x: Tensor, log_decay: Tensor, angle: Tensor, state: Tensor) -> Tensor:
    position = torch.arange(1, x.shape[1] + 1, device=x.device, dtype=torch.float64)
    turn = (angle.double() * position[:, None]).remainder(2 * math.pi)
    cos, sin = turn.cos().to(log_decay.dtype), turn.sin().to(log_decay.dtype)
    turned = torch.cat([x.real * cos + x.imag * sin, x.imag * cos - x.real * sin], 2)
    start = torch.cat([state.real, state.imag], 1)[:, :, None]
    decays = torch.cat([log_decay, log_decay])[:, None]
    sums, _ = ema_blocks(turned, torch.ones_like(decays), decays).scan(turned, start.to(decays.dtype))
    real, imag = sums.chunk(2, 2)
    return torch.complex(real * cos - imag * sin, imag * cos + real * sin)


class _Scan(torch.autograd.Function):
    """`_states` with the adjoint as its gradient, the recurrence from the end; twice differentiable."""

    @staticmethod
    def forward(ctx, x: Tensor, log_decay: Tensor, angle: Tensor, state: Tensor) -> Tensor:
        y = _states(x, log_decay, angle, state)
        ctx.save_for_backward(log_decay, angle, state, y)
        return y

    @staticmethod
    def backward(ctx, grad: Tensor):
        log_decay, angle, state, y = ctx.saved_tensors
        dx = diagonal_scan(grad.flip(1), log_decay, -angle)[0].flip(1)
        pole = torch.complex(log_decay.double(), angle.double()).exp().to(y.dtype)
        moved = pole * torch.cat([state[:, None], y[:, :-1]], 1)
        slope = (dx.conj() * moved).sum((0, 1), dtype=torch.complex128)
        return dx, slope.real.to(log_decay), -slope.imag.to(angle), pole.conj() * dx[:, 0]


def diagonal_graph_scan(
    x: tuple[Tensor, Tensor], log_decay: Tensor, angle: Tensor, state: tuple[Tensor, Tensor]
) -> tuple[Tensor, Tensor]:
    """Compute all states of `diagonal_scan` for a length that an exported graph leaves open: in real arithmetic, by
    powers of the poles. Complex tensors are pairs of real and imaginary parts; shapes and units are as there.
    O(length**2)."""
    (u, v), (a, b) = x, (component[:, None] for component in state)
    n, dtype = u.shape[1], u.dtype
    lags = torch.arange(n + 1, dtype=torch.float64, device=u.device)[:, None]
    size, turn = (log_decay.double() * lags).exp(), angle.double() * lags
    cos, sin = (size * turn.cos()).to(dtype), (size * turn.sin()).to(dtype)  # powers, (n + 1, states)
    if n != 1:
        c, s = cos[:n].t(), sin[:n].t()
        u, v = (
            symbolic_product(u, c, 0) - symbolic_product(v, s, 0),
            symbolic_product(u, s, 0) + symbolic_product(v, c, 0),
        )
    return u + cos[1:] * a - sin[1:] * b, v + cos[1:] * b + sin[1:] * a
