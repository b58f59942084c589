"""The loops' arguments and results: sums of products at every lag, gated grids, gates, norms and long convolutions."""

from __future__ import annotations

import ctypes
import functools
import math
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from lagwise.ops.native.library import call, filled_biases, loops, scratch
from lagwise.ops.operation import loop_operator

# Partial sums distribute the work and round less than one long sum, but must be added up at the end.
_PARTS_PER_THREAD, _TOKENS_OF_A_PART, _ELEMENTS_OF_PARTS = 8, 512, 1 << 22
_MAX_LAGS = 1024  # at once: the loop keeps more than this many tokens on a thread's stack
_GRID_TASKS, _GATE_PARTS = 4, 4  # per thread, when computing gradients
_NORM_PARTS, _NORM_PROGRAMS = 16, 1024  # at most; each sums the parameters' gradients over some rows, on a CPU or a GPU
_ROW = 1024  # numbers of a row of gates, where any size will do


def lag_products(y: Tensor, x: Tensor, first: int, last: int, dilation: int) -> Tensor:
    """Compute sums ``sum_i y_i x_{i - l dilation}`` of every channel, also over the batch, for l = first..last.

    Shapes: x and y ``(batch, length, channels)``, float32, on the CPU; result ``(channels, last - first + 1)``.
    """
    y, x = (t if t.stride(2) == 1 else t.contiguous() for t in (y, x))
    ranges = [(start, min(start + _MAX_LAGS - 1, last)) for start in range(first, last + 1, _MAX_LAGS)]
    return torch.cat([_some_lag_products(y, x, start, stop, dilation) for start, stop in ranges], dim=1)


def _some_lag_products(y: Tensor, x: Tensor, first: int, last: int, dilation: int) -> Tensor:
    group, lag_group = loops().lanes, loops().lags
    (batch, length, channels), lags, threads = x.shape, last - first + 1, torch.get_num_threads()
    part = (-(-channels // group), -(-lags // lag_group) * lag_group, group)
    parts = min(batch * length // _TOKENS_OF_A_PART, _PARTS_PER_THREAD * threads, _ELEMENTS_OF_PARTS // math.prod(part))
    out = scratch(max(1, parts), *part)
    signals = (y, *y.stride()[:2], x, *x.stride()[:2])
    call("lag_products", *signals, out, *x.shape, dilation, first, last, len(out), threads)
    return out.sum(0).transpose(1, 2).flatten(0, 1)[:channels, :lags].flip(1)


@loop_operator(lambda gate, *_: gate.new_empty(gate.shape))
def gated_grid(gate: Tensor, value: Tensor, rows: Tensor, columns: Tensor, biases: Tensor | None, *, y: Tensor) -> None:
    """``silu(gate) * (rows(v) + columns(v))`` with ``v = silu(value)`` of every channel; biases ``(2, channels)`` are
    added to gate and value before.

    Shapes: gate and value ``(batch, height * width, channels)``, both float32 or both bfloat16, on the CPU; rows
    ``(channels, 2 width - 1)`` and columns ``(channels, 2 height - 1)``, float32, lag 0 in the middle; result like
    gate.
    """
    grid_into(y, gate.contiguous(), value, rows, columns, biases)


def grid_into(y: Tensor, gate: Tensor, value: Tensor, rows: Tensor, columns: Tensor, biases: Tensor | None) -> None:
    """Store `gated_grid`, which may be written over the gate: a quarter less memory traffic."""
    sizes, added = _grid_sizes(gate, rows, columns), filled_biases(biases, gate.shape[2])
    inputs = (gate, value.contiguous(), _grouped(rows), _grouped(columns), added)
    call("gated_grid", *inputs, y, _grid_scratch(sizes), *sizes, _half(gate), torch.get_num_threads())


def _grid_gradients_like(grad: Tensor, gate: Tensor, value: Tensor, rows: Tensor, columns: Tensor, *_: Any) -> Any:
    of_taps = torch.empty_like(rows), torch.empty_like(columns)
    return gate.new_empty(gate.shape), value.new_empty(value.shape), *of_taps, rows.new_empty(2, gate.shape[2])


@loop_operator(_grid_gradients_like)
def gated_grid_gradients(
    grad: Tensor, gate: Tensor, value: Tensor, rows: Tensor, columns: Tensor, biases: Tensor | None
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:
    """Compute gradients of `gated_grid` with respect to its arguments, from its result's."""
    grad, gate, value = (t.contiguous() for t in (grad.to(gate.dtype), gate, value))
    sizes, threads = _grid_sizes(gate, rows, columns), torch.get_num_threads()
    lanes, span = loops().lanes, loops().span
    groups = -(-gate.shape[2] // lanes)
    parts = min(gate.shape[0], -(-_GRID_TASKS * threads // -(-groups // span)))
    taps = [_grouped(t) for t in (rows, columns, rows.flip(1), columns.flip(1))]
    grads = torch.empty_like(gate), torch.empty_like(value)
    sums = [scratch(parts, groups, t.shape[1], lanes) for t in (rows, columns)] + [scratch(parts, 2, groups, lanes)]
    inputs = (gate, value, *taps, filled_biases(biases, gate.shape[2]), grad)
    call("gated_grid_gradients", *inputs, *grads, *sums, _grid_scratch(sizes), *sizes, parts, _half(gate), threads)
    *of_taps, of_biases = (t.sum(0) for t in sums)
    of_rows, of_columns = (t.transpose(1, 2).flatten(0, 1)[: gate.shape[2]].contiguous() for t in of_taps)
    return *grads, of_rows, of_columns, of_biases.flatten(1)[:, : gate.shape[2]].contiguous()


def _grid_sizes(gate: Tensor, rows: Tensor, columns: Tensor) -> tuple[int, int, int, int]:
    """Batch, height, width and channels."""
    return gate.shape[0], columns.shape[1] // 2 + 1, rows.shape[1] // 2 + 1, gate.shape[2]


def _grid_scratch(sizes: tuple[int, int, int, int]) -> Tensor:
    return scratch(torch.get_num_threads(), call("grid_scratch", *sizes[1:3]), loops().lanes)


def _grouped(taps: Tensor) -> Tensor:
    """Return taps as (groups of channels, lags, lanes), with zeros for the channels and lags that the loops add."""
    lanes = loops().lanes
    taps = F.pad(taps, (0, loops().extra_lags, 0, -taps.shape[0] % lanes))
    return taps.unflatten(0, (-1, lanes)).transpose(1, 2).contiguous()


@loop_operator(lambda gate, *_: gate.new_empty(gate.shape))
def silu_product(gate: Tensor, value: Tensor, biases: Tensor | None, *, y: Tensor) -> None:
    """``silu(gate) * value``, for tensors of one shape, both float32 or both bfloat16, on the CPU; biases ``(2,
    channels)`` are added to gate and value before."""
    size, added = _row_of_biases(gate, biases)
    tensors = (gate.contiguous(), value.contiguous(), added, y)
    call("silu_product", *tensors, gate.numel(), size, _half(gate), torch.get_num_threads())


def _product_gradients_like(grad: Tensor, gate: Tensor, value: Tensor, biases: Tensor | None) -> tuple[Tensor, ...]:
    shape = (2, 0) if biases is None else biases.shape
    return gate.new_empty(gate.shape), value.new_empty(value.shape), gate.new_empty(shape, dtype=torch.float32)


@loop_operator(_product_gradients_like)
def silu_product_gradients(
    grad: Tensor, gate: Tensor, value: Tensor, biases: Tensor | None
) -> tuple[Tensor, Tensor, Tensor]:
    """Compute gradients of `silu_product` with respect to gate and value, from its result's, which is like them; and
    with respect to the biases, if any."""
    grad, gate, value = (t.contiguous() for t in (grad, gate, value))
    grads, (size, added) = (torch.empty_like(gate), torch.empty_like(value)), _row_of_biases(gate, biases)
    parts, threads = min(_GATE_PARTS * torch.get_num_threads(), gate.numel() // size), torch.get_num_threads()
    sums = scratch(max(1, parts), 2, added.shape[1])
    tensors = (grad, gate, value, added, *grads, sums)
    call("silu_product_gradients", *tensors, gate.numel(), size, len(sums), _half(gate), threads)
    return *grads, sums.sum(0)[:, : 0 if biases is None else gate.shape[-1]].contiguous()


def _row_of_biases(x: Tensor, biases: Tensor | None) -> tuple[int, Tensor]:
    """The size of rows to which the same biases are added, and these; zeros if there are none."""
    size = _ROW if biases is None else max(1, x.shape[-1])
    return size, filled_biases(biases, size)


class _NormSizes(ctypes.Structure):
    """`norm_sizes` of tokens.c."""

    _names = "rows channels parts centred x16 branch16 total16 y16 threads"
    _fields_ = [(name, ctypes.c_long) for name in _names.split()]


def norm_like(x: Tensor, branch: Tensor | None, *rest: Any) -> tuple[Tensor, Tensor]:
    """Return memory for the sum, empty without a branch, and its norm."""
    total = x.new_empty(0) if branch is None else x.new_empty(x.shape, dtype=torch.promote_types(x.dtype, branch.dtype))
    return total, x.new_empty(x.shape, dtype=rest[-1])


@loop_operator(norm_like)
def residual_norm(
    x: Tensor, branch: Tensor | None, weight: Tensor | None, bias: Tensor | None, epsilon: float, centred: bool,
    dtype: torch.dtype, *, total: Tensor, y: Tensor,
) -> None:  # fmt: skip
    """`lagwise.ops.fused.layers.residual_norm`, float32 or bfloat16, on the CPU."""
    x, branch = x.contiguous(), None if branch is None else branch.contiguous()
    into = x if branch is None else total
    sizes = _norm_sizes(x, x if branch is None else branch, into, y, 0, centred)
    call("residual_norm", sizes, x, branch, _float(weight), _float(bias), into, y, epsilon)


def row_programs(x: Tensor) -> int:
    """Count the programs that share the rows of x, each of which sums gradients of parameters."""
    return min(_NORM_PARTS if x.device.type == "cpu" else _NORM_PROGRAMS, x.numel() // x.shape[-1])


def norm_gradients_like(grad, grad_total, x, weight, biased, epsilon, centred, dtype, branch):
    """Return memory for gradients of x, of the branch (empty for the same dtype), and of weight and bias, in parts."""
    return (
        x.new_empty(x.shape, dtype=dtype),
        x.new_empty(0 if branch == dtype else x.shape, dtype=branch),
        x.new_empty((row_programs(x), (weight is not None) + biased, x.shape[-1]), dtype=torch.float32),
    )


@loop_operator(norm_gradients_like)
def residual_norm_gradients(
    grad: Tensor, grad_total: Tensor | None, x: Tensor, weight: Tensor | None, biased: bool, epsilon: float,
    centred: bool, dtype: torch.dtype, branch: torch.dtype, *, dx: Tensor, dbranch: Tensor, parts: Tensor,
) -> None:  # fmt: skip
    grad, x, grad_total = grad.contiguous(), x.contiguous(), None if grad_total is None else grad_total.contiguous()
    of_branch, slots = dbranch if dbranch.numel() else None, iter(parts.unbind(1))
    sizes = _norm_sizes(dx, dx if of_branch is None else of_branch, x, grad, len(parts), centred)
    sums = [next(slots) if needed else None for needed in (weight is not None, biased)]
    tensors = (grad, grad_total, x, _float(weight), dx, of_branch, *sums)
    call("residual_norm_gradients", sizes, *tensors, parts.stride(0), epsilon)


def _norm_sizes(x: Tensor, branch: Tensor, total: Tensor, y: Tensor, parts: int, centred: bool) -> _NormSizes:
    channels, halves = x.shape[-1], map(_half, (x, branch, total, y))
    return _NormSizes(x.numel() // channels, channels, parts, centred, *halves, torch.get_num_threads())


def _float(t: Tensor | None) -> Tensor | None:
    return None if t is None else t.float().contiguous()


def _half(x: Tensor) -> bool:
    return x.dtype == torch.bfloat16


class _Sizes(ctypes.Structure):
    """`sizes` of convolution.c."""

    _names = "batch length channels taps origin n frames hop start parts bfloat16 threads"
    _fields_ = [(name, ctypes.c_long) for name in _names.split()]


class _Signal(ctypes.Structure):
    """`signal` of convolution.c."""

    _fields_ = [("data", ctypes.c_void_p), ("row", ctypes.c_long), ("token", ctypes.c_long)]


@loop_operator(lambda value, *_: value.new_empty(value.shape))
def convolve(
    value: Tensor, taps: Tensor, plan: list[int], gate: Tensor | None, biases: Tensor | None, *, y: Tensor
) -> None:
    """The product of every channel with its taps; with a gate, ``silu(gate) * (taps * silu(value))``.

    Shapes: value, gate and y ``(batch, length, channels)``, float32 or bfloat16, on the CPU; taps ``(channels,
    n_taps)``; biases ``(2, channels)``, added to gate and value before. plan: the index of lag 0 in the taps, and how
    the signal is cut into frames: half of their points, their number, the outputs of each, the index of the first
    output and the parts of the taps.
    """
    added = filled_biases(biases, value.shape[2])
    _call("convolve", plan, taps, (_rows(value), None if gate is None else _rows(gate), y, None, None, None), added)


def _gradients_like(grad, value, taps, plan, gate, biases, of_value, of_taps) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    (n_taps, channels), gated = taps.shape[::-1], gate is not None
    return (
        value.new_empty(value.shape if of_value else 0),
        taps.new_empty((n_taps, channels) if of_taps else (0, 0), dtype=torch.float32).t(),
        value.new_empty(value.shape if gated else 0),
        taps.new_empty((2, channels + -channels % loops().lanes if gated else 0), dtype=torch.float32)[:, :channels],
    )


@loop_operator(_gradients_like)
def convolve_gradients(
    grad: Tensor,
    value: Tensor,
    taps: Tensor,
    plan: list[int],
    gate: Tensor | None,
    biases: Tensor | None,
    of_value: bool,
    of_taps: bool,
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Compute gradients of `convolve` with respect to value, taps, gate and biases, from its result's; empty tensors
    where they are not wanted, and without a gate. Those of a gate and its value are computed together."""
    grads = _gradients_like(grad, value, taps, plan, gate, biases, of_value, of_taps)
    value_grad, taps_grad, gate_grad, bias_grads = (t if t.numel() else None for t in grads)
    value, gate, grad = _rows(value), None if gate is None else _rows(gate), _rows(grad.to(value.dtype))
    signals = (value, gate, None, grad, value_grad, gate_grad)
    _call("convolve_gradients", plan, taps, signals, filled_biases(biases, value.shape[2]), taps_grad, bias_grads)
    return grads


def _call(
    name: str, plan: list[int], taps: Tensor, signals: tuple[Tensor | None, ...], *tensors: Tensor | None
) -> None:
    """Call a loop; signals: value, gate and result, and the gradients of the result, of value and of gate."""
    x, threads, (origin, n, *frames) = signals[0], torch.get_num_threads(), plan
    assert x is not None
    sizes = _Sizes(*x.shape, taps.shape[1], origin, n, *frames, x.dtype == torch.bfloat16, threads)
    memory = scratch(threads, call("convolution_scratch", sizes), loops().lanes)
    structs = (_Signal * len(signals))(
        *(_Signal() if t is None else _Signal(t.data_ptr(), t.stride(0), t.stride(1)) for t in signals)
    )
    call(name, sizes, structs, taps.t().to(torch.float32).contiguous(), *tensors, _roots(n), memory)


def _rows(x: Tensor) -> Tensor:
    """x ``(batch, length, channels)`` with the channels of a token next to each other."""
    return x if x.stride(2) == 1 or x.shape[2] == 1 else x.contiguous()


@functools.lru_cache(maxsize=32)
def _roots(n: int) -> Tensor:
    """The roots of transforms of 2 n points."""
    roots = scratch(n, 2)
    call("convolution_roots", roots, n)
    return roots
