"""Gates in one pass."""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from lagwise.ops.bilinear import differentiable, differentiable_gradients
from lagwise.ops.fused import kernel, rows_of

BLOCK = 1024


def silu_product(gate: Tensor, value: Tensor) -> Tensor:
    """``silu(gate) * value`` for tensors ``(..., channels)`` of one shape and dtype. Their gradients are neighbours in
    memory, for `lagwise.ops.fused.joined`."""
    return _SiluProduct.apply(gate, value)


class _SiluProduct(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, gate: Tensor, value: Tensor) -> Tensor:
        ctx.save_for_backward(gate, value)
        return silu_product_kernel(gate, value)

    @staticmethod
    def backward(ctx: Any, grad: Tensor):
        gate, value = ctx.saved_tensors
        if differentiable():
            plain = lambda gate, value: F.silu(gate) * value  # noqa: E731
            return tuple(differentiable_gradients(plain, (gate, value), ctx.needs_input_grad, [grad]))
        return silu_product_gradients(grad, gate, value).chunk(2, dim=-1)


@kernel(lambda gate, value: gate.new_empty(gate.shape))
def silu_product_kernel(gate: Tensor, value: Tensor) -> Tensor:
    from lagwise.ops.fused import kernels

    g, v, y = rows_of(gate), rows_of(value), gate.new_empty(gate.shape)
    count = y.numel()
    grid = (-(-count // BLOCK),)
    kernels.silu_product[grid](g, v, y, count, g.shape[1], g.stride(0), v.stride(0), BLOCK=BLOCK)
    return y


@kernel(lambda grad, gate, value: gate.new_empty((*gate.shape[:-1], 2 * gate.shape[-1])))
def silu_product_gradients(grad: Tensor, gate: Tensor, value: Tensor) -> Tensor:
    """Gradients of gate and value, side by side."""
    from lagwise.ops.fused import kernels

    d, g, v = rows_of(grad), rows_of(gate), rows_of(value)
    result = gate.new_empty((*gate.shape[:-1], 2 * gate.shape[-1]))
    dgate, dvalue = rows_of(result).chunk(2, dim=1)
    tensors = (d, g, v, dgate, dvalue)
    grid = (-(-g.numel() // BLOCK),)
    kernels.silu_product_gradients[grid](
        *tensors, g.numel(), g.shape[1], *(t.stride(0) for t in tensors), BLOCK=BLOCK
    )  # fmt: skip
    return result


def gated_update(x: Tensor, update: Tensor, candidate: Tensor, branch: Tensor) -> Tensor:
    """``x + sigmoid(update) (silu(candidate + branch) - x)`` for tensors ``(..., channels)``; result like x."""
    return _Update.apply(x, update, candidate, branch)


def _plain_update(x: Tensor, update: Tensor, candidate: Tensor, branch: Tensor) -> Tensor:
    return torch.lerp(x, F.silu(candidate + branch).to(x.dtype), update.sigmoid().to(x.dtype))


class _Update(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, update: Tensor, candidate: Tensor, branch: Tensor) -> Tensor:
        ctx.save_for_backward(x, update, candidate, branch)
        return gated_update_kernel(x, update, candidate, branch)

    @staticmethod
    def backward(ctx: Any, grad: Tensor):
        inputs = ctx.saved_tensors
        if differentiable():
            return tuple(differentiable_gradients(_plain_update, inputs, ctx.needs_input_grad, [grad]))
        dx, dupdate, inner = gated_update_gradients(grad, *inputs)
        return dx, dupdate, inner, inner.to(inputs[3].dtype)


@kernel(lambda x, update, candidate, branch: x.new_empty(x.shape))
def gated_update_kernel(x: Tensor, update: Tensor, candidate: Tensor, branch: Tensor) -> Tensor:
    from lagwise.ops.fused import kernels

    others, y = [rows_of(t) for t in (update, candidate, branch)], x.new_empty(x.shape)
    strides = (t.stride(0) for t in others)
    grid = (-(-x.numel() // BLOCK),)
    kernels.gated_update[grid](x.contiguous(), *others, y, x.numel(), x.shape[-1], *strides, BLOCK=BLOCK)
    return y


@kernel(
    lambda grad, x, update, candidate, branch: (
        x.new_empty(x.shape),
        update.new_empty(update.shape),
        candidate.new_empty(candidate.shape),
    )
)
def gated_update_gradients(
    grad: Tensor, x: Tensor, update: Tensor, candidate: Tensor, branch: Tensor
) -> tuple[Tensor, Tensor, Tensor]:
    """Gradients of x, of update, and of the sum of candidate and branch."""
    from lagwise.ops.fused import kernels

    others = [rows_of(t) for t in (update, candidate, branch)]
    results = (x.new_empty(x.shape), update.new_empty(update.shape), candidate.new_empty(candidate.shape))
    strides = (t.stride(0) for t in others)
    grid = (-(-x.numel() // BLOCK),)
    kernels.gated_update_gradients[grid](
        grad.contiguous(), x.contiguous(), *others, *results, x.numel(), x.shape[-1], *strides, BLOCK=BLOCK
    )  # fmt: skip
    return results
