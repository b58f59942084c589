"""Diagonal linear recurrences over blocks of tokens: exactly causal, linear in the length, by matrix products."""

from __future__ import annotations

import math
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from lagwise.ops.operation import differentiable, differentiable_gradients, graph_operator, in_graph, transformed


def block_scan(
    x: Tensor,
    near: Tensor,
    inward: Tensor,
    outward: Tensor,
    log_carry: Tensor,
    state: Tensor | None = None,
    *,
    reverse: int = 0,
) -> tuple[Tensor, Tensor]:
    """A linear recurrence with diagonal states, computed in blocks.

    Formula: with ``x_k`` block k of a channel, ``y_k = near x_k + outwardᵀ h_k`` and ``h_{k+1} = exp(log_carry) h_k +
    inward x_k``, from ``h_0 = state``. The last ``reverse`` states run from the end instead: ``h_k = exp(log_carry)
    h_{k+1} + inward x_{k+1}``, from zero.

    Args:
        x: ``(batch, length, channels)``. The last block may be partial: it is padded with zeros.
        near: ``(channels, size, size)``.
        inward: ``(channels, states, size)``.
        outward: Like inward.
        log_carry: ``(channels, states)``, in nats per block, at most 0.
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
        state = near.new_zeros(x.shape[0], x.shape[2], log_carry.shape[1] - reverse)
    inputs = (x, near, inward, outward, log_carry, state, reverse)
    if transformed():
        return _plain_scan(*inputs)
    if in_graph():
        return _scan_operator(*inputs)[:2]
    return _BlockScan.apply(*inputs)


def _plain_scan(
    x: Tensor, near: Tensor, inward: Tensor, outward: Tensor, log_carry: Tensor, state: Tensor, reverse: int
) -> tuple[Tensor, Tensor]:
    """`_BlockScan` in operations that autograd and `torch.func` can handle."""
    (batch, length, _), size, forward = x.shape, near.shape[1], log_carry.shape[1] - reverse
    blocks = -(-length // size)
    with torch.autocast(x.device.type, enabled=False):
        padded = F.pad(x.to(near.dtype), (0, 0, 0, blocks * size - length)).unflatten(1, (blocks, size))
        rows = padded.permute(3, 0, 1, 2).flatten(1, 2)
        states = _carried(rows @ inward.transpose(1, 2), log_carry, batch, blocks, forward, start=state)
        y = rows @ near.transpose(1, 2) + states @ outward
    y = y.unflatten(1, (batch, blocks)).permute(1, 2, 3, 0).flatten(1, 2)
    return y[:, :length], states.unflatten(1, (batch, blocks))[:, :, -1, :forward].transpose(0, 1)


class _BlockScan(torch.autograd.Function):
    """`block_scan` with its gradient, which is a scan in the other direction. Only the states are kept in between."""

    @staticmethod
    def forward(ctx, x, near, inward, outward, log_carry, state, reverse: int):
        y, last, states = _scanned(x, near, inward, outward, log_carry, state, reverse)
        ctx.save_for_backward(x, near, inward, outward, log_carry, state, states)
        ctx.reverse = reverse
        return y, last

    @staticmethod
    def backward(ctx, grad: Tensor, grad_last: Tensor) -> Any:
        x, near, inward, outward, log_carry, state, states = ctx.saved_tensors
        if differentiable():
            inputs = (x, near, inward, outward, log_carry, state, ctx.reverse)
            return tuple(differentiable_gradients(_plain_scan, inputs, ctx.needs_input_grad, [grad, grad_last]))
        arguments = (x, near, inward, outward, log_carry, state, states, ctx.reverse)
        return *_scan_gradients(grad, grad_last, *arguments), None


def _scanned(
    x: Tensor, near: Tensor, inward: Tensor, outward: Tensor, log_carry: Tensor, state: Tensor, reverse: int
) -> tuple[Tensor, Tensor, Tensor]:
    """The results of `block_scan`, and the states at the start of every block."""
    size, forward = near.shape[1], log_carry.shape[1] - reverse
    batch, blocks = x.shape[0], -(-x.shape[1] // size)
    with torch.autocast(x.device.type, enabled=False):
        rows = _rows(x, size, near.dtype)
        states = _carried(rows @ inward.transpose(1, 2), log_carry, batch, blocks, forward, start=state)
        y = torch.bmm(rows, near.transpose(1, 2)).baddbmm_(states, outward)
    last = states[:, blocks - 1 : batch * blocks : blocks, :forward].transpose(0, 1)
    return _signal(y, x.shape).contiguous(), last.contiguous(), states


def _scan_gradients(
    grad: Tensor,
    grad_last: Tensor,
    x: Tensor,
    near: Tensor,
    inward: Tensor,
    outward: Tensor,
    log_carry: Tensor,
    state: Tensor,
    states: Tensor,
    reverse: int,
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor, Tensor]:
    """Gradients of x, near, inward, outward, log_carry and state."""
    size, forward = near.shape[1], log_carry.shape[1] - reverse
    batch, blocks = x.shape[0], -(-x.shape[1] // size)
    with torch.autocast(x.device.type, enabled=False):
        grads = _rows(grad, size, near.dtype)
        to_states = grads @ outward.transpose(1, 2)
        to_states[:, blocks - 1 : batch * blocks : blocks, :forward] += grad_last.transpose(0, 1)
        # A state's gradient comes from the states after it: forward states are scanned from the end.
        adjoint = _carried(to_states, log_carry, batch, blocks, forward, flip=True)
        rows = _rows(x, size, near.dtype)
        dx = _signal(torch.bmm(grads, near).baddbmm_(adjoint, inward), x.shape).to(x.dtype)
        dnear = grads.transpose(1, 2) @ rows
        dinward = adjoint.transpose(1, 2) @ rows
        doutward = states.transpose(1, 2) @ grads
        carry = log_carry.exp()
        dlog_carry = carry * (states * adjoint).sum(1)
        first = slice(0, batch * blocks, blocks)
        dstate = (to_states[:, first] + carry[:, None] * adjoint[:, first])[:, :, :forward].transpose(0, 1)
    return dx, dnear, dinward, doutward, dlog_carry, dstate


def _like(
    x: Tensor, near: Tensor, inward: Tensor, outward: Tensor, log_carry: Tensor, state: Tensor, reverse: int
) -> tuple[Tensor, Tensor, Tensor]:
    batch, length, channels = x.shape
    rows = near.new_empty(channels, (batch * -(-length // near.shape[1])) | 1, log_carry.shape[1])
    return near.new_empty(x.shape), near.new_empty(state.shape), rows


# A loop over blocks would be compiled anew for every length.
_scan_operator = graph_operator(
    "block_scan",
    _scanned,
    _scan_gradients,
    _like,
    tensors="x near inward outward log_carry state",
    numbers="SymInt reverse",
    results="y last",
    kept="states",
)


def _rows(x: Tensor, size: int, dtype: torch.dtype) -> Tensor:
    """Blocks of every channel, ``(channels, batch * blocks or one more, size)``, zero beyond the signal.

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
    sums: Tensor, log_carry: Tensor, batch: int, blocks: int, forward: int, *, start: Tensor | None = None, flip=False
) -> Tensor:
    """States at the start of each block from the blocks' contributions ``(channels, batch * blocks or one more,
    states)``: the first ``forward`` states run forwards from ``start``, the others backwards; with flip the other
    way round."""
    blockwise, parts = sums[:, : batch * blocks].unflatten(1, (batch, blocks)), []
    for part, backwards in ((slice(0, forward), flip), (slice(forward, sums.shape[2]), not flip)):
        if part.start == part.stop:
            continue
        piece = blockwise[..., part].flip(2) if backwards else blockwise[..., part]
        scanned = _scan(piece, log_carry[:, part], None if start is None or backwards else start.transpose(0, 1))
        parts.append(scanned.flip(2) if backwards else scanned)
    states = (torch.cat(parts, dim=3) if len(parts) > 1 else parts[0]).flatten(1, 2)
    return F.pad(states, (0, 0, 0, sums.shape[1] - states.shape[1])) if sums.shape[1] > states.shape[1] else states


def _scan(sums: Tensor, log_carry: Tensor, start: Tensor | None) -> Tensor:
    """``h_0 = start, h_{k+1} = exp(log_carry) h_k + sums_k`` along axis 2 of ``(channels, batch, blocks, states)``.

    First within groups of √blocks, each from zero and all at once; then from group to group; then the start of each
    group is added to its states.
    """
    channels, batch, blocks, n = sums.shape
    size = max(1, math.isqrt(blocks))
    groups = -(-blocks // size)
    if groups * size != blocks:
        sums = F.pad(sums, (0, 0, 0, groups * size - blocks))
    sums = sums.reshape(channels, batch, groups, size, n)
    carry, states = log_carry.exp()[:, None], []
    state = sums.new_zeros(channels, batch, groups, n)
    for k in range(size):
        states.append(state)
        state = torch.addcmul(sums[:, :, :, k], carry[:, None], state)
    total, over, starts = state, (log_carry * size).exp()[:, None], []
    state = sums.new_zeros(channels, batch, n) if start is None else start.to(sums.dtype)
    for g in range(groups):
        starts.append(state)
        state = torch.addcmul(total[:, :, g], over, state)
    powers = (log_carry[:, None] * torch.arange(size, device=sums.device)[:, None]).exp()  # (channels, size, n)
    scanned = torch.stack(states, dim=3).addcmul(powers[:, None, None], torch.stack(starts, dim=2)[:, :, :, None])
    return scanned.flatten(2, 3)[:, :, :blocks]
