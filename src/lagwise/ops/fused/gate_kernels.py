"""The source of the kernels of `gate`. Imports Triton.

Offsets of rows are int64: a tensor may have more than 2**31 elements.
"""

import triton.language as tl

from lagwise.ops.fused.activation_kernels import silu, silu_slope
from lagwise.ops.fused.launcher import launched


@launched
def silu_product(
    gate, value, biases, y, rows, channels, gate_row, value_row,
    BIASES: tl.constexpr, ROWS: tl.constexpr, CHANNELS: tl.constexpr,
):  # fmt: skip
    """A tile of ``silu(gate) * value``, to which biases may be added before."""
    n = (tl.program_id(0) * ROWS + tl.arange(0, ROWS)).to(tl.int64)[:, None]
    c = tl.program_id(1) * CHANNELS + tl.arange(0, CHANNELS)
    tile = (n < rows) & (c < channels)[None, :]
    g = tl.load(gate + n * gate_row + c[None, :], tile, 0.0).to(tl.float32)
    v = tl.load(value + n * value_row + c[None, :], tile, 0.0).to(tl.float32)
    if BIASES:
        g += tl.load(biases + c, c < channels, 0.0).to(tl.float32)[None, :]
        v += tl.load(biases + channels + c, c < channels, 0.0).to(tl.float32)[None, :]
    tl.store(y + n * channels + c[None, :], (silu(g) * v).to(y.dtype.element_ty), tile)


@launched
def silu_product_gradients(
    grad, gate, value, biases, both, dbiases, rows, channels, grad_row, gate_row, value_row,
    BIASES: tl.constexpr, ROWS: tl.constexpr, CHANNELS: tl.constexpr,
):  # fmt: skip
    """A tile of the gradients of gate and value, side by side, and their sums over these rows."""
    n = (tl.program_id(0) * ROWS + tl.arange(0, ROWS)).to(tl.int64)[:, None]
    c = tl.program_id(1) * CHANNELS + tl.arange(0, CHANNELS)
    own = c < channels
    tile = (n < rows) & own[None, :]
    d = tl.load(grad + n * grad_row + c[None, :], tile, 0.0).to(tl.float32)
    g = tl.load(gate + n * gate_row + c[None, :], tile, 0.0).to(tl.float32)
    v = tl.load(value + n * value_row + c[None, :], tile, 0.0).to(tl.float32)
    if BIASES:
        g += tl.load(biases + c, own, 0.0).to(tl.float32)[None, :]
        v += tl.load(biases + channels + c, own, 0.0).to(tl.float32)[None, :]
    dg = d * v * silu_slope(g)
    dv = d * silu(g)
    position = n * 2 * channels + c[None, :]
    tl.store(both + position, dg.to(both.dtype.element_ty), tile)
    tl.store(both + position + channels, dv.to(both.dtype.element_ty), tile)
    if BIASES:
        part = dbiases + tl.program_id(0).to(tl.int64) * 2 * channels + c
        tl.store(part, tl.sum(dg, 0), own)
        tl.store(part + channels, tl.sum(dv, 0), own)


@launched
def gated_update(
    x, update, candidate, branch, y, count, channels, update_row, candidate_row, branch_row, BLOCK: tl.constexpr
):
    """``x + sigmoid(update) (silu(candidate + branch) - x)``."""
    n = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    inside = n < count
    row, c = n // channels, n % channels
    old = tl.load(x + n, inside, 0.0).to(tl.float32)
    u = tl.load(update + row * update_row + c, inside, 0.0).to(tl.float32)
    z = tl.load(candidate + row * candidate_row + c, inside, 0.0).to(tl.float32)
    z += tl.load(branch + row * branch_row + c, inside, 0.0).to(tl.float32)
    tl.store(y + n, (old + tl.sigmoid(u) * (silu(z) - old)).to(y.dtype.element_ty), inside)


@launched
def gated_update_gradients(
    grad, x, update, candidate, branch, dx, dupdate, dinner, count, channels, update_row, candidate_row, branch_row,
    BLOCK: tl.constexpr,
):  # fmt: skip
    n = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    inside = n < count
    row, c = n // channels, n % channels
    g = tl.load(grad + n, inside, 0.0).to(tl.float32)
    old = tl.load(x + n, inside, 0.0).to(tl.float32)
    s = tl.sigmoid(tl.load(update + row * update_row + c, inside, 0.0).to(tl.float32))
    z = tl.load(candidate + row * candidate_row + c, inside, 0.0).to(tl.float32)
    z += tl.load(branch + row * branch_row + c, inside, 0.0).to(tl.float32)
    tl.store(dx + n, (g * (1 - s)).to(dx.dtype.element_ty), inside)
    tl.store(dupdate + n, (g * (silu(z) - old) * s * (1 - s)).to(dupdate.dtype.element_ty), inside)
    tl.store(dinner + n, (g * s * silu_slope(z)).to(dinner.dtype.element_ty), inside)
