"""Gates and norms, in one pass over memory where the C loops are available."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from lagwise.ops import native
from lagwise.ops.fused import fused
from lagwise.ops.fused.layers import SiluProduct, joint_linear, residual_norm
from lagwise.ops.operation import Engine, Values, intercepted, is_plain_parameter, operation

_FORWARD = nn.Linear.forward


def apply_linear(x: Tensor, *layers: Any) -> tuple[list[Tensor], Tensor | None]:
    """Apply linear layers to x, where possible without adding their biases, which a loop in C adds in the same pass.

    Returns the layers' outputs and None; or, where these are used and every layer is a plain `torch.nn.Linear` with a
    bias, x times the weights alone, in tensors that nothing else holds, and the biases ``(layers, channels)``.
    """
    if not native.serves(x, min_elements=native.MIN_ELEMENTS) or not _plain_linears(x, layers):
        return linears(x, *layers), None
    return [F.linear(x, layer.weight) for layer in layers], torch.stack([layer.bias for layer in layers])


def linears(x: Tensor, *layers: Any, sizes: Sequence[int] | None = None) -> list[Tensor]:
    """Apply linear layers to x; on a GPU as one matrix product, in parts of these sizes if any are given."""
    if fused(x) and _plain_linears(x, layers, biased=False):
        return joint_linear(x, [layer.weight for layer in layers], [layer.bias for layer in layers], sizes)
    return [layer(x) for layer in layers]


def split_linear(x: Tensor, layer: Any, sizes: Sequence[int]) -> Sequence[Tensor]:
    """``layer(x)`` in parts of these sizes, along the channels."""
    parts = linears(x, layer, sizes=sizes)
    return parts if len(parts) == len(sizes) else parts[0].split(list(sizes), dim=-1)


@operation
def silu_product(gate: Tensor, value: Tensor, biases: Tensor | None = None) -> Tensor:
    """``silu(gate) * value``, for tensors of one shape; biases ``(2, channels)``, if any, are added to gate and value
    before.

    PyTorch takes two passes over memory, and three for the gradients; loops in C, and kernels on a GPU, one and one.

    ValueError for biases of another shape or on another device.
    """
    gate, value = with_biases(gate, value, biases)
    return F.silu(gate) * value


silu_product.engine("triton")(SiluProduct)


@silu_product.engine("loop")
class _SiluProduct(Engine):
    evaluate = staticmethod(lambda *args: native.silu_product(*args))

    @staticmethod
    def serves(gate: Tensor, value: Tensor, biases: Tensor | None) -> bool:
        same = gate.shape == value.shape and gate.dtype == value.dtype and fitting(biases, gate)
        return same and native.serves(gate, value, min_elements=native.MIN_ELEMENTS)

    @staticmethod
    def backward(args: Values, saved: Values, grads: Values, needs_grad: Sequence[bool]) -> Values:
        dgate, dvalue, dbiases = native.silu_product_gradients(grads[0], *args)
        return dgate, dvalue, dbiases if needs_grad[2] else None


def fitting(biases: Tensor | None, gate: Tensor) -> bool:
    """Whether biases are None, or ``(2, channels)`` on the gate's device."""
    return biases is None or (biases.shape == (2, gate.shape[-1]) and biases.device == gate.device)


def with_biases(gate: Tensor, value: Tensor, biases: Tensor | None) -> tuple[Tensor, Tensor]:
    """Gate and value with biases ``(2, channels)`` added, if any. ValueError for others."""
    if biases is None:
        return gate, value
    if not fitting(biases, gate):
        raise ValueError(
            f"biases must be (2, channels={gate.shape[-1]}) on {gate.device}, got {tuple(biases.shape)} on "
            f"{biases.device}"
        )
    return gate + biases[0].to(gate.dtype), value + biases[1].to(value.dtype)


def rms_norm(x: Tensor, epsilon: float) -> Tensor:
    """``x / sqrt(mean(x²) + epsilon)`` over the last axis."""
    return residual_norm(x, None, None, None, epsilon, False, x.dtype)[1]


def _plain_linears(x: Tensor, layers: Sequence[Any], *, biased: bool = True) -> bool:
    if nn.Linear.forward is not _FORWARD or intercepted():
        return False
    device = x.device
    return all(_plain_linear(layer, device, biased) for layer in layers)


def _plain_linear(layer: Any, device: torch.device, biased: bool) -> bool:
    """Whether a module computes ``x W' + b`` and nothing else: other libraries replace layers, weights and `forward`,
    and add hooks. biased: whether there must be a bias."""
    if type(layer) is not nn.Linear or "forward" in vars(layer):
        return False
    if layer._forward_hooks or layer._forward_pre_hooks or layer._backward_hooks or layer._backward_pre_hooks:
        return False
    weight, bias = layer.weight, layer.bias
    for part in (weight, bias) if biased or bias is not None else (weight,):
        if not is_plain_parameter(part) or part.device != device:
            return False
    return True
