"""Linear layers of one input, gates, and a residual sum with its norm, in one pass each: by a kernel on a GPU, and the
last by a loop in C, too."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, ClassVar

import torch
import torch.nn.functional as F
from torch import Tensor

from lagwise.ops import native
from lagwise.ops.fused import TritonEngine, autocast_dtype, joined, kernel, launch, rows_of
from lagwise.ops.operation import Engine, Values, operation

_BLOCK = 1024  # numbers of a program
_TILE = {"ROWS": 64, "CHANNELS": 64}
_CAST = 4  # tensors of a launch


class SiluProduct(TritonEngine):
    """`lagwise.ops.tokens.silu_product`. Gradients of gate and value are neighbours in memory, for
    `lagwise.ops.fused.joined`."""

    @staticmethod
    def serves(gate: Tensor, value: Tensor, biases: Tensor | None) -> bool:
        same = gate.shape == value.shape and gate.dtype == value.dtype
        return biases is None and same and TritonEngine.serves(gate, value)

    evaluate = staticmethod(lambda gate, value, _: silu_product_kernel(gate, value))

    @staticmethod
    def backward(args: Values, saved: Values, grads: Values, needs_grad: Sequence[bool]) -> Values:
        both = silu_product_gradients(grads[0], *args[:2])
        return both.split_with_sizes([args[0].shape[-1]] * 2, dim=-1)


def _launch(name: str, result: Tensor, *signals: Tensor) -> None:
    """Launch a program for each tile of signals."""
    rows = [rows_of(signal) for signal in signals]
    grid = tuple(-(-size // each) for size, each in zip(rows[0].shape, _TILE.values(), strict=True))
    strides = (each.stride(0) for each in rows)
    launch(f"layers.{name}", grid, *rows, result, *rows[0].shape, *strides, **_TILE)


@kernel(lambda gate, _: gate.new_empty(gate.shape))
def silu_product_kernel(gate: Tensor, value: Tensor, *, y: Tensor) -> None:
    _launch("silu_product", y, gate, value)


@kernel(lambda _, gate, __: gate.new_empty((*gate.shape[:-1], 2 * gate.shape[-1])))
def silu_product_gradients(grad: Tensor, gate: Tensor, value: Tensor, *, both: Tensor) -> None:
    """Compute gradients of gate and value, side by side."""
    _launch("silu_product_gradients", both, grad, gate, value)


@operation
def gated_update(x: Tensor, update: Tensor, candidate: Tensor, branch: Tensor) -> Tensor:
    """``x + sigmoid(update) (silu(candidate + branch) - x)`` for tensors ``(..., channels)``; result like x."""
    return torch.lerp(x, F.silu(candidate + branch).to(x.dtype), update.sigmoid().to(x.dtype))


@gated_update.engine("triton")
class _Update(TritonEngine):
    evaluate = staticmethod(lambda *args: gated_update_kernel(*args))

    @staticmethod
    def backward(args: Values, saved: Values, grads: Values, needs_grad: Sequence[bool]) -> Values:
        dx, dupdate, inner = gated_update_gradients(grads[0], *args)
        return dx, dupdate, inner, inner.to(args[3].dtype)


def _launch_update(name: str, signals: Sequence[Tensor], others: Sequence[Tensor], *results: Tensor) -> None:
    x, rows = signals[0], [rows_of(t) for t in others]
    sizes = (x.numel(), x.shape[-1], *(t.stride(0) for t in rows))
    grid = (-(-x.numel() // _BLOCK),)
    launch(f"layers.{name}", grid, *(t.contiguous() for t in signals), *rows, *results, *sizes, BLOCK=_BLOCK)


@kernel(lambda x, *_: x.new_empty(x.shape))
def gated_update_kernel(x: Tensor, update: Tensor, candidate: Tensor, branch: Tensor, *, y: Tensor) -> None:
    _launch_update("gated_update", [x], [update, candidate, branch], y)


@kernel(lambda _, *tensors: tuple(each.new_empty(each.shape) for each in tensors[:3]))
def gated_update_gradients(
    grad: Tensor, x: Tensor, update: Tensor, candidate: Tensor, branch: Tensor,
    *, dx: Tensor, dupdate: Tensor, inner: Tensor,
) -> None:  # fmt: skip
    """Compute gradients of x, of update, and of the sum of candidate and branch."""
    _launch_update("gated_update_gradients", [grad, x], [update, candidate, branch], dx, dupdate, inner)


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


@kernel(native.norm_like)
def norm(
    x: Tensor, branch: Tensor | None, weight: Tensor | None, bias: Tensor | None, epsilon: float, centred: bool,
    dtype: torch.dtype, *, total: Tensor, y: Tensor,
) -> None:  # fmt: skip
    x, branch = x.contiguous(), None if branch is None else branch.contiguous()
    tensors = (x if t is None else t for t in (x, branch, weight, bias))
    flags = {"BRANCH": branch is not None, "WEIGHT": weight is not None, "BIAS": bias is not None}
    sizes, into = (x.shape[-1], epsilon), x if branch is None else total
    launch("layers.norm", (_rows(x),), *tensors, into, y, *sizes, CENTRED=centred, **flags, BLOCK=_block(x))


@kernel(native.norm_gradients_like)
def norm_gradients(
    grad: Tensor, grad_total: Tensor | None, x: Tensor, weight: Tensor | None, biased: bool, epsilon: float,
    centred: bool, dtype: torch.dtype, branch: torch.dtype, *, dx: Tensor, dbranch: Tensor, parts: Tensor,
) -> None:  # fmt: skip
    grad, x, grad_total = grad.contiguous(), x.contiguous(), None if grad_total is None else grad_total.contiguous()
    tensors = (grad, *(x if t is None else t for t in (grad_total, x, weight)))
    flags = {"TOTAL": grad_total is not None, "BRANCH": branch != dtype, "WEIGHT": weight is not None, "BIAS": biased}
    sizes = (_rows(x), x.shape[-1], epsilon)
    launch(
        "layers.norm_gradients", (len(parts),), *tensors, dx, dbranch, parts, *sizes, CENTRED=centred, **flags,
        BLOCK=_block(x),
    )  # fmt: skip


def _rows(x: Tensor) -> int:
    return x.numel() // x.shape[-1]


def _block(x: Tensor) -> int:
    return max(16, 1 << (x.shape[-1] - 1).bit_length())


@residual_norm.engine("triton")
class _Kernel(Engine):
    unsaved = (0, 1)  # the sum is enough
    serves = TritonEngine.serves
    norm: ClassVar[Callable[..., Any]] = staticmethod(norm)
    gradients: ClassVar[Callable[..., Any]] = staticmethod(norm_gradients)

    @classmethod
    def forward(cls, *args: Any) -> tuple[tuple[Tensor, Tensor], Values]:
        (x, branch), (total, y) = args[:2], cls.norm(*args)
        return ((x, y), (x, None)) if branch is None else ((total, y), (total, branch.new_empty(0)))

    @classmethod
    def backward(cls, args: Values, saved: Values, grads: Values, needs_grad: Sequence[bool]) -> Values:
        _, _, weight, bias, epsilon, centred, _ = args
        (total, branch), (grad_total, grad) = saved, grads
        kind = total.dtype if branch is None else branch.dtype
        if grad is None:
            return grad_total, None if branch is None else grad_total.to(kind)
        arguments = (grad, grad_total, total, weight, bias is not None, epsilon, centred)
        dx, dbranch, parts = cls.gradients(*arguments, total.dtype, kind)
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


@residual_norm.engine("loop")
class _Loop(_Kernel):
    norm = staticmethod(lambda *args: native.residual_norm(*args))
    gradients = staticmethod(lambda *args: native.residual_norm_gradients(*args))

    @staticmethod
    def serves(x: Tensor, branch: Tensor | None, *_: object) -> bool:
        return native.serves(x, x if branch is None else branch, min_elements=native.MIN_ELEMENTS)


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
def cast_weights(
    weights: list[Tensor], biases: list[Tensor], dtype: torch.dtype, *, weight: Tensor, bias: Tensor
) -> None:
    sources = [each.contiguous() for each in (*weights, *biases)]
    targets = [*_parts(weight, weights), *(_parts(bias, biases) if biases else ())]
    for start in range(0, len(sources), _CAST):
        some, into = sources[start : start + _CAST], targets[start : start + _CAST]
        counts, unused = [each.numel() for each in some], _CAST - len(some)
        grid = (-(-max(counts) // _BLOCK), len(some))
        tensors = (*some, *some[:1] * unused, *into, *into[:1] * unused)
        launch("layers.cast", grid, *tensors, *counts, *[0] * unused, BLOCK=_BLOCK)


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
