"""The source of the kernels of `convolution`. Imports Triton.

Offsets of rows are int64: a tensor may have more than 2**31 elements.
"""

import triton
import triton.language as tl

from lagwise.ops.fused.launcher import launched, silu, silu_slope


@triton.jit
def place(length, channels, TOKENS: tl.constexpr, CHANNELS: tl.constexpr):
    """A tile's tokens, channels and row, and which of them there are."""
    i = (tl.program_id(0) * TOKENS + tl.arange(0, TOKENS)).to(tl.int64)
    c = tl.program_id(1) * CHANNELS + tl.arange(0, CHANNELS)
    return i, c, tl.program_id(2).to(tl.int64), c < channels, (i < length)[:, None] & (c < channels)[None, :]


@triton.jit
def met(j, tile, length):
    """Tell which numbers of a tile meet a token: j of the signal."""
    return tile & ((j >= 0) & (j < length))[:, None]


@triton.jit
def filtered(
    x, taps, i, c, own, tile, length, channels, n_taps, origin, dilation, x_token, GATED: tl.constexpr,
    TOKENS: tl.constexpr, CHANNELS: tl.constexpr,
):  # fmt: skip
    """A tile of the convolution; of ``before * value`` if gated."""
    total = tl.zeros([TOKENS, CHANNELS], tl.float32)
    for m in range(n_taps):
        j = i - (m - origin) * dilation
        inside, position = met(j, tile, length), x + j[:, None] * x_token + c[None, :]
        w = tl.load(taps + c * n_taps + m, own, 0.0).to(tl.float32)
        v = tl.load(position, inside, 0.0).to(tl.float32)
        if GATED:
            v *= tl.load(position + 2 * channels, inside, 0.0).to(tl.float32)
        total += w[None, :] * v
    return total


@launched
def convolve(
    x, taps, added, y, length, channels, n_taps, origin, dilation, x_row, x_token, added_row, added_token,
    ADDED: tl.constexpr, SILU: tl.constexpr, GATED: tl.constexpr, TOKENS: tl.constexpr, CHANNELS: tl.constexpr,
):  # fmt: skip
    """A tile of a depthwise convolution, activated and added to another tensor if asked for; or of ``after * (taps *
    (before * value))`` for x = (before, after, value) side by side."""
    i, c, b, own, tile = place(length, channels, TOKENS, CHANNELS)
    signal = x + b * x_row
    total = filtered(
        signal, taps, i, c, own, tile, length, channels, n_taps, origin, dilation, x_token, GATED, TOKENS, CHANNELS
    )
    if SILU:
        total = silu(total)
    if GATED:
        total *= tl.load(signal + i[:, None] * x_token + channels + c[None, :], tile, 0.0).to(tl.float32)
    if ADDED:
        total += tl.load(added + b * added_row + i[:, None] * added_token + c[None, :], tile, 0.0).to(tl.float32)
    tl.store(y + (b * length + i[:, None]) * channels + c[None, :], total.to(y.dtype.element_ty), tile)


@launched
def convolution_gradients(
    grad, x, taps, dinner, dtaps, length, channels, n_taps, origin, dilation, grad_row, grad_token, x_row, x_token,
    SILU: tl.constexpr, TOKENS: tl.constexpr, CHANNELS: tl.constexpr,
):  # fmt: skip
    """A tile of the gradient before the activation, if there is one, and the gradient of the taps by these tokens."""
    i, c, b, own, tile = place(length, channels, TOKENS, CHANNELS)
    signal = x + b * x_row
    d = tl.load(grad + b * grad_row + i[:, None] * grad_token + c[None, :], tile, 0.0).to(tl.float32)
    if SILU:
        total = filtered(
            signal, taps, i, c, own, tile, length, channels, n_taps, origin, dilation, x_token, False, TOKENS, CHANNELS
        )
        d *= silu_slope(total)
        tl.store(dinner + (b * length + i[:, None]) * channels + c[None, :], d.to(dinner.dtype.element_ty), tile)
    part = (b * tl.num_programs(0) + tl.program_id(0)) * n_taps
    for m in range(n_taps):
        j = i - (m - origin) * dilation
        v = tl.load(signal + j[:, None] * x_token + c[None, :], met(j, tile, length), 0.0).to(tl.float32)
        tl.store(dtaps + (part + m) * channels + c, tl.sum(d * v, 0), own)


@launched
def gated_convolution_gradients(
    grad, x, taps, dx, dtaps, length, channels, n_taps, origin, x_row, x_token,
    TOKENS: tl.constexpr, CHANNELS: tl.constexpr,
):  # fmt: skip
    """A tile of the gradient of x, and the gradient of the taps by these tokens. grad is contiguous, dx is like x."""
    i, c, b, own, tile = place(length, channels, TOKENS, CHANNELS)
    row, grads = x + b * x_row, grad + b * length * channels
    here = row + i[:, None] * x_token + c[None, :]
    g = tl.load(grads + i[:, None] * channels + c[None, :], tile, 0.0).to(tl.float32)
    inner = g * tl.load(here + channels, tile, 0.0).to(tl.float32)
    total = tl.zeros([TOKENS, CHANNELS], tl.float32)
    back = tl.zeros([TOKENS, CHANNELS], tl.float32)
    part = (b * tl.num_programs(0) + tl.program_id(0)) * n_taps
    for m in range(n_taps):
        w = tl.load(taps + c * n_taps + m, own, 0.0).to(tl.float32)[None, :]
        j = i - (m - origin)
        inside, position = met(j, tile, length), row + j[:, None] * x_token + c[None, :]
        v = tl.load(position, inside, 0.0).to(tl.float32) * tl.load(position + 2 * channels, inside, 0.0).to(tl.float32)
        total += w * v
        tl.store(dtaps + (part + m) * channels + c, tl.sum(inner * v, 0), own)
        j = i + (m - origin)
        inside = met(j, tile, length)
        later = tl.load(grads + j[:, None] * channels + c[None, :], inside, 0.0).to(tl.float32)
        back += w * later * tl.load(row + j[:, None] * x_token + channels + c[None, :], inside, 0.0).to(tl.float32)
    out = dx + b * length * 3 * channels + i[:, None] * 3 * channels + c[None, :]
    before = tl.load(here, tile, 0.0).to(tl.float32)
    value = tl.load(here + 2 * channels, tile, 0.0).to(tl.float32)
    tl.store(out, (back * value).to(dx.dtype.element_ty), tile)
    tl.store(out + channels, (g * total).to(dx.dtype.element_ty), tile)
    tl.store(out + 2 * channels, (back * before).to(dx.dtype.element_ty), tile)
