"""The damped multi-dimensional exponential moving average of MEGA: as taps, as a recurrence and as a scan.

All forms take the same two tensors: weights ``w`` and the logarithms of decays ``q``, several dimensions per channel.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from lagwise.ops.operation import graph_operator, in_graph, kept_apart
from lagwise.ops.precision import compute_dtype
from lagwise.ops.recurrence.scan import block_scan
from lagwise.ops.symbolic import FINE, chunk_count, symbolic, symbolic_product
from lagwise.ops.toeplitz.block import toeplitz_blocks

_BLOCK_TOKENS = 32
_LONG_BLOCK = 64  # tokens, for long signals: their states, one per block, cost more than the work inside blocks
_LONG_SIGNAL_TOKENS = 32768
_FASTEST = -1e3  # least ln q: nothing is left after one token, and powers are not NaN as they would be for ln 0


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
    length = _cut(length, truncation)
    # A graph serves other lengths too, so that none of its sizes may follow from the digits of one.
    fine = FINE if symbolic(length) or in_graph() else 1 << ((length - 1).bit_length() + 1) // 2
    coarse = chunk_count(length, fine) if symbolic(length) else -(-length // fine)
    far, near = (torch.arange(n, device=weight.device, dtype=weight.dtype) for n in (coarse, fine))
    rows = weight[:, None] * (log_decay[:, None] * (far * fine)[:, None]).exp()
    columns = (log_decay[:, :, None] * near).exp()
    with torch.autocast(weight.device.type, enabled=False):
        return (rows @ columns).flatten(1)[:, :length]


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
    late = x.shape[1] if truncation is None else _cut(x.shape[1], truncation)
    if late == x.shape[1]:
        return _averages(x, weight, log_decay, None, backward).y
    # Two averages that nearly cancel, and are much larger than the result if they decay slowly.
    kept, (x, weight, log_decay) = x.dtype, (t.double() for t in (x, weight, log_decay))
    backward = None if backward is None else (backward[0].double(), backward[1].double())
    y = _averages(x, weight, log_decay, None, backward).y
    ended = _averages(x[:, :-late], weight * (log_decay * late).exp(), log_decay).y
    y = torch.cat([y[:, :late], y[:, late:] - ended], dim=1)
    if backward is not None:
        flipped = x[:, late:].flip(1)
        ended = _averages(flipped, backward[0] * (backward[1] * late).exp(), backward[1]).y
        y = torch.cat([y[:, :-late] - ended.flip(1), y[:, -late:]], dim=1)
    return y.to(kept)


def ema_prefill(x: Tensor, weight: Tensor, log_decay: Tensor, state: Tensor | None) -> tuple[Tensor, Tensor]:
    """The averages of the next tokens of a stream, and the state after them, without truncation.

    Formula: ``h_i = q h_{i-1} + x_i``, ``y_i = sum_n w_n h_{i,n}``.

    Shapes: x ``(batch, length >= 1, channels)``; state ``(batch, channels, dimension)``, or None at the beginning;
    weights as in `ema_scan`. Returns a tensor like x, and one like state.

    Source: TCNCA eq. 1.
    """
    dtype = compute_dtype(x, weight)
    if x.shape[1] == 1:
        token = x.to(dtype).transpose(1, 2)
        state = token.expand(-1, -1, weight.shape[1]) if state is None else log_decay.exp() * state + token
        return (state * weight).sum(2)[:, None].to(x.dtype), state
    y, state, inward = _averages(x, weight, log_decay, state)
    size, log_decay = inward.shape[2], log_decay.to(dtype)
    last = x[:, (x.shape[1] - 1) // size * size :].to(dtype)
    with torch.autocast(x.device.type, enabled=False):
        added = torch.einsum("bjc,cnj->bcn", last, inward[:, :, size - last.shape[1] :])
    return y, state * (log_decay * last.shape[1]).exp() + added


class _Averages(NamedTuple):
    """Averages like x, the state before the last block, and how much of a token is left at the end of a block,
    ``(channels, dimension, block)``."""

    y: Tensor
    state: Tensor
    inward: Tensor


def _averages(
    x: Tensor,
    weight: Tensor,
    log_decay: Tensor,
    state: Tensor | None = None,
    backward: tuple[Tensor, Tensor] | None = None,
) -> _Averages:
    """`ema_scan` without truncation, or `ema_prefill` up to the last block."""
    dtype = compute_dtype(x, weight)
    size = _LONG_BLOCK if x.shape[1] >= _LONG_SIGNAL_TOKENS else _BLOCK_TOKENS
    if not in_graph():  # a graph would have the smaller of two symbols in every size
        size = min(size, x.shape[1])
    tables = _tables_operator if kept_apart(x) else _block_tables
    back = (None, None) if backward is None else (backward[0].to(dtype), backward[1].to(dtype))
    matrices, inward, outward, carry = tables(weight.to(dtype), log_decay.to(dtype), *back, size)
    reverse = 0 if backward is None else backward[0].shape[1]
    y, state = block_scan(x, matrices, inward, outward, carry, state, reverse=reverse)
    return _Averages(y.to(x.dtype), state, inward[:, : weight.shape[1]])


def _block_tables(
    weight: Tensor, log_decay: Tensor, weight_back: Tensor | None, log_decay_back: Tensor | None, size: int
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Tables of `block_scan` for averages: near, inward, outward and log_carry."""
    position = torch.arange(size, device=weight.device, dtype=weight.dtype)
    near, origin = ema_taps(weight, log_decay, size), 0
    inward = (log_decay[:, :, None] * position.flip(0)).exp()  # q**(size - 1 - j)
    outward = weight[:, :, None] * (log_decay[:, :, None] * (position + 1)).exp()
    if weight_back is not None and log_decay_back is not None:
        mirrored = ema_taps(weight_back, log_decay_back, size).flip(1)
        near = torch.cat([mirrored[:, :-1], mirrored[:, -1:] + near[:, :1], near[:, 1:]], dim=1)
        inward = torch.cat([inward, (log_decay_back[:, :, None] * position).exp()], dim=1)
        powers = (log_decay_back[:, :, None] * (position.flip(0) + 1)).exp()
        outward = torch.cat([outward, weight_back[:, :, None] * powers], dim=1)
        log_decay, origin = torch.cat([log_decay, log_decay_back], dim=1), size - 1
    return toeplitz_blocks(near, origin, size, 0, 0)[0], inward, outward, log_decay * size


def _like_tables(
    weight: Tensor, log_decay: Tensor, weight_back: Tensor | None, log_decay_back: Tensor | None, size: int
) -> tuple[Tensor, ...]:
    channels, dimension = weight.shape
    states = dimension if weight_back is None else dimension + weight_back.shape[1]
    shapes = ((channels, size, size), (channels, states, size), (channels, states, size), (channels, states))
    return tuple(weight.new_empty(shape) for shape in shapes)


_tables_operator = graph_operator(
    "ema_block_tables",
    lambda *inputs: tuple(table.contiguous() for table in _block_tables(*inputs)),
    None,
    _like_tables,
    tensors="weight log_decay weight_back? log_decay_back?",
    numbers="SymInt size",
    results="near inward outward log_carry",
)


def ema_last(x: Tensor, log_decay: Tensor) -> Tensor:
    """The state of averages after a signal, without the averages.

    Formula: ``h_n = sum_j q_n**(length - 1 - j) x_j``.

    Shapes: x ``(batch, length >= 1, channels)``; log_decay ``(channels, dimension)``; result ``(batch, channels,
    dimension)``, in float32 or better.

    Source: TCNCA eq. 1.
    """
    dtype = compute_dtype(x, log_decay)
    blocks = F.pad(x.to(dtype), (0, 0, -x.shape[1] % _LONG_BLOCK, 0)).unflatten(1, (-1, _LONG_BLOCK))
    near, far = (torch.arange(n - 1, -1, -1, device=x.device, dtype=dtype) for n in (_LONG_BLOCK, blocks.shape[1]))
    rates = log_decay.to(dtype)[..., None]
    with torch.autocast(x.device.type, enabled=False):
        sums = torch.einsum("bksc,cns->bkcn", blocks, (rates * near).exp())
        return torch.einsum("bkcn,cnk->bcn", sums, (rates * (far * _LONG_BLOCK)).exp())


def ema_graph_prefill(x: Tensor, weight: Tensor, log_decay: Tensor, state: Tensor) -> tuple[Tensor, Tensor]:
    """`ema_prefill` for a length that an exported graph leaves open: by powers of the decays, without loops.

    Shapes: as there. O(length**2).
    """
    n, signal = x.shape[1], x.to(weight.dtype)
    powers = (log_decay[..., None] * torch.arange(n + 1, device=x.device)).exp()  # (channels, dimension, n + 1)
    old = torch.einsum("bcd,cdn->bnc", weight * state, powers[..., 1:])
    y = symbolic_product(signal, (weight[..., None] * powers).sum(1)[:, :n], 0) + old
    added = torch.einsum("bnc,cdn->bcd", signal, powers[..., :n].flip(2))
    return y.to(x.dtype), powers[..., -1] * state + added


def ema_recurrence(x: Tensor, weight: Tensor, log_decay: Tensor, *, truncation: int | None = None) -> Tensor:
    """The causal `ema_scan` token by token, for tests: ``h_i = q h_{i-1} + x_i - q**truncation x_{i - truncation}``.

    Shapes, units and source as in `ema_scan` (TCNCA eq. 1; MEGA eq. 3 to 5).
    """
    decay, state, outputs = log_decay.exp(), x.new_zeros(x.shape[0], *weight.shape), []
    for i in range(x.shape[1]):
        state = decay * state + x[:, i, :, None]
        if truncation is not None and i >= truncation:
            state = state - (log_decay * truncation).exp() * x[:, i - truncation, :, None]
        outputs.append((state * weight).sum(2))
    return torch.stack(outputs, dim=1)


def ema_parameters(delta: Tensor, alpha: Tensor, beta: Tensor, gamma: Tensor) -> tuple[Tensor, Tensor]:
    """Weights and logarithms of decays from MEGA's parameters.

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


def _cut(length: int, truncation: int | None) -> int:
    if symbolic(length):
        return length if truncation is None else truncation
    if length < 1 or (truncation is not None and truncation < 1):
        raise ValueError(f"length and truncation must be at least 1, got {length} and {truncation}")
    return length if truncation is None else min(length, truncation)
