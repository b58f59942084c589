"""The loops' arguments and results: sums of products at every lag, gated grids, gates and norms."""

from __future__ import annotations

import ctypes
import math

import torch
import torch.nn.functional as F
from torch import Tensor

from lagwise.ops.native.library import filled_biases, ints, longs, loops, pointers

# Partial sums distribute the work and round less than one long sum, but must be added up at the end.
_PARTS_PER_THREAD, _TOKENS_OF_A_PART, _ELEMENTS_OF_PARTS = 8, 512, 1 << 22
_MAX_LAGS = 1024  # at once: the loop keeps more than this many tokens on a thread's stack


def lag_products(y: Tensor, x: Tensor, first: int, last: int, dilation: int) -> Tensor:
    """Sums ``sum_i y_i x_{i - l dilation}`` of every channel, also over the batch, for l = first..last.

    Shapes: x and y ``(batch, length, channels)``, float32, on the CPU; result ``(channels, last - first + 1)``.
    """
    y, x = (t if t.stride(2) == 1 else t.contiguous() for t in (y, x))
    ranges = [(start, min(start + _MAX_LAGS - 1, last)) for start in range(first, last + 1, _MAX_LAGS)]
    return torch.cat([_some_lag_products(y, x, start, stop, dilation) for start, stop in ranges], dim=1)


def _some_lag_products(y: Tensor, x: Tensor, first: int, last: int, dilation: int) -> Tensor:
    library, group, lag_group, *_ = loops()
    (batch, length, channels), lags, threads = x.shape, last - first + 1, torch.get_num_threads()
    part = (-(-channels // group), -(-lags // lag_group) * lag_group, group)
    most = min(batch * length // _TOKENS_OF_A_PART, _PARTS_PER_THREAD * threads, _ELEMENTS_OF_PARTS // math.prod(part))
    parts = max(1, most)
    out = torch.empty((parts, *part), dtype=torch.float32, device="cpu")
    library.lag_products(
        *(*pointers(y), *longs(y.stride(0), y.stride(1))),
        *(*pointers(x), *longs(x.stride(0), x.stride(1))),
        *pointers(out),
        *longs(batch, length, channels, dilation, first, last, parts),
        ctypes.c_int(threads),
    )
    return out.sum(0).transpose(1, 2).flatten(0, 1)[:channels, :lags].flip(1)


_TASKS_PER_THREAD = 4  # when computing the gradient


def gated_grid(
    gate: Tensor,
    value: Tensor,
    rows: Tensor,
    columns: Tensor,
    biases: Tensor | None = None,
    *,
    overwrite_gate: bool = False,
) -> Tensor:
    """``silu(gate) * (rows(v) + columns(v))`` with ``v = silu(value)`` of every channel; biases ``(2, channels)`` are
    added to gate and value before. The result may be written over gate, which takes a quarter less memory traffic.

    Shapes: gate and value ``(batch, height * width, channels)``, both float32 or both bfloat16, on the CPU; rows
    ``(channels, 2 width - 1)`` and columns ``(channels, 2 height - 1)``, float32, lag 0 in the middle; result like
    gate.
    """
    gate, value = gate.contiguous(), value.contiguous()
    out = gate if overwrite_gate else torch.empty_like(gate)
    sizes, threads = _sizes(gate, rows, columns), torch.get_num_threads()
    inputs = (gate, value, *(_grouped(t) for t in (rows, columns)), filled_biases(biases, gate.shape[2]))
    tensors = (*inputs, out, _scratch(sizes, threads))  # kept in the call
    loops().library.gated_grid(*pointers(*tensors), *longs(*sizes), *ints(gate.dtype == torch.bfloat16, threads))
    return out


def gated_grid_gradients(
    grad: Tensor, gate: Tensor, value: Tensor, rows: Tensor, columns: Tensor, biases: Tensor | None = None
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:
    """Gradients of `gated_grid` with respect to its arguments, from its result's."""
    grad, gate, value = (t.contiguous() for t in (grad.to(gate.dtype), gate, value))
    sizes, threads, compiled = _sizes(gate, rows, columns), torch.get_num_threads(), loops()
    groups = -(-gate.shape[2] // compiled.lanes)
    spans = -(-groups // compiled.span)
    parts = min(gate.shape[0], -(-_TASKS_PER_THREAD * threads // spans))
    taps = [_grouped(t) for t in (rows, columns, rows.flip(1), columns.flip(1))]
    grads = torch.empty_like(gate), torch.empty_like(value)
    sums = [_memory(parts, groups, t.shape[1], compiled.lanes) for t in (rows, columns)]
    sums.append(_memory(parts, 2, groups, compiled.lanes))
    inputs = (gate, value, *taps, filled_biases(biases, gate.shape[2]), grad)
    tensors = (*inputs, *grads, *sums, _scratch(sizes, threads))
    kind = ints(gate.dtype == torch.bfloat16, threads)
    compiled.library.gated_grid_gradients(*pointers(*tensors), *longs(*sizes, parts), *kind)
    *of_taps, of_biases = (t.sum(0) for t in sums)
    of_rows, of_columns = (t.transpose(1, 2).flatten(0, 1)[: gate.shape[2]].contiguous() for t in of_taps)
    return *grads, of_rows, of_columns, of_biases.flatten(1)[:, : gate.shape[2]].contiguous()


def _sizes(gate: Tensor, rows: Tensor, columns: Tensor) -> tuple[int, int, int, int]:
    """Batch, height, width and channels."""
    return gate.shape[0], columns.shape[1] // 2 + 1, rows.shape[1] // 2 + 1, gate.shape[2]


def _grouped(taps: Tensor) -> Tensor:
    """Taps as (groups of channels, lags, lanes), with zeros for the channels and lags that the loops add."""
    lanes = loops().lanes
    taps = F.pad(taps, (0, loops().extra_lags, 0, -taps.shape[0] % lanes))
    return taps.unflatten(0, (-1, lanes)).transpose(1, 2).contiguous()


def _scratch(sizes: tuple[int, int, int, int], threads: int) -> Tensor:
    """Memory for every thread."""
    return _memory(threads, loops().library.grid_scratch(*longs(*sizes[1:3])), loops().lanes)


def _memory(*shape: int) -> Tensor:
    return torch.empty(shape, dtype=torch.float32, device="cpu")


_ROW = 1024  # numbers of a row, where any size will do
_PARTS_PER_THREAD = 4


def silu_product(gate: Tensor, value: Tensor, biases: Tensor | None = None) -> Tensor:
    """``silu(gate) * value``, for contiguous tensors of one shape, both float32 or both bfloat16, on the CPU; biases
    ``(2, channels)`` are added to gate and value before."""
    out, (size, added) = torch.empty_like(gate), _row_of_biases(gate, biases)
    tensors = pointers(gate, value, added, out)
    loops().library.silu_product(*tensors, *longs(gate.numel(), size), *_dtype_and_threads(gate))
    return out


def silu_product_gradients(
    grad: Tensor, gate: Tensor, value: Tensor, biases: Tensor | None = None
) -> tuple[Tensor, Tensor, Tensor]:
    """Gradients of `silu_product` with respect to gate and value, from its result's, which is like them; and with
    respect to the biases, if any."""
    grads, (size, added) = (torch.empty_like(gate), torch.empty_like(value)), _row_of_biases(gate, biases)
    parts = max(1, min(_PARTS_PER_THREAD * torch.get_num_threads(), gate.numel() // size))
    sums = torch.empty(parts, 2, size + -size % loops().lanes, dtype=torch.float32, device="cpu")
    tensors = pointers(grad, gate, value, added, *grads, sums)
    loops().library.silu_product_gradients(*tensors, *longs(gate.numel(), size, parts), *_dtype_and_threads(gate))
    return *grads, sums.sum(0)[:, : 0 if biases is None else gate.shape[-1]]


class _NormSizes(ctypes.Structure):
    """`norm_sizes` of tokens.c."""

    _names = "rows channels parts centred x16 branch16 total16 y16 threads"
    _fields_ = [(name, ctypes.c_long) for name in _names.split()]


def residual_norm(
    x: Tensor,
    branch: Tensor | None,
    weight: Tensor | None,
    bias: Tensor | None,
    epsilon: float,
    centred: bool,
    total: Tensor,
    y: Tensor,
) -> None:
    """Compute ``total = x + branch``, unless there is none and total is x, and y, the norm of the total; as in
    `lagwise.ops.fused.norm`. Tensors are contiguous, float32 or bfloat16, on the CPU."""
    sizes = _norm_sizes(x, x if branch is None else branch, total, y, 0, centred)
    tensors = (x, branch, _float(weight), _float(bias), total, y)
    loops().library.residual_norm(ctypes.byref(sizes), *pointers(*tensors), ctypes.c_float(epsilon))


def residual_norm_gradients(
    grad: Tensor,
    grad_total: Tensor | None,
    total: Tensor,
    weight: Tensor | None,
    epsilon: float,
    centred: bool,
    dx: Tensor,
    dbranch: Tensor | None,
    parts: Tensor,
    of_weight: bool,
    of_bias: bool,
) -> None:
    """Compute the gradients of x, of the branch, and of weight and bias in parts ``(parts, 0 to 2, channels)``."""
    sizes = _norm_sizes(dx, dx if dbranch is None else dbranch, total, grad, len(parts), centred)
    found = iter(parts.unbind(1))
    sums = [next(found) if wanted else None for wanted in (of_weight, of_bias)]
    tensors = (grad, grad_total, total, _float(weight), dx, dbranch, *sums)
    loops().library.residual_norm_gradients(
        ctypes.byref(sizes), *pointers(*tensors), *longs(parts.stride(0)), ctypes.c_float(epsilon)
    )


def _norm_sizes(x: Tensor, branch: Tensor, total: Tensor, y: Tensor, parts: int, centred: bool) -> _NormSizes:
    channels = x.shape[-1]
    halves = (t.dtype == torch.bfloat16 for t in (x, branch, total, y))
    return _NormSizes(x.numel() // channels, channels, parts, centred, *halves, torch.get_num_threads())


def _float(t: Tensor | None) -> Tensor | None:
    return None if t is None else t.float().contiguous()


def _row_of_biases(x: Tensor, biases: Tensor | None) -> tuple[int, Tensor]:
    """The size of rows to which the same biases are added, and these; zeros if there are none."""
    size = _ROW if biases is None else x.shape[-1]
    return max(1, size), filled_biases(biases, size)


def _dtype_and_threads(x: Tensor) -> list[ctypes.c_int]:
    return ints(x.dtype == torch.bfloat16, torch.get_num_threads())
