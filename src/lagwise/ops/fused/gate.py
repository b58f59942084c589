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
        shaped = biases is None or biases.shape == (2, gate.shape[-1])
        return same and shaped and TritonEngine.serves(gate, value, biases)

    @staticmethod
    def forward(gate: Tensor, value: Tensor, biases: Tensor | None) -> tuple[Tensor, Values]:
        return silu_product_kernel(gate, value, biases), ()

    @staticmethod
    def backward(args: Values, saved: Values, grads: Values, needs_grad: Sequence[bool]) -> Values:
        gate, _, biases = args
        both, parts = silu_product_gradients(grads[0], *args)
        found = both.split_with_sizes([gate.shape[-1]] * 2, dim=-1)
        return *found, None if biases is None else parts.sum(0).to(biases.dtype)


def _launch(name: str, biases: Tensor | None, results: Sequence[Tensor], *signals: Tensor) -> None:
    """Launch a program for each tile of signals, of which the last two are gate and value."""
    rows = [rows_of(signal) for signal in signals]
    grid = tuple(-(-size // each) for size, each in zip(rows[0].shape, _TILE.values(), strict=True))
    added = rows[0] if biases is None else biases.contiguous()
    strides = (each.stride(0) for each in rows)
    launch(f"gate.{name}", grid, *rows, added, *results, *rows[-1].shape, *strides, BIASES=biases is not None, **_TILE)


@kernel(lambda gate, value, biases: gate.new_empty(gate.shape))
def silu_product_kernel(gate: Tensor, value: Tensor, biases: Tensor | None) -> Tensor:
    y = gate.new_empty(gate.shape)
    _launch("silu_product", biases, [y], gate, value)
    return y


def _product_gradients(grad: Tensor, gate: Tensor, value: Tensor, biases: Tensor | None) -> tuple[Tensor, Tensor]:
    channels = gate.shape[-1]
    parts = 0 if biases is None else -(-(gate.numel() // channels) // _TILE["ROWS"])
    both = gate.new_empty((*gate.shape[:-1], 2 * channels))
    return both, gate.new_empty((parts, 2, channels), dtype=torch.float32)


@kernel(_product_gradients)
def silu_product_gradients(grad: Tensor, gate: Tensor, value: Tensor, biases: Tensor | None) -> tuple[Tensor, Tensor]:
    """Gradients of gate and value, side by side, and those of biases in parts."""
    results = _product_gradients(grad, gate, value, biases)
    _launch("silu_product_gradients", biases, results, grad, gate, value)
    return results


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
    """Gradients of x, of update, and of the sum of candidate and branch."""
    dx, dupdate, inner = results = _update_gradients(grad, x, update, candidate, branch)
    _launch_update("gated_update_gradients", [grad, x], [update, candidate, branch], results)
    return dx, dupdate, inner
