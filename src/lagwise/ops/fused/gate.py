"""Gates in one pass."""

from __future__ import annotations

from collections.abc import Sequence

import torch
import torch.nn.functional as F
from torch import Tensor

from lagwise.ops.fused import fused, kernel, rows_of
from lagwise.ops.operation import Engine, Values, operation

BLOCK = 1024  # numbers of a program
_ROWS, _CHANNELS = 64, 64


class SiluProduct(Engine):
    """`lagwise.ops.tokens.silu_product`. Gradients of gate and value are neighbours in memory, for
    `lagwise.ops.fused.joined`."""

    @staticmethod
    def serves(gate: Tensor, value: Tensor, biases: Tensor | None) -> bool:
        same = gate.shape == value.shape and gate.dtype == value.dtype
        return same and fused(gate, value) and (biases is None or biases.shape == (2, gate.shape[-1]))

    @staticmethod
    def forward(gate: Tensor, value: Tensor, biases: Tensor | None) -> tuple[Tensor, Values]:
        return silu_product_kernel(gate, value, biases), ()

    @staticmethod
    def backward(args: Values, saved: Values, grads: Values, needs_grad: Sequence[bool]) -> Values:
        gate, value, biases = args
        both, parts = silu_product_gradients(grads[0], gate, value, biases)
        found = both.split_with_sizes([gate.shape[-1]] * 2, dim=-1)
        return *found, None if biases is None else parts.sum(0).to(biases.dtype)


@kernel(lambda gate, value, biases: gate.new_empty(gate.shape))
def silu_product_kernel(gate: Tensor, value: Tensor, biases: Tensor | None) -> Tensor:
    from lagwise.ops.fused import gate_kernels as kernels

    g, v, y = rows_of(gate), rows_of(value), gate.new_empty(gate.shape)
    kernels.silu_product[_tiles(g)](
        g, v, g if biases is None else biases.contiguous(), y, *g.shape, g.stride(0), v.stride(0),
        BIASES=biases is not None, ROWS=_ROWS, CHANNELS=_CHANNELS,
    )  # fmt: skip
    return y


def _tiles(rows: Tensor) -> tuple[int, int]:
    return -(-rows.shape[0] // _ROWS), -(-rows.shape[1] // _CHANNELS)


def _product_gradients(grad: Tensor, gate: Tensor, value: Tensor, biases: Tensor | None) -> tuple[Tensor, Tensor]:
    channels = gate.shape[-1]
    tiles = 0 if biases is None else -(-(gate.numel() // channels) // _ROWS)
    parts = gate.new_empty((tiles, 2, channels), dtype=torch.float32)
    return gate.new_empty((*gate.shape[:-1], 2 * channels)), parts


@kernel(_product_gradients)
def silu_product_gradients(grad: Tensor, gate: Tensor, value: Tensor, biases: Tensor | None) -> tuple[Tensor, Tensor]:
    """Gradients of gate and value, side by side, and those of biases in parts."""
    from lagwise.ops.fused import gate_kernels as kernels

    results = _product_gradients(grad, gate, value, biases)
    d, g, v = rows_of(grad), rows_of(gate), rows_of(value)
    kernels.silu_product_gradients[_tiles(g)](
        d, g, v, g if biases is None else biases.contiguous(), *results, *g.shape, d.stride(0), g.stride(0),
        v.stride(0), BIASES=biases is not None, ROWS=_ROWS, CHANNELS=_CHANNELS,
    )  # fmt: skip
    return results


@operation
def gated_update(x: Tensor, update: Tensor, candidate: Tensor, branch: Tensor) -> Tensor:
    """``x + sigmoid(update) (silu(candidate + branch) - x)`` for tensors ``(..., channels)``; result like x."""
    return torch.lerp(x, F.silu(candidate + branch).to(x.dtype), update.sigmoid().to(x.dtype))


@gated_update.engine("triton")
class _Update(Engine):
    serves = staticmethod(fused)

    @staticmethod
    def forward(x: Tensor, update: Tensor, candidate: Tensor, branch: Tensor) -> tuple[Tensor, Values]:
        return gated_update_kernel(x, update, candidate, branch), ()

    @staticmethod
    def backward(args: Values, saved: Values, grads: Values, needs_grad: Sequence[bool]) -> Values:
        dx, dupdate, inner = gated_update_gradients(grads[0], *args)
        return dx, dupdate, inner, inner.to(args[3].dtype)


@kernel(lambda x, update, candidate, branch: x.new_empty(x.shape))
def gated_update_kernel(x: Tensor, update: Tensor, candidate: Tensor, branch: Tensor) -> Tensor:
    from lagwise.ops.fused import gate_kernels as kernels

    others, y = [rows_of(t) for t in (update, candidate, branch)], x.new_empty(x.shape)
    strides = (t.stride(0) for t in others)
    grid = (-(-x.numel() // BLOCK),)
    kernels.gated_update[grid](x.contiguous(), *others, y, x.numel(), x.shape[-1], *strides, BLOCK=BLOCK)
    return y


@kernel(
    lambda grad, x, update, candidate, branch: (
        x.new_empty(x.shape),
        update.new_empty(update.shape),
        candidate.new_empty(candidate.shape),
    )
)
def gated_update_gradients(
    grad: Tensor, x: Tensor, update: Tensor, candidate: Tensor, branch: Tensor
) -> tuple[Tensor, Tensor, Tensor]:
    """Gradients of x, of update, and of the sum of candidate and branch."""
    from lagwise.ops.fused import gate_kernels as kernels

    others = [rows_of(t) for t in (update, candidate, branch)]
    results = (x.new_empty(x.shape), update.new_empty(update.shape), candidate.new_empty(candidate.shape))
    strides = (t.stride(0) for t in others)
    grid = (-(-x.numel() // BLOCK),)
    kernels.gated_update_gradients[grid](
        grad.contiguous(), x.contiguous(), *others, *results, x.numel(), x.shape[-1], *strides, BLOCK=BLOCK
    )  # fmt: skip
    return results
