"""A small network of linear layers, norms and rectifiers as one node of autograd: its tensors are small, so that on a
GPU the host's work for each node takes longer than the computing."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from lagwise.ops.bilinear import differentiable, differentiable_gradients
from lagwise.ops.fused.norm import norm, norm_gradients


def normed_relu_layers(x: Tensor, weights: Sequence[Tensor], biases: Sequence[Tensor], epsilon: float) -> Tensor:
    """``h <- relu(z / sqrt(mean(z²) + epsilon))`` with ``z = h W' + b`` for each layer, from ``h = x``.

    Shapes: x ``(n, inputs)``; weights ``(outputs, inputs)``; biases ``(outputs,)``; all of one dtype, without autocast.
    """
    return _Layers.apply(x, epsilon, *weights, *biases)


def _plain(x: Tensor, epsilon: float, *parameters: Tensor) -> Tensor:
    count = len(parameters) // 2
    for weight, bias in zip(parameters[:count], parameters[count:], strict=True):
        z = F.linear(x, weight, bias)
        x = F.rms_norm(z, z.shape[-1:], eps=epsilon).relu()
    return x


class _Layers(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, epsilon: float, *parameters: Tensor) -> Tensor:
        count, hidden, sums = len(parameters) // 2, [x], []
        for weight, bias in zip(parameters[:count], parameters[count:], strict=True):
            sums.append(torch.addmm(bias, hidden[-1], weight.t()))
            hidden.append(norm(sums[-1], None, None, epsilon, False, x.dtype, True))
        ctx.save_for_backward(*parameters, *hidden[:-1], *sums)
        ctx.epsilon = epsilon
        return hidden[-1]

    @staticmethod
    def backward(ctx: Any, grad: Tensor):
        saved = ctx.saved_tensors  # read once: gradient checkpointing frees what it has given
        count = len(saved) // 4
        parameters, weights, hidden, sums = (
            saved[: 2 * count], saved[:count], saved[2 * count : 3 * count], saved[3 * count :],
        )  # fmt: skip
        if differentiable():
            inputs = (hidden[0], ctx.epsilon, *parameters)
            return tuple(differentiable_gradients(_plain, inputs, ctx.needs_input_grad, [grad]))
        by_weight, by_bias = [], []
        for i in reversed(range(count)):
            inner, *_ = norm_gradients(
                grad, None, sums[i], None, False, ctx.epsilon, False, grad.dtype, grad.dtype, True
            )
            by_weight.append(torch.mm(inner.t(), hidden[i]))
            by_bias.append(inner.sum(0))
            if i or ctx.needs_input_grad[0]:
                grad = torch.mm(inner, weights[i])
        return grad if ctx.needs_input_grad[0] else None, None, *reversed(by_weight), *reversed(by_bias)
