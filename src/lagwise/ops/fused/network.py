"""A small network of linear layers, norms and rectifiers in one launch: its tensors are small, so that on a GPU
launches take longer than the computing."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from lagwise.ops.fused import TritonEngine, kernel, launch
from lagwise.ops.operation import Engine, Values, in_graph, operation

_WIDEST = 64  # features of a layer whose weight fits into the memory of a program
_ROWS, _PROGRAMS = 16, 256  # rows of a program at a time; programs of a gradient, each of which has one of all weights


def at_once(x: Tensor, hidden: int) -> bool:
    """Whether `normed_relu_layers` is for layers of so many features of x ``(n, inputs)``."""
    return in_graph() or _AtOnce.serves(x, x, 1, hidden, 0.0)


def normed_relu_layers(x: Tensor, weights: Sequence[Tensor], biases: Sequence[Tensor], epsilon: float) -> Tensor:
    """``h <- relu(z / sqrt(mean(z²) + epsilon))`` with ``z = h W' + b`` for each layer, from ``h = x``.

    Shapes: x ``(n, inputs)``, weights ``(hidden, inputs)`` and then ``(hidden, hidden)``, biases ``(hidden,)``; such
    as autocast leaves alone. In kernels, products are in TF32 where PyTorch's are
    (`torch.backends.cuda.matmul.fp32_precision`). In graphs, on any device and of any width and precision, it is one
    operator instead of a dozen loops to compile.
    """
    return _layers(x, _flat(*weights, *biases), len(weights), len(biases[0]), epsilon)


@operation
def _flat(*parameters: Tensor) -> Tensor:
    return torch.cat([each.flatten() for each in parameters])


@_flat.engine("split")
class _Flat(Engine):
    """A node of autograd instead of one for each parameter."""

    evaluate = staticmethod(_flat.plain)

    @staticmethod
    def backward(args: Values, saved: Values, grads: Values, needs_grad: Sequence[bool]) -> Values:
        parts = grads[0].split_with_sizes([each.numel() for each in args])
        return [part.view(each.shape) for part, each in zip(parts, args, strict=True)]


@operation
def _layers(x: Tensor, flat: Tensor, count: int, hidden: int, epsilon: float) -> Tensor:
    return _layer_by_layer(x, flat, count, hidden, epsilon)[0]


def _layer_by_layer(x: Tensor, flat: Tensor, count: int, hidden: int, epsilon: float) -> tuple[Tensor, Tensor]:
    """The last layer's output, and every layer's before its norm, by PyTorch."""
    sums: list[Tensor] = []
    for weight, bias in zip(*_parts(flat, x.shape[1], hidden, count), strict=True):
        sums.append(F.linear(x, weight, bias))
        x = _normed(sums[-1], epsilon)[0].relu()
    return x, torch.stack(sums)


def _parts(flat: Tensor, inputs: int, hidden: int, count: int) -> tuple[Sequence[Tensor], Sequence[Tensor]]:
    """Return weights and biases of all layers."""
    sizes = [hidden * inputs, *[hidden * hidden] * (count - 1), *[hidden] * count]
    parts = flat.split_with_sizes(sizes)
    return [part.view(hidden, -1) for part in parts[:count]], parts[count:]


def _normed(z: Tensor, epsilon: float) -> tuple[Tensor, Tensor]:
    factor = (z.square().mean(-1, keepdim=True) + epsilon).rsqrt()
    return z * factor, factor


@_layers.engine("triton")
class _AtOnce(Engine):
    """The kernels, or in graphs the same in PyTorch. Eagerly, layers of `lagwise.kernels.rpe` are faster than the
    latter."""

    @staticmethod
    def serves(x: Tensor, flat: Tensor, count: int, hidden: int, epsilon: float) -> bool:
        return max(hidden, x.shape[1]) <= _WIDEST and x.dtype == torch.float32 and TritonEngine.serves(x, flat)

    @classmethod
    def forward(cls, *args: Any) -> tuple[Tensor, Values]:
        y, sums = network_layers(*args) if cls.serves(*args) else _layer_by_layer(*args)
        return y, (sums,)

    @classmethod
    def backward(cls, args: Values, saved: Values, grads: Values, needs_grad: Sequence[bool]) -> Values:
        (x, flat, count, hidden, epsilon), (sums,), (grad,) = args, saved, grads
        if cls.serves(*args):
            dx, parts = network_gradients(grad, x, flat, sums, epsilon, needs_grad[0])
            return dx if needs_grad[0] else None, parts.sum(0)
        weights, _ = _parts(flat, x.shape[1], hidden, count)
        by_weight, by_bias = [], []
        for i in reversed(range(count)):
            v, factor = _normed(sums[i], epsilon)
            grad = grad.masked_fill(v <= 0, 0)
            grad = (grad - v * (grad * v).mean(-1, keepdim=True)) * factor
            before = _normed(sums[i - 1], epsilon)[0].relu() if i else x
            by_weight.append((grad.t() @ before).reshape(-1))
            by_bias.append(grad.sum(0))
            grad = grad @ weights[i]
        return grad, torch.cat([*reversed(by_weight), *reversed(by_bias)])


def _like(x: Tensor, flat: Tensor, count: int, hidden: int, epsilon: float) -> tuple[Tensor, Tensor]:
    return x.new_empty(x.shape[0], hidden), x.new_empty(count, x.shape[0], hidden)


_layers.in_graphs("normed_relu_layers", _like, engine=_AtOnce, saved="sums")


def _sizes(x: Tensor, hidden: int, count: int) -> dict[str, Any]:
    inputs, hidden = (max(16, 1 << (size - 1).bit_length()) for size in (x.shape[1], hidden))
    rounded = torch.backends.cuda.matmul.fp32_precision == "tf32"
    return {
        "COUNT": count, "INPUTS": inputs, "HIDDEN": hidden, "ROWS": _ROWS, "PRECISION": "tf32" if rounded else "ieee",
        "num_warps": 8,  # with 4, weights of 64 features do not fit into the registers of a program
    }  # fmt: skip


@kernel(_like)
def network_layers(
    x: Tensor, flat: Tensor, count: int, hidden: int, epsilon: float, *, y: Tensor, sums: Tensor
) -> None:
    """The last layer's output, and every layer's before its norm. flat: weights and biases of all layers."""
    arguments = (x.contiguous(), flat, sums, y, *x.shape, hidden, epsilon)
    launch("network.layers", (-(-len(x) // _ROWS),), *arguments, **_sizes(x, hidden, count))


def _gradients_like(grad, x, flat, sums, epsilon, needs_dx) -> tuple[Tensor, Tensor]:
    return x.new_empty(x.shape if needs_dx else 0), flat.new_empty(_programs(x), flat.shape[0])


def _programs(x: Tensor) -> int:
    return min(_PROGRAMS, -(-x.shape[0] // _ROWS))  # `len` would fix the size in a graph


@kernel(_gradients_like)
def network_gradients(
    grad: Tensor, x: Tensor, flat: Tensor, sums: Tensor, epsilon: float, needs_dx: bool, *, dx: Tensor, parts: Tensor
) -> None:
    """Compute gradients of x, if it needs one, and of the parameters, in parts."""
    count, _, hidden = sums.shape
    arguments = (grad.contiguous(), x.contiguous(), flat, sums, dx, parts, *x.shape, hidden, epsilon)
    launch("network.layer_gradients", (_programs(x),), *arguments, **_sizes(x, hidden, count), DX=needs_dx)
