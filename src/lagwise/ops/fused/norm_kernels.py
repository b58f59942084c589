"""The source of the kernels of `norm`. Imports Triton.

Offsets of rows are int64: a tensor may have more than 2**31 elements.
"""

import triton.language as tl

from lagwise.ops.fused.launcher import launched


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
