"""The source of the kernels of `frames`. Imports Triton.

Offsets of rows are int64: a tensor may have more than 2**31 elements.
"""

import triton.language as tl

from lagwise.ops.fused.activation_kernels import silu, silu_slope
from lagwise.ops.fused.launcher import launched


@launched
def load_frames(
    x, y, gate, frames, dgate, length, channels, count, points, hop, shift, low, high,
    x_row, x_token, gate_row, gate_token, dgate_row, dgate_token,
    SILU: tl.constexpr, GATED: tl.constexpr, TOKENS: tl.constexpr, CHANNELS: tl.constexpr,
):  # fmt: skip
    """A tile of tokens and channels into frames ``(batch, channels, count, points)``, zero where no token is: point p
    of frame f, if low <= p < high, has token f * hop + p - shift. x may be activated first, or be the gradient of a
    gated y, whose gate's gradient then is stored too."""
    p = tl.program_id(0) * TOKENS + tl.arange(0, TOKENS)
    c = tl.program_id(1) * CHANNELS + tl.arange(0, CHANNELS)
    b = (tl.program_id(2) // count).to(tl.int64)
    f = (tl.program_id(2) % count).to(tl.int64)
    i = f * hop + p - shift
    real = (p >= low) & (p < high) & (i >= 0) & (i < length)
    tile = real[:, None] & (c < channels)[None, :]
    v = tl.load(x + b * x_row + i[:, None] * x_token + c[None, :], tile, 0.0).to(tl.float32)
    if SILU:
        v = silu(v)
    if GATED:
        g = tl.load(gate + b * gate_row + i[:, None] * gate_token + c[None, :], tile, 0.0).to(tl.float32)
        before = tl.load(y + (b * length + i[:, None]) * channels + c[None, :], tile, 0.0).to(tl.float32)
        slope = (v * before * silu_slope(g)).to(dgate.dtype.element_ty)
        tl.store(dgate + b * dgate_row + i[:, None] * dgate_token + c[None, :], slope, tile)
        v *= silu(g)
    position = ((b * channels + c[:, None]) * count + f) * points + p[None, :]
    tl.store(frames + position, tl.trans(v), (c < channels)[:, None] & (p < points)[None, :])


@launched
def store_frames(
    frames, gate, y, out, length, channels, count, points, hop, shift, frame_batch, frame_channel, frame_row, gate_row,
    gate_token, y_row, y_token,
    SLOPE: tl.constexpr, GATED: tl.constexpr, REACH: tl.constexpr, TOKENS: tl.constexpr, CHANNELS: tl.constexpr,
):  # fmt: skip
    """A tile of tokens and channels from frames, added where they overlap: the adjoint of `load_frames`. It may be
    multiplied by the slope of the gate's activation, or stored both as it is and times the activated gate."""
    i = (tl.program_id(0) * TOKENS + tl.arange(0, TOKENS)).to(tl.int64)
    c = tl.program_id(1) * CHANNELS + tl.arange(0, CHANNELS)
    b = tl.program_id(2).to(tl.int64)
    total = tl.zeros([CHANNELS, TOKENS], tl.float32)
    for n in tl.static_range(REACH):
        f = (i + shift) // hop - n
        p = i + shift - f * hop
        real = (i < length) & (f >= 0) & (f < count) & (p < points)
        position = b * frame_batch + c[:, None].to(tl.int64) * frame_channel + f[None, :] * frame_row + p[None, :]
        total += tl.load(frames + position, (c < channels)[:, None] & real[None, :], 0.0)
    v = tl.trans(total)
    tile = (i < length)[:, None] & (c < channels)[None, :]
    if SLOPE or GATED:
        g = tl.load(gate + b * gate_row + i[:, None] * gate_token + c[None, :], tile, 0.0).to(tl.float32)
        if SLOPE:
            v *= silu_slope(g)
        else:
            product = (v * silu(g)).to(out.dtype.element_ty)
            tl.store(out + (b * length + i[:, None]) * channels + c[None, :], product, tile)
    tl.store(y + b * y_row + i[:, None] * y_token + c[None, :], v.to(y.dtype.element_ty), tile)
