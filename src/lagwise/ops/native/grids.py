"""Gated products along the rows and columns of a grid."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

from lagwise.ops.native.library import filled_biases, ints, longs, loops, pointers

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
