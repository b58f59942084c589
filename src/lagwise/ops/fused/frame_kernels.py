"""The source of the kernels of `frames`. Imports Triton.

A packed spectrum Z of n real points has N = n / 2 complex numbers: the FFT of ``x[2 m] + i x[2 m + 1]``. With E and O
the spectra of the even and the odd points and w = exp(-2 pi i / n),

    E[k] = (Z[k] + conj Z[N - k]) / 2,      X[k]     = E[k] + w**k O[k],
    O[k] = (Z[k] - conj Z[N - k]) / 2 i,    X[N - k] = conj(E[k] - w**k O[k]),

so each program has frequencies k and N - k together, for k up to N / 2; Z[N] is Z[0]. Complex numbers are pairs of
float32. Offsets of rows are int64: a tensor may have more than 2**31 elements.
"""

import triton
import triton.language as tl

from lagwise.ops.fused.launcher import launched, silu, silu_slope


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


@triton.jit
def load(spectrum, position, inside):
    """The real and imaginary parts of the complex numbers at these indices."""
    return tl.split(tl.load(spectrum + 2 * position[:, None] + tl.arange(0, 2)[None, :], inside[:, None], 0.0))


@triton.jit
def store(spectrum, position, real, imaginary, inside):
    tl.store(spectrum + 2 * position[:, None] + tl.arange(0, 2)[None, :], tl.join(real, imaginary), inside[:, None])


@triton.jit
def unpacked(zr, zi, mr, mi, wr, wi):
    """X[k] and X[N - k] from Z[k], Z[N - k] and w**k."""
    er, ei, odd_r, odd_i = 0.5 * (zr + mr), 0.5 * (zi - mi), 0.5 * (zi + mi), 0.5 * (mr - zr)
    tr, ti = wr * odd_r - wi * odd_i, wr * odd_i + wi * odd_r
    return er + tr, ei + ti, er - tr, ti - ei


@triton.jit
def packed(ar, ai, br, bi, wr, wi, scale):
    """Z[k] and Z[N - k], times scale, from X[k], X[N - k] and w**k."""
    er, ei, tr, ti = scale * (ar + br), scale * (ai - bi), scale * (ar - br), scale * (ai + bi)
    odd_r, odd_i = wr * tr + wi * ti, wr * ti - wi * tr
    return er - odd_i, ei + odd_r, er + odd_i, odd_r - ei


@triton.jit
def factors(kernel, c, k, points, inside):
    """K[k] and K[N - k] of a channel. Of K[0] and K[N] the real parts count, as for real taps."""
    start = c * (points + 1)
    ar, ai = load(kernel, start + k, inside)
    br, bi = load(kernel, start + points - k, inside)
    return ar, tl.where(k == 0, 0.0, ai), br, tl.where(k == 0, 0.0, bi)


@triton.jit
def root(k, points):
    """w**k, the point at -pi k / N on the unit circle."""
    angle = k.to(tl.float32) * (3.141592653589793 / points)
    return tl.cos(angle), -tl.sin(angle)


@launched
def multiply(x, kernel, product, batch, channels, count, points, ADJOINT: tl.constexpr, BLOCK: tl.constexpr):
    """Return packed spectra x ``(batch, channels, count, points)`` times the spectrum of one channel's taps, or its
    conjugate, divided by the number of points."""
    k = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    inside = k <= points // 2
    mirror = tl.where(k == 0, 0, points - k)
    wr, wi = root(k, points)
    c = tl.program_id(1).to(tl.int64)
    ar, ai, br, bi = factors(kernel, c, k, points, inside)
    if ADJOINT:
        ai, bi = -ai, -bi
    for row in range(batch * count):
        start = (((row // count) * channels + c) * count + row % count) * points
        zr, zi = load(x, start + k, inside)
        mr, mi = load(x, start + mirror, inside)
        xr, xi, yr, yi = unpacked(zr, zi, mr, mi, wr, wi)
        zr, zi, mr, mi = packed(
            xr * ar - xi * ai, xr * ai + xi * ar, yr * br - yi * bi, yr * bi + yi * br, wr, wi, 0.5 / points
        )
        store(product, start + k, zr, zi, inside)
        store(product, start + mirror, mr, mi, inside)


@launched
def gradients(x, grad, kernel, dkernel, dx, batch, channels, count, points, BLOCK: tl.constexpr):
    """Sum ``conj(x) grad`` of one channel's packed spectra over batch and frames, and multiply grad by
    ``conj(kernel)``. Both are packed, and divided by the number of points."""
    k = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    inside = k <= points // 2
    mirror = tl.where(k == 0, 0, points - k)
    wr, wi = root(k, points)
    c = tl.program_id(1).to(tl.int64)
    ar, ai, br, bi = factors(kernel, c, k, points, inside)
    near_r = tl.zeros([BLOCK], tl.float32)
    near_i, far_r, far_i = near_r, near_r, near_r
    for row in range(batch * count):
        start = (((row // count) * channels + c) * count + row % count) * points
        zr, zi = load(x, start + k, inside)
        mr, mi = load(x, start + mirror, inside)
        xr, xi, yr, yi = unpacked(zr, zi, mr, mi, wr, wi)
        zr, zi = load(grad, start + k, inside)
        mr, mi = load(grad, start + mirror, inside)
        gr, gi, hr, hi = unpacked(zr, zi, mr, mi, wr, wi)
        near_r += xr * gr + xi * gi
        near_i += xr * gi - xi * gr
        far_r += yr * hr + yi * hi
        far_i += yr * hi - yi * hr
        zr, zi, mr, mi = packed(
            gr * ar + gi * ai, gi * ar - gr * ai, hr * br + hi * bi, hi * br - hr * bi, wr, wi, 0.5 / points
        )
        store(dx, start + k, zr, zi, inside)
        store(dx, start + mirror, mr, mi, inside)
    zr, zi, mr, mi = packed(near_r, near_i, far_r, far_i, wr, wi, 0.5 / points)
    store(dkernel, c * points + k, zr, zi, inside)
    store(dkernel, c * points + mirror, mr, mi, inside)
