"""Gates and norms, in one pass over memory where the C loops are available."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

from lagwise.ops import native
from lagwise.ops.bilinear import differentiable, differentiable_gradients, transformed

_FEWEST = 1 << 16  # numbers for which a call into C is worthwhile


def silu_product(gate: Tensor, value: Tensor) -> Tensor:
    """``silu(gate) * value``, for tensors of one shape.

    PyTorch takes two passes over memory, and three for the gradients; the loops in C take one and one.
    """
    same = gate.shape == value.shape and gate.dtype == value.dtype
    if same and gate.dtype in (torch.float32, torch.bfloat16) and value.device.type == "cpu" and _fast(gate):
        return _SiluProduct.apply(gate, value)
    return _plain_silu_product(gate, value)


def rms_norm(x: Tensor, epsilon: float) -> Tensor:
    """``x / sqrt(mean(x²) + epsilon)`` over the last axis."""
    if x.dtype == torch.float32 and _fast(x):
        return _RMSNorm.apply(x, epsilon)
    return _plain_rms_norm(x, epsilon)


def _plain_silu_product(gate: Tensor, value: Tensor) -> Tensor:
    return F.silu(gate) * value


def _plain_rms_norm(x: Tensor, epsilon: float) -> Tensor:
    return F.rms_norm(x, x.shape[-1:], eps=epsilon)


def _fast(x: Tensor) -> bool:
    if torch.compiler.is_compiling() or torch.jit.is_tracing():  # compilers fuse these steps themselves
        return False
    return x.device.type == "cpu" and x.numel() >= _FEWEST and not transformed() and native.available()


class _SiluProduct(torch.autograd.Function):
    @staticmethod
    def forward(ctx, gate: Tensor, value: Tensor) -> Tensor:
        ctx.save_for_backward(gate, value)
        return _silu_product(gate, value)

    @staticmethod
    def backward(ctx, grad: Tensor):
        inputs = ctx.saved_tensors
        if differentiable():
            return tuple(differentiable_gradients(_plain_silu_product, inputs, ctx.needs_input_grad, [grad]))
        return _silu_product_gradients(grad, *inputs)


class _RMSNorm(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x: Tensor, epsilon: float) -> Tensor:
        y, factors = _rms_norm(x, epsilon)
        ctx.save_for_backward(x, factors)
        ctx.epsilon = epsilon
        return y

    @staticmethod
    def backward(ctx, grad: Tensor):
        x, factors = ctx.saved_tensors
        if differentiable():
            (dx,) = differentiable_gradients(lambda x: _plain_rms_norm(x, ctx.epsilon), (x,), (True,), [grad])
        else:
            dx = _rms_norm_gradient(grad, x, factors)
        return dx, None


# As operators of PyTorch, the loops work on whatever tensors it has: fake, traced and batched ones too.


@torch.library.custom_op("lagwise::silu_product", mutates_args=())
def _silu_product(gate: Tensor, value: Tensor) -> Tensor:
    return native.silu_product(gate.contiguous(), value.contiguous())


@_silu_product.register_fake
def _(gate: Tensor, value: Tensor) -> Tensor:
    return gate.new_empty(gate.shape)


@torch.library.custom_op("lagwise::silu_product_gradients", mutates_args=())
def _silu_product_gradients(grad: Tensor, gate: Tensor, value: Tensor) -> tuple[Tensor, Tensor]:
    return native.silu_product_gradients(grad.contiguous(), gate.contiguous(), value.contiguous())


@_silu_product_gradients.register_fake
def _(grad: Tensor, gate: Tensor, value: Tensor) -> tuple[Tensor, Tensor]:
    return gate.new_empty(gate.shape), value.new_empty(value.shape)


@torch.library.custom_op("lagwise::rms_norm", mutates_args=())
def _rms_norm(x: Tensor, epsilon: float) -> tuple[Tensor, Tensor]:
    return native.rms_norm(x.contiguous(), epsilon)


@_rms_norm.register_fake
def _(x: Tensor, epsilon: float) -> tuple[Tensor, Tensor]:
    return x.new_empty(x.shape), x.new_empty(x.shape[:-1])


@torch.library.custom_op("lagwise::rms_norm_gradient", mutates_args=())
def _rms_norm_gradient(grad: Tensor, x: Tensor, factors: Tensor) -> Tensor:
    return native.rms_norm_gradient(grad.contiguous(), x.contiguous(), factors)


@_rms_norm_gradient.register_fake
def _(grad: Tensor, x: Tensor, factors: Tensor) -> Tensor:
    return x.new_empty(x.shape)
