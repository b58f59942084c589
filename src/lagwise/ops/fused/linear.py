"""Several linear layers of one input as one matrix product."""

from __future__ import annotations

from collections.abc import Sequence

import torch
import torch.nn.functional as F
from torch import Tensor

from lagwise.ops.fused import TritonEngine, autocast_dtype, joined, kernel, launch
from lagwise.ops.operation import Values, operation

_CAST, _NUMBERS = 4, 1024  # tensors of a launch, numbers of a program


def joint_linear(
    x: Tensor, weights: list[Tensor], biases: Sequence[Tensor | None], sizes: Sequence[int] | None = None
) -> list[Tensor]:
    """``x W' + b`` of each layer, in the dtype of autocast.

    Shapes: x ``(..., channels)``; weights ``(outputs, channels)``; biases ``(outputs,)``, all or none None; results
    ``(..., outputs)``, neighbours in memory, one of each layer or of these sizes. Weights are cast and joined in one
    pass, and their gradients are summed in float32 and not rounded.
    """
    present = [b for b in biases if b is not None]
    cut = [len(weight) for weight in weights] if sizes is None else list(sizes)
    return list(_joint_linear(x, autocast_dtype(x), len(weights), cut, *weights, *present))


@operation
def _joint_linear(x: Tensor, dtype: torch.dtype, count: int, sizes: list[int], *parameters: Tensor) -> Sequence[Tensor]:
    x, parameters = x.to(dtype), tuple(p.to(dtype) for p in parameters)
    biases = parameters[count:] or [None] * count
    with torch.autocast(x.device.type, enabled=False):
        parts = [F.linear(x, w, b) for w, b in zip(parameters[:count], biases, strict=True)]
    return torch.cat(parts, dim=-1).split(sizes, dim=-1)


@_joint_linear.engine("triton")
class _Joint(TritonEngine):
    @staticmethod
    def forward(
        x: Tensor, dtype: torch.dtype, count: int, sizes: list[int], *parameters: Tensor
    ) -> tuple[tuple[Tensor, ...], Values]:
        rows = (x if x.dtype == dtype else x.to(dtype)).flatten(0, -2)
        weight, bias = cast_joint(parameters[:count], parameters[count:], dtype)
        y = torch.mm(rows, weight.t()) if bias is None else torch.addmm(bias, rows, weight.t())
        saved, y = (rows if x.dtype != dtype else None, weight), y.view(*x.shape[:-1], -1)
        return y.split_with_sizes(sizes, dim=-1) if len(sizes) > 1 else (y,), saved

    @staticmethod
    def backward(args: Values, saved: Values, grads: Values, needs_grad: Sequence[bool]) -> Values:
        (x, dtype, count, sizes, *parameters), (rows, weight) = args, saved
        full = [
            x.new_zeros((*x.shape[:-1], size), dtype=dtype) if grad is None else grad
            for size, grad in zip(sizes, grads, strict=True)
        ]
        grad = joined(full).flatten(0, -2)
        dx = (grad @ weight).view(x.shape) if needs_grad[0] else None
        gradients: list[Tensor | None] = [None] * len(parameters)
        if any(needs_grad[4 : 4 + count]):
            outer = _outer(grad, x.flatten(0, -2) if rows is None else rows, parameters[0].dtype)
            gradients[:count] = _parts(outer, parameters[:count])
        if any(needs_grad[4 + count :]):
            gradients[count:] = _parts(column_sums(grad).to(parameters[count].dtype), parameters[count:])
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
    weight, bias = _joint_like(weights, biases, dtype)
    sources = [each.contiguous() for each in (*weights, *biases)]
    targets = [*_parts(weight, weights), *(_parts(bias, biases) if biases else ())]
    for start in range(0, len(sources), _CAST):
        some, into = sources[start : start + _CAST], targets[start : start + _CAST]
        counts, unused = [each.numel() for each in some], _CAST - len(some)
        grid = (-(-max(counts) // _NUMBERS), len(some))
        tensors = (*some, *some[:1] * unused, *into, *into[:1] * unused)
        launch("gate.cast", grid, *tensors, *counts, *[0] * unused, BLOCK=_NUMBERS)
    return weight, bias


@kernel(lambda grad: grad.new_empty(grad.shape[1], dtype=torch.float32))
def column_sums(grad: Tensor) -> Tensor:
    """Compute sums over rows in float32, by PyTorch: a compiler would take two launches."""
    return grad.sum(0, dtype=torch.float32)


def _parts(x: Tensor, like: Sequence[Tensor]) -> Sequence[Tensor]:
    return (x,) if len(like) == 1 else x.split_with_sizes([len(each) for each in like])


def _outer(grad: Tensor, x: Tensor, dtype: torch.dtype) -> Tensor:
    """``grad' x``, in float32 without a pass that casts it where the device can."""
    if grad.device.type == "cuda" and grad.dtype != dtype == torch.float32:
        return torch.mm(grad.t(), x, out_dtype=torch.float32)
    return (grad.t() @ x).to(dtype)
