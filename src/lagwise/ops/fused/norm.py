"""A residual sum and its norm in one pass, by a kernel on a GPU or a loop in C."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from lagwise.ops import native
from lagwise.ops.fused import TritonEngine, fused, kernel, launch
from lagwise.ops.operation import Engine, Values, operation

_PROGRAMS, _CPU_PROGRAMS = 1024, 16  # at most; each sums the parameters' gradients over some rows


@operation
def residual_norm(
    x: Tensor,
    branch: Tensor | None,
    weight: Tensor | None,
    bias: Tensor | None,
    epsilon: float,
    centred: bool,
    dtype: torch.dtype,
) -> tuple[Tensor, Tensor]:
    """``s = x + branch``, and ``(s - mean(s)) / sqrt(variance + epsilon) * weight + bias`` over the last axis.

    Shapes: x and branch ``(..., channels)``; weight and bias ``(channels,)``. Without a branch s is x; if not centred,
    the norm is by the root mean square. The norm has this dtype. Gradients through s and through the norm are added in
    the same pass.
    """
    total = x if branch is None else x + branch
    if centred:
        return total, F.layer_norm(total, total.shape[-1:], weight, bias, epsilon).to(dtype)
    return total, F.rms_norm(total, total.shape[-1:], weight, epsilon).to(dtype)


class _OnePass(Engine):
    unsaved = (0, 1)  # the sum is enough

    @staticmethod
    def forward(*args: Any) -> tuple[tuple[Tensor, Tensor], Values]:
        (x, branch), (total, y) = args[:2], norm(*args)
        return ((x, y), (x, None)) if branch is None else ((total, y), (total, branch.new_empty(0)))

    @staticmethod
    def backward(args: Values, saved: Values, grads: Values, needs_grad: Sequence[bool]) -> Values:
        _, _, weight, bias, epsilon, centred, _ = args
        (total, branch), (grad_total, grad) = saved, grads
        kind = total.dtype if branch is None else branch.dtype
        if grad is None:
            return grad_total, None if branch is None else grad_total.to(kind)
        arguments = (grad, grad_total, total, weight, bias is not None, epsilon, centred)
        dx, dbranch, parts = norm_gradients(*arguments, total.dtype, kind)
        if not dbranch.numel():  # both have one dtype, so the gradients are one tensor
            dbranch = dx
        sums = iter(parts.sum(0)) if parts.numel() else iter(())
        dweight, dbias = (None if p is None else next(sums).to(p.dtype) for p in (weight, bias))
        return dx, None if branch is None else dbranch, dweight, dbias

    @staticmethod
    def restored(args: Values, saved: Values) -> Values:
        total, branch = saved
        zeros = None if branch is None else branch.new_zeros(()).expand(total.shape).requires_grad_()
        return [total, zeros, *args[2:]]


@residual_norm.engine("triton")
class _Kernel(_OnePass):
    serves = TritonEngine.serves


@residual_norm.engine("loop")
class _Loop(_OnePass):
    @staticmethod
    def serves(x: Tensor, branch: Tensor | None, *_: object) -> bool:
        return native.serves(x, x if branch is None else branch, min_elements=native.MIN_ELEMENTS)


def _like(x: Tensor, branch: Tensor | None, *rest: Any) -> tuple[Tensor, Tensor]:
    total = x.new_empty(0) if branch is None else x.new_empty(x.shape, dtype=torch.promote_types(x.dtype, branch.dtype))
    return total, x.new_empty(x.shape, dtype=rest[-1])


@kernel(_like)
def norm(
    x: Tensor,
    branch: Tensor | None,
    weight: Tensor | None,
    bias: Tensor | None,
    epsilon: float,
    centred: bool,
    dtype: torch.dtype,
) -> tuple[Tensor, Tensor]:
    """The sum, empty without a branch, and its norm."""
    total, y = results = _like(x, branch, dtype)
    x, branch = x.contiguous(), None if branch is None else branch.contiguous()
    into = x if branch is None else total
    if not fused(x):
        native.residual_norm(x, branch, weight, bias, epsilon, centred, into, y)
        return results
    tensors = (x if t is None else t for t in (x, branch, weight, bias))
    flags = {"BRANCH": branch is not None, "WEIGHT": weight is not None, "BIAS": bias is not None}
    sizes = (x.shape[-1], epsilon)
    launch("gate.norm", (_rows(x),), *tensors, into, y, *sizes, CENTRED=centred, **flags, BLOCK=_block(x))
    return results


def _rows(x: Tensor) -> int:
    return x.numel() // x.shape[-1]


def _block(x: Tensor) -> int:
    return max(16, 1 << (x.shape[-1] - 1).bit_length())


def row_programs(x: Tensor) -> int:
    """Programs that share the rows of x, each of which sums gradients of parameters."""
    return min(_CPU_PROGRAMS if x.device.type == "cpu" else _PROGRAMS, _rows(x))


def _gradients_like(grad, grad_total, x, weight, biased, epsilon, centred, dtype, branch):
    return (
        x.new_empty(x.shape, dtype=dtype),
        x.new_empty(0 if branch == dtype else x.shape, dtype=branch),
        x.new_empty((row_programs(x), (weight is not None) + biased, x.shape[-1]), dtype=torch.float32),
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
    """Compute gradients of x, of the branch (empty for the same dtype), and of weight and bias, in parts."""
    grad, x, grad_total = grad.contiguous(), x.contiguous(), None if grad_total is None else grad_total.contiguous()
    dx, dbranch, parts = results = _gradients_like(grad, grad_total, x, weight, biased, epsilon, centred, dtype, branch)
    if not fused(x):
        of_branch = dbranch if dbranch.numel() else None
        native.residual_norm_gradients(grad, grad_total, x, weight, epsilon, centred, dx, of_branch, parts, biased)
        return results
    tensors = (grad, *(x if t is None else t for t in (grad_total, x, weight)))
    flags = {"TOTAL": grad_total is not None, "BRANCH": branch != dtype, "WEIGHT": weight is not None, "BIAS": biased}
    sizes = (_rows(x), x.shape[-1], epsilon)
    launch("gate.norm_gradients", (len(parts),), *tensors, *results, *sizes, CENTRED=centred, **flags, BLOCK=_block(x))
    return results
