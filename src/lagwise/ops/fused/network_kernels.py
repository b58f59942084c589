"""The source of the kernels of `network`. Imports Triton.

Parameters are one tensor: the weights of all layers, then their biases. Offsets of rows are int64.
"""

import triton
import triton.language as tl

from lagwise.ops.fused.launcher import launched


@triton.jit
def normed(z, hidden, epsilon):
    """z over its root mean square, and the factor."""
    factor = 1 / tl.sqrt(tl.sum(z * z, 1) / hidden + epsilon)
    return z * factor[:, None], factor


@launched
def layers(
    x, parameters, sums, y, rows, inputs, hidden, epsilon,
    COUNT: tl.constexpr, INPUTS: tl.constexpr, HIDDEN: tl.constexpr, ROWS: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    """Compute all layers for some rows. Stores each layer's output before its norm."""
    r = (tl.program_id(0) * ROWS + tl.arange(0, ROWS)).to(tl.int64)
    k, c = tl.arange(0, INPUTS), tl.arange(0, HIDDEN)
    in_x, in_y = (r < rows)[:, None] & (k < inputs)[None, :], (r < rows)[:, None] & (c < hidden)[None, :]
    biases = parameters + hidden * (inputs + (COUNT - 1) * hidden)
    first = tl.load(parameters + c[None, :] * inputs + k[:, None], (k < inputs)[:, None] & (c < hidden)[None, :], 0.0)
    z = tl.dot(tl.load(x + r[:, None] * inputs + k[None, :], in_x, 0.0), first, input_precision=PRECISION)
    z += tl.load(biases + c, c < hidden, 0.0)[None, :]
    tl.store(sums + r[:, None] * hidden + c[None, :], z, in_y)
    square = (c < hidden)[:, None] & (c < hidden)[None, :]
    for i in range(1, COUNT):
        v, _ = normed(z, hidden, epsilon)
        weight = parameters + hidden * (inputs + (i - 1) * hidden)
        w = tl.load(weight + c[None, :] * hidden + c[:, None], square, 0.0)
        z = tl.dot(tl.maximum(v, 0.0), w, input_precision=PRECISION)
        z += tl.load(biases + i * hidden + c, c < hidden, 0.0)[None, :]
        tl.store(sums + (i * rows + r[:, None]) * hidden + c[None, :], z, in_y)
    v, _ = normed(z, hidden, epsilon)
    tl.store(y + r[:, None] * hidden + c[None, :], tl.maximum(v, 0.0), in_y)


@triton.jit
def before_norm(g, z, hidden, epsilon):
    """The gradient of z from that of ``relu(normed(z))``."""
    v, factor = normed(z, hidden, epsilon)
    g = tl.where(v > 0, g, 0.0)
    return (g - v * (tl.sum(g * v, 1) / hidden)[:, None]) * factor[:, None]


@triton.jit
def add(position, value, inside, more):
    """Store a value, added to the one that is there if there are more."""
    tl.store(position, value + tl.load(position, inside & more, 0.0), inside)


@launched
def layer_gradients(
    grad, x, parameters, sums, dx, dparameters, rows, inputs, hidden, epsilon,
    COUNT: tl.constexpr, INPUTS: tl.constexpr, HIDDEN: tl.constexpr, ROWS: tl.constexpr, DX: tl.constexpr,
    PRECISION: tl.constexpr,
):  # fmt: skip
    """Compute gradients of some rows, and of the parameters by these rows."""
    k, c = tl.arange(0, INPUTS), tl.arange(0, HIDDEN)
    own, first = c < hidden, (c < hidden)[:, None] & (k < inputs)[None, :]
    square, bias = own[:, None] & own[None, :], hidden * (inputs + (COUNT - 1) * hidden)
    part = dparameters + tl.program_id(0).to(tl.int64) * (bias + COUNT * hidden)
    tile = tl.program_id(0)
    while tile * ROWS < rows:
        more = tile != tl.program_id(0)
        r = (tile * ROWS + tl.arange(0, ROWS)).to(tl.int64)
        in_y = (r < rows)[:, None] & own[None, :]
        position = r[:, None] * hidden + c[None, :]
        g = tl.load(grad + position, in_y, 0.0)
        for j in range(1, COUNT):
            i = COUNT - j
            d = before_norm(g, tl.load(sums + i * rows * hidden + position, in_y, 0.0), hidden, epsilon)
            v, _ = normed(tl.load(sums + (i - 1) * rows * hidden + position, in_y, 0.0), hidden, epsilon)
            weight = hidden * (inputs + (i - 1) * hidden) + c[:, None] * hidden + c[None, :]
            outer = tl.dot(tl.trans(d), tl.maximum(v, 0.0), input_precision=PRECISION)
            add(part + weight, outer, square, more)
            add(part + bias + i * hidden + c, tl.sum(d, 0), own, more)
            g = tl.dot(d, tl.load(parameters + weight, square, 0.0), input_precision=PRECISION)
        d = before_norm(g, tl.load(sums + position, in_y, 0.0), hidden, epsilon)
        in_x = (r < rows)[:, None] & (k < inputs)[None, :]
        v = tl.load(x + r[:, None] * inputs + k[None, :], in_x, 0.0)
        weight = c[:, None] * inputs + k[None, :]
        add(part + weight, tl.dot(tl.trans(d), v, input_precision=PRECISION), first, more)
        add(part + bias + c, tl.sum(d, 0), own, more)
        if DX:
            w = tl.load(parameters + weight, first, 0.0)
            tl.store(dx + r[:, None] * inputs + k[None, :], tl.dot(d, w, input_precision=PRECISION), in_x)
        tl.debug_barrier()  # what `add` stored is read by the next tile
        tile += tl.num_programs(0)
