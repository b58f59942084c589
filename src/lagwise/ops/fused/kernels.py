"""The source of fused kernels. Only imported where they run, because it imports Triton.

Offsets of rows are int64: a tensor may have more than 2**31 elements.
"""

# Triton reads annotations of arguments, so they must be values.
import triton
import triton.language as tl


@triton.jit
def silu(x):
    return x * tl.sigmoid(x)


@triton.jit
def silu_slope(x):
    s = tl.sigmoid(x)
    return s * (1 + x * (1 - s))


@triton.jit
def norm(
    x, branch, weight, bias, total, y, channels, epsilon,
    CENTRED: tl.constexpr, BRANCH: tl.constexpr, WEIGHT: tl.constexpr, BIAS: tl.constexpr, RELU: tl.constexpr,
    BLOCK: tl.constexpr,
):  # fmt: skip
    """One row: the sum of x and a branch, and its norm, which may be activated."""
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
    if RELU:
        v = tl.maximum(v, 0.0)
    tl.store(y + row + c, v.to(y.dtype.element_ty), inside)


@triton.jit
def norm_gradients(
    grad, grad_total, x, weight, dx, dbranch, dparameters, rows, channels, epsilon,
    CENTRED: tl.constexpr, TOTAL: tl.constexpr, BRANCH: tl.constexpr, WEIGHT: tl.constexpr, BIAS: tl.constexpr,
    RELU: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """Some rows: the gradients of x, of the branch in its own dtype, and of weight and bias summed over these rows."""
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
        if RELU:
            g = tl.where(v > 0, g, 0.0)
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


@triton.jit
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
    place = n * 2 * channels + c[None, :]
    tl.store(both + place, dg.to(both.dtype.element_ty), tile)
    tl.store(both + place + channels, dv.to(both.dtype.element_ty), tile)
    if BIASES:
        part = dbiases + tl.program_id(0).to(tl.int64) * 2 * channels + c
        tl.store(part, tl.sum(dg, 0), own)
        tl.store(part + channels, tl.sum(dv, 0), own)


@triton.jit
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
    place = ((b * channels + c[:, None]) * count + f) * points + p[None, :]
    tl.store(frames + place, tl.trans(v), (c < channels)[:, None] & (p < points)[None, :])


@triton.jit
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
        place = b * frame_batch + c[:, None].to(tl.int64) * frame_channel + f[None, :] * frame_row + p[None, :]
        total += tl.load(frames + place, (c < channels)[:, None] & real[None, :], 0.0)
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
def spectrum_gradients(x, grad, kernel, dkernel, dx, batch, channels, count, points, BLOCK: tl.constexpr):
    """Complex spectra of one channel, as pairs of numbers: sums ``conj(x) grad`` over batch and frames, and multiplies
    grad by ``conj(kernel)``."""
    n = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    inside = n < points
    c = tl.program_id(1).to(tl.int64)
    own = 2 * (c * points + n)
    kr, ki = tl.load(kernel + own, inside, 0.0), tl.load(kernel + own + 1, inside, 0.0)
    real = tl.zeros([BLOCK], tl.float32)
    imaginary = tl.zeros([BLOCK], tl.float32)
    for row in range(batch * count):
        b, f = row // count, row % count
        place = 2 * (((b * channels + c) * count + f) * points + n)
        xr, xi = tl.load(x + place, inside, 0.0), tl.load(x + place + 1, inside, 0.0)
        gr, gi = tl.load(grad + place, inside, 0.0), tl.load(grad + place + 1, inside, 0.0)
        real += xr * gr + xi * gi
        imaginary += xr * gi - xi * gr
        tl.store(dx + place, gr * kr + gi * ki, inside)
        tl.store(dx + place + 1, gi * kr - gr * ki, inside)
    tl.store(dkernel + own, real, inside)
    tl.store(dkernel + own + 1, imaginary, inside)


@triton.jit
def convolve(
    x, taps, added, y, length, channels, n_taps, origin, dilation, x_row, x_token, added_row, added_token,
    ADDED: tl.constexpr, SILU: tl.constexpr, TOKENS: tl.constexpr, CHANNELS: tl.constexpr,
):  # fmt: skip
    """A tile of a depthwise convolution, activated and added to another tensor if asked for."""
    i = (tl.program_id(0) * TOKENS + tl.arange(0, TOKENS)).to(tl.int64)
    c = tl.program_id(1) * CHANNELS + tl.arange(0, CHANNELS)
    b = tl.program_id(2).to(tl.int64)
    own = c < channels
    total = tl.zeros([TOKENS, CHANNELS], tl.float32)
    for m in range(n_taps):
        j = i - (m - origin) * dilation
        met = ((j >= 0) & (j < length) & (i < length))[:, None] & own[None, :]
        w = tl.load(taps + c * n_taps + m, own, 0.0).to(tl.float32)
        total += w[None, :] * tl.load(x + b * x_row + j[:, None] * x_token + c[None, :], met, 0.0).to(tl.float32)
    tile = (i < length)[:, None] & own[None, :]
    if SILU:
        total = silu(total)
    if ADDED:
        total += tl.load(added + b * added_row + i[:, None] * added_token + c[None, :], tile, 0.0).to(tl.float32)
    tl.store(y + (b * length + i[:, None]) * channels + c[None, :], total.to(y.dtype.element_ty), tile)


@triton.jit
def convolution_gradients(
    grad, x, taps, dinner, dtaps, length, channels, n_taps, origin, dilation, grad_row, grad_token, x_row, x_token,
    SILU: tl.constexpr, TOKENS: tl.constexpr, CHANNELS: tl.constexpr,
):  # fmt: skip
    """A tile of the gradient before the activation, if there is one, and the gradient of the taps by these tokens."""
    i = (tl.program_id(0) * TOKENS + tl.arange(0, TOKENS)).to(tl.int64)
    c = tl.program_id(1) * CHANNELS + tl.arange(0, CHANNELS)
    b = tl.program_id(2).to(tl.int64)
    own = c < channels
    tile = (i < length)[:, None] & own[None, :]
    d = tl.load(grad + b * grad_row + i[:, None] * grad_token + c[None, :], tile, 0.0).to(tl.float32)
    if SILU:
        total = tl.zeros([TOKENS, CHANNELS], tl.float32)
        for m in range(n_taps):
            j = i - (m - origin) * dilation
            met = ((j >= 0) & (j < length) & (i < length))[:, None] & own[None, :]
            w = tl.load(taps + c * n_taps + m, own, 0.0).to(tl.float32)
            total += w[None, :] * tl.load(x + b * x_row + j[:, None] * x_token + c[None, :], met, 0.0).to(tl.float32)
        d *= silu_slope(total)
        tl.store(dinner + (b * length + i[:, None]) * channels + c[None, :], d.to(dinner.dtype.element_ty), tile)
    part = (b * tl.num_programs(0) + tl.program_id(0)) * n_taps
    for m in range(n_taps):
        j = i - (m - origin) * dilation
        met = ((j >= 0) & (j < length) & (i < length))[:, None] & own[None, :]
        v = tl.load(x + b * x_row + j[:, None] * x_token + c[None, :], met, 0.0).to(tl.float32)
        tl.store(dtaps + (part + m) * channels + c, tl.sum(d * v, 0), own)


@triton.jit
def gated_convolution(
    x, taps, y, length, channels, n_taps, origin, x_row, x_token, TOKENS: tl.constexpr, CHANNELS: tl.constexpr
):
    """A tile of ``after * (taps * (before * value))`` for x = (before, after, value) side by side."""
    i = (tl.program_id(0) * TOKENS + tl.arange(0, TOKENS)).to(tl.int64)
    c = tl.program_id(1) * CHANNELS + tl.arange(0, CHANNELS)
    row = x + tl.program_id(2).to(tl.int64) * x_row
    own = c < channels
    total = tl.zeros([TOKENS, CHANNELS], tl.float32)
    for m in range(n_taps):
        j = i - (m - origin)
        met = ((j >= 0) & (j < length) & (i < length))[:, None] & own[None, :]
        place = row + j[:, None] * x_token + c[None, :]
        w = tl.load(taps + c * n_taps + m, own, 0.0).to(tl.float32)
        before = tl.load(place, met, 0.0).to(tl.float32)
        total += w[None, :] * before * tl.load(place + 2 * channels, met, 0.0).to(tl.float32)
    tile = (i < length)[:, None] & own[None, :]
    total *= tl.load(row + i[:, None] * x_token + channels + c[None, :], tile, 0.0).to(tl.float32)
    place = (tl.program_id(2).to(tl.int64) * length + i[:, None]) * channels + c[None, :]
    tl.store(y + place, total.to(y.dtype.element_ty), tile)


@triton.jit
def gated_convolution_gradients(
    grad, x, taps, dx, dtaps, length, channels, n_taps, origin, x_row, x_token,
    TOKENS: tl.constexpr, CHANNELS: tl.constexpr,
):  # fmt: skip
    """A tile of the gradient of x, and the gradient of the taps by these tokens. grad is contiguous, dx is like x."""
    i = (tl.program_id(0) * TOKENS + tl.arange(0, TOKENS)).to(tl.int64)
    c = tl.program_id(1) * CHANNELS + tl.arange(0, CHANNELS)
    b = tl.program_id(2).to(tl.int64)
    row, grads = x + b * x_row, grad + b * length * channels
    own = c < channels
    tile = (i < length)[:, None] & own[None, :]
    here = i[:, None] * x_token + c[None, :]
    g = tl.load(grads + i[:, None] * channels + c[None, :], tile, 0.0).to(tl.float32)
    inner = g * tl.load(row + here + channels, tile, 0.0).to(tl.float32)
    total = tl.zeros([TOKENS, CHANNELS], tl.float32)
    back = tl.zeros([TOKENS, CHANNELS], tl.float32)
    part = (b * tl.num_programs(0) + tl.program_id(0)) * n_taps
    for m in range(n_taps):
        w = tl.load(taps + c * n_taps + m, own, 0.0).to(tl.float32)[None, :]
        j = i - (m - origin)
        met = ((j >= 0) & (j < length) & (i < length))[:, None] & own[None, :]
        place = row + j[:, None] * x_token + c[None, :]
        v = tl.load(place, met, 0.0).to(tl.float32) * tl.load(place + 2 * channels, met, 0.0).to(tl.float32)
        total += w * v
        tl.store(dtaps + (part + m) * channels + c, tl.sum(inner * v, 0), own)
        j = i + (m - origin)
        met = ((j >= 0) & (j < length) & (i < length))[:, None] & own[None, :]
        later = tl.load(grads + j[:, None] * channels + c[None, :], met, 0.0).to(tl.float32)
        back += w * later * tl.load(row + j[:, None] * x_token + channels + c[None, :], met, 0.0).to(tl.float32)
    out = dx + b * length * 3 * channels + i[:, None] * 3 * channels + c[None, :]
    before = tl.load(row + here, tile, 0.0).to(tl.float32)
    value = tl.load(row + here + 2 * channels, tile, 0.0).to(tl.float32)
    tl.store(out, (back * value).to(dx.dtype.element_ty), tile)
    tl.store(out + channels, (g * total).to(dx.dtype.element_ty), tile)
    tl.store(out + 2 * channels, (back * before).to(dx.dtype.element_ty), tile)


@triton.jit
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


@triton.jit
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


@triton.jit
def average_ends(
    x, log_decay, ends, slopes, length, channels, chunks, dimension, x_row, x_token,
    CHUNK: tl.constexpr, STATES: tl.constexpr, CHANNELS: tl.constexpr,
):  # fmt: skip
    """The averages ``s <- q s + x`` at the end of a chunk that starts from zero, and their derivatives by q."""
    k, b = tl.program_id(0).to(tl.int64), tl.program_id(2).to(tl.int64)
    c = tl.program_id(1) * CHANNELS + tl.arange(0, CHANNELS)
    n = tl.arange(0, STATES)
    own = c < channels
    both = own[:, None] & (n < dimension)[None, :]
    q = tl.exp(tl.load(log_decay + c[:, None] * dimension + n[None, :], both, 0.0))
    s = tl.zeros([CHANNELS, STATES], tl.float32)
    t = tl.zeros([CHANNELS, STATES], tl.float32)
    for i in range(CHUNK):
        j = k * CHUNK + i
        v = tl.load(x + b * x_row + j * x_token + c, own & (j < length), 0.0).to(tl.float32)
        t = s + q * t
        s = q * s + v[:, None]
    place = ((b * chunks + k) * dimension + n[None, :]) * channels + c[:, None]
    tl.store(ends + place, s, both)
    tl.store(slopes + place, t, both)


@triton.jit
def average_starts(
    ends, slopes, log_decay, starts, start_slopes, channels, chunks, dimension,
    REVERSE: tl.constexpr, SLOPES: tl.constexpr, CHUNK: tl.constexpr, STATES: tl.constexpr, CHANNELS: tl.constexpr,
):  # fmt: skip
    """The averages before every chunk, and their derivatives by q, from those of each chunk alone; with REVERSE those
    after it, which run from the end."""
    b = tl.program_id(1).to(tl.int64)
    c = tl.program_id(0) * CHANNELS + tl.arange(0, CHANNELS)
    n = tl.arange(0, STATES)
    both = (c < channels)[:, None] & (n < dimension)[None, :]
    log = tl.load(log_decay + c[:, None] * dimension + n[None, :], both, 0.0)
    factor, slope = tl.exp(log * CHUNK), CHUNK * tl.exp(log * (CHUNK - 1))
    s = tl.zeros([CHANNELS, STATES], tl.float32)
    t = tl.zeros([CHANNELS, STATES], tl.float32)
    for m in range(chunks):
        k = chunks - 1 - m if REVERSE else m
        place = ((b * chunks + k) * dimension + n[None, :]) * channels + c[:, None]
        tl.store(starts + place, s, both)
        if SLOPES:
            tl.store(start_slopes + place, t, both)
            t = factor * t + slope * s + tl.load(slopes + place, both, 0.0)
        s = factor * s + tl.load(ends + place, both, 0.0)


@triton.jit
def average_outputs(
    x, weight, log_decay, direct, starts, y, length, channels, chunks, dimension, x_row, x_token,
    CHUNK: tl.constexpr, STATES: tl.constexpr, CHANNELS: tl.constexpr,
):  # fmt: skip
    """``silu(sum_n w_n s_n + direct x)`` in one chunk, from the averages before it."""
    k, b = tl.program_id(0).to(tl.int64), tl.program_id(2).to(tl.int64)
    c = tl.program_id(1) * CHANNELS + tl.arange(0, CHANNELS)
    n = tl.arange(0, STATES)
    own = c < channels
    both = own[:, None] & (n < dimension)[None, :]
    q = tl.exp(tl.load(log_decay + c[:, None] * dimension + n[None, :], both, 0.0))
    w = tl.load(weight + c[:, None] * dimension + n[None, :], both, 0.0)
    d = tl.load(direct + c, own, 0.0).to(tl.float32)
    s = tl.load(starts + ((b * chunks + k) * dimension + n[None, :]) * channels + c[:, None], both, 0.0)
    for i in range(CHUNK):
        j = k * CHUNK + i
        real = own & (j < length)
        v = tl.load(x + b * x_row + j * x_token + c, real, 0.0).to(tl.float32)
        s = q * s + v[:, None]
        total = silu(tl.sum(w * s, 1) + d * v)
        tl.store(y + (b * length + j) * channels + c, total.to(y.dtype.element_ty), real)


@triton.jit
def average_gradients(
    grad, x, weight, log_decay, direct, starts, start_slopes, dinner, dparameters, ddirect, backward,
    length, channels, chunks, dimension, grad_row, grad_token, x_row, x_token,
    CHUNK: tl.constexpr, STATES: tl.constexpr, CHANNELS: tl.constexpr,
):  # fmt: skip
    """In one chunk: the gradient before the activation, those of the parameters by these tokens, and what the tokens
    before the chunk receive from it."""
    k, b = tl.program_id(0).to(tl.int64), tl.program_id(2).to(tl.int64)
    c = tl.program_id(1) * CHANNELS + tl.arange(0, CHANNELS)
    n = tl.arange(0, STATES)
    own = c < channels
    both = own[:, None] & (n < dimension)[None, :]
    q = tl.exp(tl.load(log_decay + c[:, None] * dimension + n[None, :], both, 0.0))
    w = tl.load(weight + c[:, None] * dimension + n[None, :], both, 0.0)
    d = tl.load(direct + c, own, 0.0).to(tl.float32)
    place = ((b * chunks + k) * dimension + n[None, :]) * channels + c[:, None]
    s, t = tl.load(starts + place, both, 0.0), tl.load(start_slopes + place, both, 0.0)
    by_weight = tl.zeros([CHANNELS, STATES], tl.float32)
    by_decay = tl.zeros([CHANNELS, STATES], tl.float32)
    before = tl.zeros([CHANNELS, STATES], tl.float32)
    power = tl.full([CHANNELS, STATES], 1.0, tl.float32)
    by_direct = tl.zeros([CHANNELS], tl.float32)
    for i in range(CHUNK):
        j = k * CHUNK + i
        real = own & (j < length)
        v = tl.load(x + b * x_row + j * x_token + c, real, 0.0).to(tl.float32)
        g = tl.load(grad + b * grad_row + j * grad_token + c, real, 0.0).to(tl.float32)
        t = s + q * t
        s = q * s + v[:, None]
        g *= silu_slope(tl.sum(w * s, 1) + d * v)
        tl.store(dinner + (b * length + j) * channels + c, g.to(dinner.dtype.element_ty), real)
        by_weight += g[:, None] * s
        by_decay += g[:, None] * t
        by_direct += g * v
        before += power * g[:, None]
        power *= q
    part = dparameters + ((b * chunks + k) * 2 * dimension + n[None, :]) * channels + c[:, None]
    tl.store(part, by_weight, both)
    tl.store(part + dimension * channels, by_decay * w * q, both)
    tl.store(backward + place, before * w, both)
    tl.store(ddirect + (b * chunks + k) * channels + c, by_direct, own)


@triton.jit
def average_adjoint(
    dinner, weight, log_decay, direct, starts, dx, length, channels, chunks, dimension,
    CHUNK: tl.constexpr, STATES: tl.constexpr, CHANNELS: tl.constexpr,
):  # fmt: skip
    """The gradient of x in one chunk, from its end to its start."""
    k, b = tl.program_id(0).to(tl.int64), tl.program_id(2).to(tl.int64)
    c = tl.program_id(1) * CHANNELS + tl.arange(0, CHANNELS)
    n = tl.arange(0, STATES)
    own = c < channels
    both = own[:, None] & (n < dimension)[None, :]
    q = tl.exp(tl.load(log_decay + c[:, None] * dimension + n[None, :], both, 0.0))
    w = tl.load(weight + c[:, None] * dimension + n[None, :], both, 0.0)
    d = tl.load(direct + c, own, 0.0).to(tl.float32)
    a = tl.load(starts + ((b * chunks + k) * dimension + n[None, :]) * channels + c[:, None], both, 0.0)
    for i in range(CHUNK):
        j = k * CHUNK + CHUNK - 1 - i
        real = own & (j < length)
        g = tl.load(dinner + (b * length + j) * channels + c, real, 0.0).to(tl.float32)
        a = q * a + w * g[:, None]
        total = tl.sum(a, 1) + d * g
        tl.store(dx + (b * length + j) * channels + c, total.to(dx.dtype.element_ty), real)
