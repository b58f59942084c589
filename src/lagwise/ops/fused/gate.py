"""Gates in one pass."""

from __future__ import annotations

from collections.abc import Sequence

import torch
import torch.nn.functional as F
from torch import Tensor

from lagwise.ops.fused import TritonEngine, kernel, launch, rows_of
from lagwise.ops.operation import Values, operation

_BLOCK = 1024  # numbers of a program
_TILE = {"ROWS": 64, "CHANNELS": 64}


class SiluProduct(TritonEngine):
    """`lagwise.ops.tokens.silu_product`. Gradients of gate and value are neighbours in memory, for
    `lagwise.ops.fused.joined`."""

    @staticmethod
    def serves(gate: Tensor, value: Tensor, biases: Tensor | None) -> bool:
        same = gate.shape == value.shape and gate.dtype == value.dtype
        return biases is None and same and TritonEngine.serves(gate, value)

    @staticmethod
    def forward(gate: Tensor, value: Tensor, biases: Tensor | None) -> tuple[Tensor, Values]:
        return silu_product_kernel(gate, value), ()

    @staticmethod
    def backward(args: Values, saved: Values, grads: Values, needs_grad: Sequence[bool]) -> Values:
        both = silu_product_gradients(grads[0], *args[:2])
        return both.split_with_sizes([args[0].shape[-1]] * 2, dim=-1)


def _launch(name: str, result: Tensor, *signals: Tensor) -> Tensor:
    """Launch a program for each tile of signals."""
    rows = [rows_of(signal) for signal in signals]
    grid = tuple(-(-size // each) for size, each in zip(rows[0].shape, _TILE.values(), strict=True))
    strides = (each.stride(0) for each in rows)
    launch(f"gate.{name}", grid, *rows, result, *rows[0].shape, *strides, **_TILE)
    return result


@kernel(lambda gate, value: gate.new_empty(gate.shape))
def silu_product_kernel(gate: Tensor, value: Tensor) -> Tensor:
    return _launch("silu_product", gate.new_empty(gate.shape), gate, value)


@kernel(lambda grad, gate, value: gate.new_empty((*gate.shape[:-1], 2 * gate.shape[-1])))
def silu_product_gradients(grad: Tensor, gate: Tensor, value: Tensor) -> Tensor:
    """Compute gradients of gate and value, side by side."""
    both = gate.new_empty((*gate.shape[:-1], 2 * gate.shape[-1]))
    return _launch("silu_product_gradients", both, grad, gate, value)


@operation
def gated_update(x: Tensor, update: Tensor, candidate: Tensor, branch: Tensor) -> Tensor:
    """``x + sigmoid(update) (silu(candidate + branch) - x)`` for tensors ``(..., channels)``; result like x."""
    return torch.lerp(x, F.silu(candidate + branch).to(x.dtype), update.sigmoid().to(x.dtype))


@gated_update.engine("triton")
class _Update(TritonEngine):
    @staticmethod
    def forward(x: Tensor, update: Tensor, candidate: Tensor, branch: Tensor) -> tuple[Tensor, Values]:
        return gated_update_kernel(x, update, candidate, branch), ()

    @staticmethod
    def backward(args: Values, saved: Values, grads: Values, needs_grad: Sequence[bool]) -> Values:
        dx, dupdate, inner = gated_update_gradients(grads[0], *args)
        return dx, dupdate, inner, inner.to(args[3].dtype)


def _launch_update(name: str, signals: Sequence[Tensor], others: Sequence[Tensor], results: Sequence[Tensor]) -> None:
    x, rows = signals[0], [rows_of(t) for t in others]
    sizes = (x.numel(), x.shape[-1], *(t.stride(0) for t in rows))
    grid = (-(-x.numel() // _BLOCK),)
    launch(f"gate.{name}", grid, *(t.contiguous() for t in signals), *rows, *results, *sizes, BLOCK=_BLOCK)


@kernel(lambda x, *_: x.new_empty(x.shape))
def gated_update_kernel(x: Tensor, update: Tensor, candidate: Tensor, branch: Tensor) -> Tensor:
    y = x.new_empty(x.shape)
    _launch_update("gated_update", [x], [update, candidate, branch], [y])
    return y


def _update_gradients(grad: Tensor, x: Tensor, update: Tensor, candidate: Tensor, _: Tensor) -> tuple[Tensor, ...]:
    return x.new_empty(x.shape), update.new_empty(update.shape), candidate.new_empty(candidate.shape)


@kernel(_update_gradients)
def gated_update_gradients(
    grad: Tensor, x: Tensor, update: Tensor, candidate: Tensor, branch: Tensor
) -> tuple[Tensor, Tensor, Tensor]:
    """Compute gradients of x, of update, and of the sum of candidate and branch."""
    dx, dupdate, inner = results = _update_gradients(grad, x, update, candidate, branch)
    _launch_update("gated_update_gradients", [grad, x], [update, candidate, branch], results)
    return dx, dupdate, inner
