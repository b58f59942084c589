"""Gates and norms in one pass over memory."""

from __future__ import annotations

import ctypes

import torch
from torch import Tensor

from lagwise.ops.native.library import filled_biases, ints, longs, loops, pointers

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
