"""Gates and norms in one pass over memory."""

from __future__ import annotations

import ctypes

import torch
from torch import Tensor

from lagwise.ops.native.library import filled_biases, ints, longs, loops, pointers

_ROW = 1024  # numbers of a row, where any size will do


def silu_product(gate: Tensor, value: Tensor, biases: Tensor | None = None) -> Tensor:
    """``silu(gate) * value``, for contiguous tensors of one shape, both float32 or both bfloat16, on the CPU; biases
    ``(2, channels)`` are added to gate and value before."""
    out, (size, added) = torch.empty_like(gate), _row_of_biases(gate, biases)
    tensors = pointers(gate, value, added, out)
    loops().library.silu_product(*tensors, *longs(gate.numel(), size), *_dtype_and_threads(gate))
    return out


def silu_product_gradients(
    grad: Tensor, gate: Tensor, value: Tensor, biases: Tensor | None = None
) -> tuple[Tensor, Tensor]:
    """Gradients of `silu_product` with respect to gate and value, from its result's, which is like them."""
    grads, (size, added) = (torch.empty_like(gate), torch.empty_like(value)), _row_of_biases(gate, biases)
    tensors = pointers(grad, gate, value, added, *grads)
    loops().library.silu_product_gradients(*tensors, *longs(gate.numel(), size), *_dtype_and_threads(gate))
    return grads


def rms_norm(x: Tensor, epsilon: float) -> tuple[Tensor, Tensor]:
    """``y = x / sqrt(mean(x²) + epsilon)`` over the last axis, and the factors y / x, of a contiguous float32 tensor on
    the CPU."""
    y, factors = torch.empty_like(x), x.new_empty(x.shape[:-1])
    sizes = longs(factors.numel(), x.shape[-1])
    loops().library.rms_norm(*pointers(x, y, factors), *sizes, ctypes.c_float(epsilon), *ints(torch.get_num_threads()))
    return y, factors


def rms_norm_gradient(grad: Tensor, x: Tensor, factors: Tensor) -> Tensor:
    """The gradient of `rms_norm` with respect to x, from that of y and the factors."""
    x_grad, sizes = torch.empty_like(x), longs(factors.numel(), x.shape[-1])
    loops().library.rms_norm_gradient(*pointers(grad, x, factors, x_grad), *sizes, *ints(torch.get_num_threads()))
    return x_grad


def _row_of_biases(x: Tensor, biases: Tensor | None) -> tuple[int, Tensor]:
    """The size of rows to which the same biases are added, and these; zeros if there are none."""
    size = _ROW if biases is None else x.shape[-1]
    return max(1, size), filled_biases(biases, size)


def _dtype_and_threads(x: Tensor) -> list[ctypes.c_int]:
    return ints(x.dtype == torch.bfloat16, torch.get_num_threads())
