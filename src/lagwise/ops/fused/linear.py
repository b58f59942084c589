"""Several linear layers of one input as one matrix product."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from lagwise.ops.fused import autocast_dtype, joined, kernel
from lagwise.ops.operation import differentiable, differentiable_gradients

_CAST, _NUMBERS = 4, 1024  # tensors of a launch, numbers of a program


def joint_linear(
    x: Tensor, weights: list[Tensor], biases: list[Tensor | None], sizes: Sequence[int] | None = None
) -> list[Tensor]:
    """``x W' + b`` of each layer, in the dtype of autocast.

    Shapes: x ``(..., channels)``; weights ``(outputs, channels)``; biases ``(outputs,)``, all or none None; results
    ``(..., outputs)``, neighbours in memory, one of each layer or of these sizes. Weights are cast and joined in one
    pass, and their gradients are summed in float32 and not rounded.
    """
    present = [b for b in biases if b is not None]
    cut = [len(weight) for weight in weights] if sizes is None else list(sizes)
    return list(_JointLinear.apply(x, autocast_dtype(x), len(weights), cut, *weights, *present))


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
        rows = (x if x.dtype == dtype else x.to(dtype)).flatten(0, -2)
        weight, bias = cast_joint(parameters[:count], parameters[count:], dtype)
        y = multiplied(rows, weight, bias).view(*x.shape[:-1], -1)
        ctx.save_for_backward(x, rows if x.dtype != dtype else None, weight, *parameters)
        ctx.settings = (dtype, count, cut)
        return y.split_with_sizes(cut, dim=-1) if len(cut) > 1 else (y,)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor | None):
        x, rows, weight, *parameters = ctx.saved_tensors
        dtype, count, cut = ctx.settings
        full = [
            x.new_zeros((*x.shape[:-1], size), dtype=dtype) if grad is None else grad
            for size, grad in zip(cut, grads, strict=True)
        ]
        if differentiable():
            inputs = (x, dtype, count, cut, *parameters)
            return tuple(differentiable_gradients(_plain, inputs, ctx.needs_input_grad, full))
        grad = joined(full).flatten(0, -2)
        dx = (grad @ weight).view(x.shape) if ctx.needs_input_grad[0] else None
        rows = x.flatten(0, -2) if rows is None else rows
        gradients = joint_gradients(grad, rows, parameters[:count], parameters[count:], ctx.needs_input_grad[4:])
        return dx if dx is None or dx.dtype == x.dtype else dx.to(x.dtype), None, None, None, *gradients


def cast_joint(weights: Sequence[Tensor], biases: Sequence[Tensor], dtype: torch.dtype) -> tuple[Tensor, Tensor | None]:
    """Weights, and biases if any, each as one tensor of this dtype, in one pass."""
    if len(weights) == 1 and weights[0].dtype == dtype:
        return weights[0], biases[0] if biases else None
    weight, bias = cast_weights(list(weights), list(biases), dtype)
    return weight, bias if biases else None


def _joint_like(weights: list[Tensor], biases: list[Tensor], dtype: torch.dtype) -> tuple[Tensor, Tensor]:
    rows = sum(map(len, weights))
    weight = weights[0].new_empty((rows, weights[0].shape[1]), dtype=dtype)
    return weight, weights[0].new_empty(rows if biases else 0, dtype=dtype)


@kernel(_joint_like)
def cast_weights(weights: list[Tensor], biases: list[Tensor], dtype: torch.dtype) -> tuple[Tensor, Tensor]:
    from lagwise.ops.fused import cast_kernels as kernels

    weight, bias = _joint_like(weights, biases, dtype)
    sources = [each.contiguous() for each in (*weights, *biases)]
    targets = [*_parts(weight, weights), *(_parts(bias, biases) if biases else ())]
    for start in range(0, len(sources), _CAST):
        some, into = sources[start : start + _CAST], targets[start : start + _CAST]
        counts = [each.numel() for each in some]
        unused = _CAST - len(some)
        kernels.cast[(-(-max(counts) // _NUMBERS), len(some))](
            *some, *some[:1] * unused, *into, *into[:1] * unused, *counts, *[0] * unused, BLOCK=_NUMBERS
        )
    return weight, bias


def multiplied(rows: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    """``rows W' + b``."""
    return torch.mm(rows, weight.t()) if bias is None else torch.addmm(bias, rows, weight.t())


def joint_gradients(
    grad: Tensor, rows: Tensor, weights: Sequence[Tensor], biases: Sequence[Tensor], needs_grad: Sequence[bool]
) -> list[Tensor | None]:
    """Gradients of weights and biases, those of which any needs one, from that of their joint product."""
    count = len(weights)
    gradients: list[Tensor | None] = [None] * (count + len(biases))
    if any(needs_grad[:count]):
        gradients[:count] = _parts(_outer(grad, rows, weights[0].dtype), weights)
    if any(needs_grad[count:]):
        gradients[count:] = _parts(column_sums(grad).to(biases[0].dtype), biases)
    return gradients


@kernel(lambda grad: grad.new_empty(grad.shape[1], dtype=torch.float32))
def column_sums(grad: Tensor) -> Tensor:
    """Sums over rows in float32, by PyTorch: a compiler would take two launches."""
    return grad.sum(0, dtype=torch.float32)


def _parts(x: Tensor, like: Sequence[Tensor]) -> Sequence[Tensor]:
    return (x,) if len(like) == 1 else x.split_with_sizes([len(each) for each in like])


def _outer(grad: Tensor, x: Tensor, dtype: torch.dtype) -> Tensor:
    """``grad' x``, in float32 without a pass that casts it where the device can."""
    if grad.dtype == dtype:
        return grad.t() @ x
    if grad.device.type == "cuda" and dtype == torch.float32:
        return torch.mm(grad.t(), x, out_dtype=torch.float32)
    return (grad.t() @ x).to(dtype)
