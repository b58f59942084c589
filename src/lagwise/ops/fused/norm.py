"""A residual sum and its norm in one pass, by a kernel on a GPU or a loop in C."""

from __future__ import annotations

from collections.abc import Sequence

import torch
import torch.nn.functional as F
from torch import Tensor

from lagwise.ops import native
from lagwise.ops.fused import TritonEngine, fused, kernel
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
    def forward(
        x: Tensor,
        branch: Tensor | None,
        weight: Tensor | None,
        bias: Tensor | None,
        epsilon: float,
        centred: bool,
        dtype: torch.dtype,
    ) -> tuple[tuple[Tensor, Tensor], Values]:
        total, y = norm(x, branch, weight, bias, epsilon, centred, dtype)
        if branch is None:
            return (x, y), (x, None)
        return (total, y), (total, branch.new_empty(0))

    @staticmethod
    def backward(args: Values, saved: Values, grads: Values, needs_grad: Sequence[bool]) -> Values:
        _, _, weight, bias, epsilon, centred, _ = args
        (total, branch), (grad_total, grad) = saved, grads
        kind = total.dtype if branch is None else branch.dtype
        if grad is None:
            return grad_total, None if branch is None else _to(grad_total, kind), *[None] * 5
        arguments = (grad, grad_total, total, weight, bias is not None, epsilon, centred)
        dx, dbranch, parts = norm_gradients(*arguments, total.dtype, kind)
        if not dbranch.numel():  # both have one dtype, so the gradients are one tensor
            dbranch = dx
        sums = iter(parts.sum(0)) if parts.numel() else iter(())
        dweight, dbias = (None if p is None else next(sums).to(p.dtype) for p in (weight, bias))
        return dx, None if branch is None else dbranch, dweight, dbias, None, None, None

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


def _to(grad: Tensor | None, dtype: torch.dtype) -> Tensor | None:
    return None if grad is None else grad.to(dtype)


def _like(x, branch, weight, bias, epsilon, centred, dtype) -> tuple[Tensor, Tensor]:
    y = x.new_empty(x.shape, dtype=dtype)
    if branch is None:
        return x.new_empty(0), y
    return x.new_empty(x.shape, dtype=torch.promote_types(x.dtype, branch.dtype)), y


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
    total, y = results = _like(x, branch, weight, bias, epsilon, centred, dtype)
    x, branch = x.contiguous(), None if branch is None else branch.contiguous()
    if not fused(x):
        native.residual_norm(x, branch, weight, bias, epsilon, centred, x if branch is None else total, y)
        return results
    from lagwise.ops.fused import norm_kernels as kernels

    channels = x.shape[-1]
    kernels.norm[(x.numel() // channels,)](
        *(x if t is None else t for t in (x, branch, weight, bias)), x if branch is None else total, y, channels,
        epsilon, CENTRED=centred, BRANCH=branch is not None, WEIGHT=weight is not None, BIAS=bias is not None,
        BLOCK=_block(channels),
    )  # fmt: skip
    return results


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
