"""Several linear layers of one input as one matrix product."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from lagwise.ops.bilinear import differentiable, differentiable_gradients
from lagwise.ops.fused import autocast_dtype, joined


def joint_linear(
    x: Tensor, weights: list[Tensor], biases: list[Tensor | None], sizes: Sequence[int] | None = None
) -> list[Tensor]:
    """``x W' + b`` of each layer, in the dtype of autocast.

    Shapes: x ``(..., channels)``; weights ``(outputs, channels)``; biases ``(outputs,)``, all or none None; results
    ``(..., outputs)``, neighbours in memory, one of each layer or of these sizes. Weights are cast and joined in one
    pass, and their gradients are summed in float32 and not rounded.
    """
    given = [b for b in biases if b is not None]
    cut = [len(weight) for weight in weights] if sizes is None else list(sizes)
    return list(_JointLinear.apply(x, autocast_dtype(x), len(weights), cut, *weights, *given))


def _plain(x: Tensor, dtype: torch.dtype, count: int, sizes: list[int], *parameters: Tensor) -> Sequence[Tensor]:
    x, parameters = x.to(dtype), tuple(p.to(dtype) for p in parameters)
    biases = parameters[count:] or [None] * count
    with torch.autocast(x.device.type, enabled=False):
        parts = [F.linear(x, w, b) for w, b in zip(parameters[:count], biases, strict=True)]
    return torch.cat(parts, dim=-1).split(sizes, dim=-1)


class _JointLinear(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, dtype: torch.dtype, count: int, cut: list[int], *parameters: Tensor):
        ctx.set_materialize_grads(False)
        weights, biases = parameters[:count], parameters[count:]
        sizes = [len(w) for w in weights]
        rows = x.to(dtype).flatten(0, -2)
        if count == 1 and weights[0].dtype == dtype:
            (weight,), bias = weights, biases[0] if biases else None
        else:
            weight = x.new_empty((sum(sizes), rows.shape[1]), dtype=dtype)
            bias = x.new_empty(sum(sizes), dtype=dtype) if biases else None
            joint = [*weight.split(sizes), *(() if bias is None else bias.split(sizes))]
            torch._foreach_copy_(joint, list(parameters))
        y = rows @ weight.t() if bias is None else torch.addmm(bias, rows, weight.t())
        ctx.save_for_backward(x, rows if x.dtype != dtype else None, weight, *parameters)
        ctx.settings = (dtype, count, cut, sizes)
        return y.view(*x.shape[:-1], -1).split(cut, dim=-1)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor | None):
        x, rows, weight, *parameters = ctx.saved_tensors
        dtype, count, cut, sizes = ctx.settings
        full = [
            x.new_zeros((*x.shape[:-1], size), dtype=dtype) if grad is None else grad
            for size, grad in zip(cut, grads, strict=True)
        ]
        if differentiable():
            inputs = (x, dtype, count, cut, *parameters)
            return tuple(differentiable_gradients(_plain, inputs, ctx.needs_input_grad, full))
        grad = joined(full).flatten(0, -2)
        rows = x.flatten(0, -2) if rows is None else rows
        dx = (grad @ weight).view(x.shape).to(x.dtype) if ctx.needs_input_grad[0] else None
        found: list[Tensor | None] = [None] * len(parameters)
        if any(ctx.needs_input_grad[4 : 4 + count]):
            found[:count] = _outer(grad, rows, parameters[0].dtype).split(sizes)
        if any(ctx.needs_input_grad[4 + count :]):
            found[count:] = grad.sum(0, dtype=torch.float32).to(parameters[-1].dtype).split(sizes)
        return dx, None, None, None, *found


def _outer(grad: Tensor, x: Tensor, dtype: torch.dtype) -> Tensor:
    """``grad' x``, in float32 without a pass that casts it where the device can."""
    if grad.dtype == dtype:
        return grad.t() @ x
    if grad.device.type == "cuda" and dtype == torch.float32:
        return torch.mm(grad.t(), x, out_dtype=torch.float32)
    return (grad.t() @ x).to(dtype)
