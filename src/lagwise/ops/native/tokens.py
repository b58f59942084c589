"""Gates and norms in one pass over memory."""

from __future__ import annotations

import ctypes

import torch
from torch import Tensor

from lagwise.ops.native.library import ints, longs, loops, pointers


def silu_product(gate: Tensor, value: Tensor) -> Tensor:
    """``silu(gate) * value``, for contiguous tensors of one shape, both float32 or both bfloat16, on the CPU."""
    out = torch.empty_like(gate)
    loops().library.silu_product(*pointers(gate, value, out), *_size(gate))
    return out


def silu_product_gradients(grad: Tensor, gate: Tensor, value: Tensor) -> tuple[Tensor, Tensor]:
    """Gradients of `silu_product` with respect to gate and value, from its result's, which is like them."""
    grads = torch.empty_like(gate), torch.empty_like(value)
    loops().library.silu_product_gradients(*pointers(grad, gate, value, *grads), *_size(gate))
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


def _size(x: Tensor) -> list[ctypes.c_long | ctypes.c_int]:
    return [*longs(x.numel()), *ints(x.dtype == torch.bfloat16, torch.get_num_threads())]
