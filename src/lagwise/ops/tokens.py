"""Gates and norms, in one pass over memory where the C loops are available."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

from lagwise.ops import native
from lagwise.ops.bilinear import differentiable, differentiable_gradients, transformed

_FEWEST = 1 << 15  # numbers for which a call into C is worthwhile


def silu_product(gate: Tensor, value: Tensor) -> Tensor:
    """``silu(gate) * value``, for tensors of one shape.

    PyTorch takes two passes over memory, and five for the gradients; the loops in C take one and one.
    """
    same = gate.shape == value.shape and gate.dtype == value.dtype
    if same and gate.dtype in (torch.float32, torch.bfloat16) and value.device.type == "cpu" and _fast(gate):
        return _SiluProduct.apply(gate, value)
    return F.silu(gate) * value


def rms_norm(x: Tensor, epsilon: float) -> Tensor:
    """``x / sqrt(mean(x²) + epsilon)`` over the last axis."""
    if x.dtype == torch.float32 and _fast(x):
        return _RMSNorm.apply(x, epsilon)
    return F.rms_norm(x, x.shape[-1:], eps=epsilon)


def _fast(x: Tensor) -> bool:
    if torch.compiler.is_compiling() or transformed():  # compilers fuse these steps themselves
        return False
    return x.device.type == "cpu" and x.numel() >= _FEWEST and native.available()


class _SiluProduct(torch.autograd.Function):
    @staticmethod
    def forward(ctx, gate: Tensor, value: Tensor) -> Tensor:
        gate, value = gate.contiguous(), value.contiguous()
        ctx.save_for_backward(gate, value)
        return native.silu_product(gate, value)

    @staticmethod
    def backward(ctx, grad: Tensor):
        gate, value = ctx.saved_tensors
        if differentiable():
            wanted = ctx.needs_input_grad
            return tuple(differentiable_gradients(lambda a, b: F.silu(a) * b, (gate, value), wanted, [grad]))
        return native.silu_product_gradients(grad.contiguous(), gate, value)


class _RMSNorm(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x: Tensor, epsilon: float) -> Tensor:
        x = x.contiguous()
        y, factors = native.rms_norm(x, epsilon)
        ctx.save_for_backward(x, factors)
        ctx.epsilon = epsilon
        return y

    @staticmethod
    def backward(ctx, grad: Tensor):
        x, factors = ctx.saved_tensors
        if differentiable():

            def plain(x: Tensor) -> Tensor:
                return F.rms_norm(x, x.shape[-1:], eps=ctx.epsilon)

            return *differentiable_gradients(plain, (x,), (True,), [grad]), None
        return native.rms_norm_gradient(grad.contiguous(), x, factors), None
