"""A small network of linear layers, norms and rectifiers in one launch: its tensors are small, so that on a GPU
launches take longer than the computing."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from lagwise.ops.fused import fused, kernel
from lagwise.ops.operation import differentiable, differentiable_gradients, graph_operator, in_graph

_WIDEST = 64  # features of a layer whose weight fits into the memory of a program
_ROWS, _PROGRAMS = 16, 256  # rows of a program at a time; programs of a gradient, each of which has one of all weights


def narrow(x: Tensor, hidden: int) -> bool:
    """Whether the kernels serve layers of so many features for x ``(n, inputs)``."""
    return max(hidden, x.shape[1]) <= _WIDEST and x.dtype == torch.float32 and fused(x)


def normed_relu_layers(x: Tensor, weights: Sequence[Tensor], biases: Sequence[Tensor], epsilon: float) -> Tensor:
    """``h <- relu(z / sqrt(mean(z²) + epsilon))`` with ``z = h W' + b`` for each layer, from ``h = x``.

    Shapes: x ``(n, inputs)``, weights ``(hidden, inputs)`` and then ``(hidden, hidden)``, biases ``(hidden,)``; such
    that the layers are `narrow`, and without autocast. Products are in TF32 where PyTorch's are
    (`torch.backends.cuda.matmul.fp32_precision`). In graphs, on any device and of any width and precision, it is one
    operator instead of a dozen loops to compile.
    """
    if in_graph():
        flat = torch.cat([each.flatten() for each in (*weights, *biases)])
        return _operator(x, flat, len(weights), biases[0].shape[0], epsilon)[0]
    return _Layers.apply(x, epsilon, *weights, *biases)


def _plain(x: Tensor, epsilon: float, *parameters: Tensor) -> Tensor:
    count = len(parameters) // 2
    return _layer_by_layer(x, parameters[:count], parameters[count:], epsilon)[0]


def _layer_by_layer(
    x: Tensor, weights: Sequence[Tensor], biases: Sequence[Tensor], epsilon: float
) -> tuple[Tensor, list[Tensor]]:
    """The last layer's output, and every layer's before its norm, by PyTorch."""
    sums: list[Tensor] = []
    for weight, bias in zip(weights, biases, strict=True):
        sums.append(F.linear(x, weight, bias))
        x = _normed(sums[-1], epsilon)[0].relu()
    return x, sums


class _Layers(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, epsilon: float, *parameters: Tensor) -> Tensor:
        flat, count = torch.cat([each.flatten() for each in parameters]), len(parameters) // 2
        y, sums = network_layers(x, flat, count, len(parameters[-1]), epsilon)
        ctx.save_for_backward(x, flat, sums, *parameters)
        ctx.epsilon = epsilon
        return y

    @staticmethod
    def backward(ctx: Any, grad: Tensor):
        x, flat, sums, *parameters = ctx.saved_tensors
        needs_grad = ctx.needs_input_grad
        if differentiable():
            return tuple(differentiable_gradients(_plain, (x, ctx.epsilon, *parameters), needs_grad, [grad]))
        dx, parts = network_gradients(grad, x, flat, sums, ctx.epsilon, needs_grad[0])
        gradients = parts.sum(0).split_with_sizes([each.numel() for each in parameters])
        grads = (part.view(each.shape) for part, each in zip(gradients, parameters, strict=True))
        return dx if needs_grad[0] else None, None, *grads


def _sizes(x: Tensor, hidden: int, count: int) -> dict[str, Any]:
    inputs, hidden = (max(16, 1 << (size - 1).bit_length()) for size in (x.shape[1], hidden))
    rounded = torch.backends.cuda.matmul.fp32_precision == "tf32"
    return {
        "COUNT": count, "INPUTS": inputs, "HIDDEN": hidden, "ROWS": _ROWS, "PRECISION": "tf32" if rounded else "ieee",
        "num_warps": 8,  # with 4, weights of 64 features do not fit into the registers of a program
    }  # fmt: skip


@kernel(
    lambda x, flat, count, hidden, epsilon: (x.new_empty(x.shape[0], hidden), x.new_empty(count, x.shape[0], hidden))
)
def network_layers(x: Tensor, flat: Tensor, count: int, hidden: int, epsilon: float) -> tuple[Tensor, Tensor]:
    """The last layer's output, and every layer's before its norm. flat: weights and biases of all layers."""
    from lagwise.ops.fused import network_kernels as kernels

    y, sums = x.new_empty(x.shape[0], hidden), x.new_empty(count, x.shape[0], hidden)
    kernels.layers[(-(-len(x) // _ROWS),)](
        x.contiguous(), flat, sums, y, *x.shape, hidden, epsilon, **_sizes(x, hidden, count)
    )
    return y, sums


def _gradients_like(grad, x, flat, sums, epsilon, needs_dx) -> tuple[Tensor, Tensor]:
    return x.new_empty(x.shape if needs_dx else 0), flat.new_empty(_programs(x), flat.shape[0])


def _programs(x: Tensor) -> int:
    return min(_PROGRAMS, -(-x.shape[0] // _ROWS))  # `len` would fix the size in a graph


@kernel(_gradients_like)
def network_gradients(
    grad: Tensor, x: Tensor, flat: Tensor, sums: Tensor, epsilon: float, needs_dx: bool
) -> tuple[Tensor, Tensor]:
    """Gradients of x, if it needs one, and of the parameters, in parts."""
    from lagwise.ops.fused import network_kernels as kernels

    dx, parts = _gradients_like(grad, x, flat, sums, epsilon, needs_dx)
    count, _, hidden = sums.shape
    kernels.layer_gradients[(_programs(x),)](
        grad.contiguous(), x.contiguous(), flat, sums, dx, parts, *x.shape, hidden, epsilon,
        **_sizes(x, hidden, count), DX=needs_dx,
    )  # fmt: skip
    return dx, parts


def _parts(flat: Tensor, inputs: int, hidden: int, count: int) -> tuple[Sequence[Tensor], Sequence[Tensor]]:
    """Weights and biases of all layers."""
    sizes = [hidden * inputs, *[hidden * hidden] * (count - 1), *[hidden] * count]
    parts = flat.split_with_sizes(sizes)
    return [part.view(hidden, -1) for part in parts[:count]], parts[count:]


def _normed(z: Tensor, epsilon: float) -> tuple[Tensor, Tensor]:
    factor = (z.square().mean(-1, keepdim=True) + epsilon).rsqrt()
    return z * factor, factor


def _compute(x: Tensor, flat: Tensor, count: int, hidden: int, epsilon: float) -> tuple[Tensor, Tensor]:
    if narrow(x, hidden):
        return network_layers(x, flat, count, hidden, epsilon)
    y, sums = _layer_by_layer(x, *_parts(flat, x.shape[1], hidden, count), epsilon)
    return y, torch.stack(sums)


def _gradients(
    grad: Tensor, x: Tensor, flat: Tensor, sums: Tensor, count: int, hidden: int, epsilon: float
) -> tuple[Tensor, Tensor]:
    if narrow(x, hidden):
        dx, parts = network_gradients(grad, x, flat, sums, epsilon, True)
        return dx, parts.sum(0)
    weights, _ = _parts(flat, x.shape[1], hidden, count)
    by_weight, by_bias = [], []
    for i in reversed(range(count)):
        v, factor = _normed(sums[i], epsilon)
        grad = grad.masked_fill(v <= 0, 0)
        grad = (grad - v * (grad * v).mean(-1, keepdim=True)) * factor
        before = _normed(sums[i - 1], epsilon)[0].relu() if i else x
        by_weight.append((grad.t() @ before).flatten())
        by_bias.append(grad.sum(0))
        grad = grad @ weights[i]
    return grad, torch.cat([*reversed(by_weight), *reversed(by_bias)])


_operator = graph_operator(
    "normed_relu_layers",
    _compute,
    _gradients,
    lambda x, flat, count, hidden, epsilon: (
        x.new_empty(x.shape[0], hidden),
        x.new_empty(count, x.shape[0], hidden),
    ),
    tensors="x flat",
    numbers="SymInt count, SymInt hidden, float epsilon",
    kept="sums",
)
