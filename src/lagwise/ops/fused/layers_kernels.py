"""The source of the kernels of `layers` and `lagwise.ops.recurrence.timestep_norm`. Imports Triton.

Offsets of rows are int64: a tensor may have more than 2**31 elements.
"""

import triton
import triton.language as tl

from lagwise.ops.fused.launcher import launched, silu, silu_slope


@launched
def silu_product(
    gate, value, y, rows, channels, gate_row, value_row, ROWS: tl.constexpr, CHANNELS: tl.constexpr
):  # fmt: skip
    """A tile of ``silu(gate) * value``."""
    n = (tl.program_id(0) * ROWS + tl.arange(0, ROWS)).to(tl.int64)[:, None]
    c = tl.program_id(1) * CHANNELS + tl.arange(0, CHANNELS)
    tile = (n < rows) & (c < channels)[None, :]
    g = tl.load(gate + n * gate_row + c[None, :], tile, 0.0).to(tl.float32)
    v = tl.load(value + n * value_row + c[None, :], tile, 0.0).to(tl.float32)
    tl.store(y + n * channels + c[None, :], (silu(g) * v).to(y.dtype.element_ty), tile)


@launched
def silu_product_gradients(
    grad, gate, value, both, rows, channels, grad_row, gate_row, value_row, ROWS: tl.constexpr, CHANNELS: tl.constexpr
):
    """A tile of the gradients of gate and value, side by side."""
    n = (tl.program_id(0) * ROWS + tl.arange(0, ROWS)).to(tl.int64)[:, None]
    c = tl.program_id(1) * CHANNELS + tl.arange(0, CHANNELS)
    tile = (n < rows) & (c < channels)[None, :]
    d = tl.load(grad + n * grad_row + c[None, :], tile, 0.0).to(tl.float32)
    g = tl.load(gate + n * gate_row + c[None, :], tile, 0.0).to(tl.float32)
    v = tl.load(value + n * value_row + c[None, :], tile, 0.0).to(tl.float32)
    position = n * 2 * channels + c[None, :]
    tl.store(both + position, (d * v * silu_slope(g)).to(both.dtype.element_ty), tile)
    tl.store(both + position + channels, (d * silu(g)).to(both.dtype.element_ty), tile)


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


@launched
def norm(
    x, branch, weight, bias, total, y, channels, epsilon,
    CENTRED: tl.constexpr, BRANCH: tl.constexpr, WEIGHT: tl.constexpr, BIAS: tl.constexpr,
    BLOCK: tl.constexpr,
):  # fmt: skip
    """Compute one row of the sum of x and a branch, and its norm."""
    row = tl.program_id(0).to(tl.int64) * channels
    c = tl.arange(0, BLOCK)
    inside = c < channels
    v = tl.load(x + row + c, inside, 0.0).to(tl.float32)
    if BRANCH:
        v += tl.load(branch + row + c, inside, 0.0).to(tl.float32)
        rounded = v.to(total.dtype.element_ty)
        tl.store(total + row + c, rounded, inside)
        v = rounded.to(tl.float32)
    if CENTRED:
        v = tl.where(inside, v - tl.sum(v, 0) / channels, 0.0)
    v = v / tl.sqrt(tl.sum(v * v, 0) / channels + epsilon)
    if WEIGHT:
        v *= tl.load(weight + c, inside, 0.0).to(tl.float32)
    if BIAS:
        v += tl.load(bias + c, inside, 0.0).to(tl.float32)
    tl.store(y + row + c, v.to(y.dtype.element_ty), inside)


@launched
def norm_gradients(
    grad, grad_total, x, weight, dx, dbranch, dparameters, rows, channels, epsilon,
    CENTRED: tl.constexpr, TOTAL: tl.constexpr, BRANCH: tl.constexpr, WEIGHT: tl.constexpr, BIAS: tl.constexpr,
    BLOCK: tl.constexpr,
):  # fmt: skip
    """Compute for some rows the gradients of x, of the branch in its own dtype, and of weight and bias summed over
    these rows."""
    c = tl.arange(0, BLOCK)
    inside = c < channels
    sum_weight = tl.zeros([BLOCK], tl.float32)
    sum_bias = tl.zeros([BLOCK], tl.float32)
    n = tl.program_id(0).to(tl.int64)
    while n < rows:
        row = n * channels
        v = tl.load(x + row + c, inside, 0.0).to(tl.float32)
        g = tl.load(grad + row + c, inside, 0.0).to(tl.float32)
        if CENTRED:
            v = tl.where(inside, v - tl.sum(v, 0) / channels, 0.0)
        factor = 1 / tl.sqrt(tl.sum(v * v, 0) / channels + epsilon)
        v *= factor
        if BIAS:
            sum_bias += g
        if WEIGHT:
            sum_weight += g * v
            g *= tl.load(weight + c, inside, 0.0).to(tl.float32)
        d = g - v * (tl.sum(g * v, 0) / channels)
        if CENTRED:
            d -= tl.sum(g, 0) / channels
        d *= factor
        if TOTAL:
            d += tl.load(grad_total + row + c, inside, 0.0).to(tl.float32)
        tl.store(dx + row + c, d.to(dx.dtype.element_ty), inside)
        if BRANCH:
            tl.store(dbranch + row + c, d.to(dbranch.dtype.element_ty), inside)
        n += tl.num_programs(0)
    part = dparameters + tl.program_id(0).to(tl.int64) * (WEIGHT + BIAS) * channels + c
    if WEIGHT:
        tl.store(part, sum_weight, inside)
    if BIAS:
        tl.store(part + WEIGHT * channels, sum_bias, inside)


@triton.jit
def load_numbers(table, row, group, groups):
    """The four numbers of groups in a row."""
    numbers, own = table + (row * groups + group) * 4, group < groups
    a, b = tl.load(numbers, own, 0.0), tl.load(numbers + 1, own, 0.0)
    return a, b, tl.load(numbers + 2, own, 0.0), tl.load(numbers + 3, own, 0.0)


@launched
def scale_groups(
    x, table, weight, bias, grad, y, rows, groups, width,
    BACKWARD: tl.constexpr, GROUPS: tl.constexpr, WIDTH: tl.constexpr,
):  # fmt: skip
    """``((x - a) b + c) weight + bias`` in one row, where every group has its own a, b and c; BACKWARD: ``(x - a) b + c
    + d weight grad``."""
    row = tl.program_id(0).to(tl.int64)
    group, n = tl.arange(0, GROUPS)[:, None], tl.arange(0, WIDTH)[None, :]
    inside, channel = (group < groups) & (n < width), group * width + n
    position = row * groups * width + channel
    a, b, c, d = load_numbers(table, row, group, groups)
    v = (tl.load(x + position, inside, 0.0).to(tl.float32) - a) * b + c
    w = tl.load(weight + channel, inside, 0.0).to(tl.float32)
    if BACKWARD:
        v += d * w * tl.load(grad + position, inside, 0.0).to(tl.float32)
    else:
        v = v * w + tl.load(bias + channel, inside, 0.0).to(tl.float32)
    tl.store(y + position, v.to(y.dtype.element_ty), inside)


@launched
def sum_groups(x, table, weight, grad, sums, parts, rows, groups, width, GROUPS: tl.constexpr, WIDTH: tl.constexpr):
    """For some rows: each group's sums of ``weight grad`` and of its product with ``v = (x - a) b + c``, and each
    channel's sums over these rows of ``grad v`` and ``grad``."""
    row = tl.program_id(0).to(tl.int64)
    group, n = tl.arange(0, GROUPS)[:, None], tl.arange(0, WIDTH)[None, :]
    inside, channel = (group < groups) & (n < width), group * width + n
    part, each = parts + row * 2 * groups * width + channel, tl.arange(0, GROUPS)
    by_weight = tl.zeros([GROUPS, WIDTH], tl.float32)
    by_bias = tl.zeros([GROUPS, WIDTH], tl.float32)
    w = tl.load(weight + channel, inside, 0.0).to(tl.float32)
    while row < rows:
        position = row * groups * width + channel
        a, b, c, _ = load_numbers(table, row, group, groups)
        v = (tl.load(x + position, inside, 0.0).to(tl.float32) - a) * b + c
        g = tl.load(grad + position, inside, 0.0).to(tl.float32)
        by_weight += g * v
        by_bias += g
        total = sums + (row * groups + each) * 2
        tl.store(total, tl.sum(g * w, 1), each < groups)
        tl.store(total + 1, tl.sum(g * w * v, 1), each < groups)
        row += tl.num_programs(0)
    tl.store(part, by_weight, inside)
    tl.store(part + groups * width, by_bias, inside)


@triton.jit
def copy(source, target, count, BLOCK: tl.constexpr):
    i = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.store(target + i, tl.load(source + i, i < count).to(target.dtype.element_ty), i < count)


@launched
def cast(a, b, c, d, to_a, to_b, to_c, to_d, a_count, b_count, c_count, d_count, BLOCK: tl.constexpr):
    """Copy tensors into another dtype, each by the programs of one number on the second axis. PyTorch's
    copies of several tensors have a program for 65,536 numbers, so that weights keep a tenth of a card busy."""
    if tl.program_id(1) == 0:
        copy(a, to_a, a_count, BLOCK)
    elif tl.program_id(1) == 1:
        copy(b, to_b, b_count, BLOCK)
    elif tl.program_id(1) == 2:
        copy(c, to_c, c_count, BLOCK)
    else:
        copy(d, to_d, d_count, BLOCK)
