"""A residual sum and its norm in one pass, by a kernel on a GPU or a loop in C."""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from lagwise.ops import native
from lagwise.ops.fused import autocast_dtype, fused, kernel
from lagwise.ops.operation import differentiable, differentiable_gradients

_PROGRAMS, _CPU_PROGRAMS = 1024, 16  # at most; each sums the parameters' gradients over some rows


def residual_norm(
    x: Tensor,
    branch: Tensor | None,
    weight: Tensor | None,
    bias: Tensor | None,
    epsilon: float,
    *,
    centred: bool,
    dtype: torch.dtype | None = None,
) -> tuple[Tensor, Tensor]:
    """``s = x + branch``, and ``(s - mean(s)) / sqrt(variance + epsilon) * weight + bias`` over the last axis.

    Shapes: x and branch ``(..., channels)``; weight and bias ``(channels,)``. Without a branch s is x; if not centred,
    the norm is by the root mean square. The norm has this dtype, by default that of autocast, for the products that
    follow. Gradients through s and through the norm are added in the same pass.
    """
    return _ResidualNorm.apply(x, branch, weight, bias, epsilon, centred, dtype or autocast_dtype(x))


def _plain(
    x: Tensor,
    branch: Tensor | None,
    weight: Tensor | None,
    bias: Tensor | None,
    epsilon: float,
    centred: bool,
    dtype: torch.dtype,
) -> tuple[Tensor, Tensor]:
    total = x if branch is None else x + branch
    if centred:
        return total, F.layer_norm(total, total.shape[-1:], weight, bias, epsilon).to(dtype)
    return total, F.rms_norm(total, total.shape[-1:], weight, epsilon).to(dtype)


class _ResidualNorm(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x, branch, weight, bias, epsilon: float, centred: bool, dtype: torch.dtype):
        ctx.set_materialize_grads(False)
        if branch is None:
            total, y = x, norm(x, weight, bias, epsilon, centred, dtype)
        else:
            total, y = sum_and_norm(x, branch, weight, bias, epsilon, centred, dtype)
        ctx.save_for_backward(total, weight, bias)
        ctx.settings, ctx.branch = (epsilon, centred, dtype), None if branch is None else branch.dtype
        return total, y

    @staticmethod
    def backward(ctx: Any, grad_total: Tensor | None, grad: Tensor | None):
        total, weight, bias = ctx.saved_tensors
        epsilon, centred, _ = ctx.settings
        if grad is None:
            return grad_total, None if ctx.branch is None else _to(grad_total, ctx.branch), *[None] * 5
        if differentiable():  # the gradient of the sum is that of x and of the branch
            grads = [torch.zeros_like(total) if grad_total is None else grad_total, grad]
            inputs = (total, None, weight, bias, *ctx.settings)
            needs_grad = (True, False, *ctx.needs_input_grad[2:4], False, False, False)
            dx, _, dweight, dbias, *_ = differentiable_gradients(_plain, inputs, needs_grad, grads)
            return dx, None if ctx.branch is None else _to(dx, ctx.branch), dweight, dbias, None, None, None
        dtype = total.dtype
        arguments = (grad, grad_total, total, weight, bias is not None, epsilon, centred)
        dx, dbranch, parts = norm_gradients(*arguments, dtype, ctx.branch or dtype)
        if ctx.branch is None:
            dbranch = None
        elif not dbranch.numel():  # both have one dtype, so the gradients are one tensor
            dbranch = dx
        sums = iter(parts.sum(0)) if parts.numel() else iter(())
        dweight, dbias = (None if p is None else next(sums).to(p.dtype) for p in (weight, bias))
        return dx, dbranch, dweight, dbias, None, None, None


def _to(grad: Tensor | None, dtype: torch.dtype) -> Tensor | None:
    return None if grad is None else grad.to(dtype)


@kernel(lambda x, weight, bias, epsilon, centred, dtype: x.new_empty(x.shape, dtype=dtype))
def norm(
    x: Tensor, weight: Tensor | None, bias: Tensor | None, epsilon: float, centred: bool, dtype: torch.dtype
) -> Tensor:
    y = x.new_empty(x.shape, dtype=dtype)
    _launch(x.contiguous(), None, weight, bias, None, y, epsilon, centred)
    return y


@kernel(
    lambda x, branch, weight, bias, epsilon, centred, dtype: (
        x.new_empty(x.shape, dtype=torch.promote_types(x.dtype, branch.dtype)),
        x.new_empty(x.shape, dtype=dtype),
    )
)
def sum_and_norm(
    x: Tensor,
    branch: Tensor,
    weight: Tensor | None,
    bias: Tensor | None,
    epsilon: float,
    centred: bool,
    dtype: torch.dtype,
) -> tuple[Tensor, Tensor]:
    y = x.new_empty(x.shape, dtype=dtype)
    total = x.new_empty(x.shape, dtype=torch.promote_types(x.dtype, branch.dtype))
    _launch(x.contiguous(), branch.contiguous(), weight, bias, total, y, epsilon, centred)
    return total, y


def _launch(x, branch, weight, bias, total, y, epsilon: float, centred: bool) -> None:
    if not fused(x):
        native.residual_norm(x, branch, weight, bias, epsilon, centred, x if total is None else total, y)
        return
    from lagwise.ops.fused import norm_kernels as kernels

    channels = x.shape[-1]
    kernels.norm[(x.numel() // channels,)](
        *(x if t is None else t for t in (x, branch, weight, bias, total)), y, channels, epsilon,
        CENTRED=centred, BRANCH=branch is not None, WEIGHT=weight is not None, BIAS=bias is not None,
        BLOCK=_block(channels),
    )  # fmt: skip


def _block(channels: int) -> int:
    return max(16, 1 << (channels - 1).bit_length())


def _parts(x: Tensor) -> int:
    return min(_CPU_PROGRAMS if x.device.type == "cpu" else _PROGRAMS, x.numel() // x.shape[-1])


def _gradients_like(grad, grad_total, x, weight, biased, epsilon, centred, dtype, branch):
    parameters = (weight is not None) + biased
    return (
        x.new_empty(x.shape, dtype=dtype),
        x.new_empty(0 if branch == dtype else x.shape, dtype=branch),
        x.new_empty((_parts(x), parameters, x.shape[-1]), dtype=torch.float32),
    )


@kernel(_gradients_like)
def norm_gradients(
    grad: Tensor,
    grad_total: Tensor | None,
    x: Tensor,
    weight: Tensor | None,
    biased: bool,
    epsilon: float,
    centred: bool,
    dtype: torch.dtype,
    branch: torch.dtype,
) -> tuple[Tensor, Tensor, Tensor]:
    """Gradients of x, of the branch (empty for the same dtype), and of weight and bias, in parts."""
    x, grad = x.contiguous(), grad.contiguous()
    grad_total = None if grad_total is None else grad_total.contiguous()
    dx, dbranch, parts = results = _gradients_like(grad, grad_total, x, weight, biased, epsilon, centred, dtype, branch)
    if not fused(x):
        of_branch = dbranch if dbranch.numel() else None
        native.residual_norm_gradients(
            grad, grad_total, x, weight, epsilon, centred, dx, of_branch, parts, weight is not None, biased
        )
        return results
    from lagwise.ops.fused import norm_kernels as kernels

    channels = x.shape[-1]
    kernels.norm_gradients[(_parts(x),)](
        grad, *(x if t is None else t for t in (grad_total, x, weight)), *results, x.numel() // channels, channels,
        epsilon, CENTRED=centred, TOTAL=grad_total is not None, BRANCH=branch != dtype, WEIGHT=weight is not None,
        BIAS=biased, BLOCK=_block(channels),
    )  # fmt: skip
    return results
