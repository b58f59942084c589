"""Gated Toeplitz products along the rows and columns of a grid, without passes over memory between the steps."""

from __future__ import annotations

from collections.abc import Sequence

import torch
import torch.nn.functional as F
from torch import Tensor

from lagwise.ops import native
from lagwise.ops.operation import Engine, Values, callable_directly, operation
from lagwise.ops.product import toeplitz_product
from lagwise.ops.toeplitz.block import centre
from lagwise.ops.tokens import fitting, silu_product, with_biases

_MAX_LAGS = 128  # lags along an axis; beyond, FFTs are faster, and a tile exceeds the second cache


def gated_grid_product(
    gate: Tensor,
    value: Tensor,
    rows: Tensor,
    columns: Tensor,
    width: int,
    biases: Tensor | None = None,
    *,
    overwrite_gate: bool = False,
) -> Tensor:
    """Mix a gated grid along its rows and along its columns.

    Formula: ``y[i, j] = silu(gate[i, j]) * (sum_k rows_{j - k} v[i, k] + sum_k columns_{i - k} v[k, j])`` in every
    channel, with ``v = silu(value)``.

    Shapes: gate and value ``(batch, height * width, channels)``, row by row; rows and columns ``(channels, n_taps)``
    with an odd number of taps, as two-sided taps in `lagwise.ops.toeplitz_product`; result like gate. biases ``(2,
    channels)``, if any, are added to gate and value before. With ``overwrite_gate`` and without gradients, the result
    may be written over gate.

    ValueError for other shapes, an even number of taps, or a width that does not divide the length.

    Source: TNN §3.1 and fig. 2; SKI-TNN §5.2. On a CPU, for up to 64 rows and columns in float32 or bfloat16, one loop
    in C reads gate and value once and writes the result once; its gradient repeats the product instead of storing it.
    """
    if gate.shape != value.shape or gate.dim() != 3:
        raise ValueError(
            "gate and value must have the same shape (batch, length, channels), got "
            f"{tuple(gate.shape)} and {tuple(value.shape)}"
        )
    if 0 in gate.shape[1:]:
        raise ValueError(f"gate must have at least one token and one channel, got {tuple(gate.shape)}")
    if width < 1 or gate.shape[1] % width:
        raise ValueError(f"width must divide the length {gate.shape[1]}, got {width}")
    if any(taps.dim() != 2 or len(taps) != gate.shape[2] for taps in (rows, columns)):
        shapes = f"{tuple(rows.shape)} and {tuple(columns.shape)}"
        raise ValueError(f"taps must be (channels={gate.shape[2]}, n_taps), got {shapes}")
    args = (gate, value, rows, columns, biases, width)
    if overwrite_gate and gate.is_contiguous() and callable_directly(*args) and _gated_grid.chosen(*args) == "loop":
        native.grid_into(gate, gate, value, *_both_lags(gate, rows, columns, width), biases)
        return gate
    return _gated_grid(*args)


@operation
def _gated_grid(
    gate: Tensor, value: Tensor, rows: Tensor, columns: Tensor, biases: Tensor | None, width: int
) -> Tensor:
    gate, value = with_biases(gate, value, biases)
    v = F.silu(value).unflatten(1, (-1, width))
    along = toeplitz_product(v.flatten(0, 1), rows, causal=False).reshape(v.shape)
    across = toeplitz_product(v.transpose(1, 2).flatten(0, 1), columns, causal=False)
    across = across.unflatten(0, (-1, width)).transpose(1, 2)
    return silu_product(gate, (along + across).flatten(1, 2))


@_gated_grid.engine("loop")
class _Loop(Engine):
    @staticmethod
    def serves(gate: Tensor, value: Tensor, rows: Tensor, columns: Tensor, biases: Tensor | None, width: int) -> bool:
        single = gate.dtype == value.dtype and rows.dtype == columns.dtype == torch.float32
        few = 2 * max(width, gate.shape[1] // width) - 1 <= _MAX_LAGS
        return single and few and fitting(biases, gate) and native.serves(gate, value, rows, columns)

    @staticmethod
    def evaluate(
        gate: Tensor, value: Tensor, rows: Tensor, columns: Tensor, biases: Tensor | None, width: int
    ) -> Tensor:
        return native.gated_grid(gate, value, *_both_lags(gate, rows, columns, width), biases)

    @staticmethod
    def backward(args: Values, saved: Values, grads: Values, needs_grad: Sequence[bool]) -> Values:
        gate, value, rows, columns, biases, width = args
        lags = _both_lags(gate, rows, columns, width)
        gradients = native.gated_grid_gradients(grads[0], gate, value, *lags, biases)
        *both, of_rows, of_columns, of_biases = gradients
        of_taps = (_cut(each, taps) for each, taps in ((of_rows, rows), (of_columns, columns)))
        return *both, *of_taps, of_biases if needs_grad[4] else None


def _both_lags(gate: Tensor, rows: Tensor, columns: Tensor, width: int) -> tuple[Tensor, Tensor]:
    return _lags(rows, width), _lags(columns, gate.shape[1] // width)


def _lags(taps: Tensor, size: int) -> Tensor:
    """Return taps for the lags ``1 - size .. size - 1``."""
    missing = size - 1 - centre(taps)
    return F.pad(taps, (missing, missing)) if missing else taps


def _cut(lags: Tensor, taps: Tensor) -> Tensor:
    """The gradient of taps from that of `_lags`."""
    missing = (taps.shape[1] - lags.shape[1]) // 2
    return F.pad(lags, (missing, missing)) if missing else lags
