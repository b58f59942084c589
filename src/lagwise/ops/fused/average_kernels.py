"""The source of the kernels of `average`. Imports Triton.

Offsets of rows are int64: a tensor may have more than 2**31 elements. Numbers are pairs of tiles, real and imaginary
parts; unless COMPLEX the second is zeros, which compilers remove.
"""

import triton
import triton.language as tl

from lagwise.ops.fused.launcher import launched, silu, silu_slope


@triton.jit
def program(channels, chunks, dimension, CHANNELS: tl.constexpr, STATES: tl.constexpr, COMPLEX: tl.constexpr):
    """The chunk, row and channels of a program, and the positions of parameters and states."""
    k, b = tl.program_id(0).to(tl.int64), tl.program_id(2).to(tl.int64)
    c = tl.program_id(1) * CHANNELS + tl.arange(0, CHANNELS)
    n = tl.arange(0, STATES)[None, :]
    both = (c < channels)[:, None] & (n < dimension)
    parameters = (c[:, None] * dimension + n) * (1 + COMPLEX)
    states = ((b * chunks + k) * (1 + COMPLEX) * dimension + n) * channels + c[:, None]
    return k, b, c, c < channels, both, parameters, states


@triton.jit
def load_parts(numbers, position, inside, distance, COMPLEX: tl.constexpr):
    """Numbers whose imaginary parts are so far behind their real ones."""
    real = tl.load(numbers + position, inside, 0.0)
    imaginary = tl.zeros_like(real)
    if COMPLEX:
        imaginary = tl.load(numbers + position + distance, inside, 0.0)
    return real, imaginary


@triton.jit
def store_parts(numbers, position, inside, distance, real, imaginary, COMPLEX: tl.constexpr):
    tl.store(numbers + position, real, inside)
    if COMPLEX:
        tl.store(numbers + position + distance, imaginary, inside)


@triton.jit
def load_poles(poles, position, inside, COMPLEX: tl.constexpr):
    """Poles: complex numbers, or real ones by their logarithms."""
    real, imaginary = load_parts(poles, position, inside, 1, COMPLEX)
    return real if COMPLEX else tl.exp(real), imaginary


@triton.jit
def times(a, b, c, d, COMPLEX: tl.constexpr):
    real, imaginary = a * c, b
    if COMPLEX:
        real, imaginary = real - b * d, a * d + b * c
    return real, imaginary


@triton.jit
def raised(log, angle, count, COMPLEX: tl.constexpr):
    real, imaginary = tl.exp(log * count), angle
    if COMPLEX:
        real, imaginary = real * tl.cos(angle * count), real * tl.sin(angle * count)
    return real, imaginary


@launched
def average_ends(
    x, poles, ends, slopes, length, channels, chunks, dimension, x_row, x_token,
    CHUNK: tl.constexpr, STATES: tl.constexpr, CHANNELS: tl.constexpr, COMPLEX: tl.constexpr,
):  # fmt: skip
    """The averages ``s <- q s + x`` at the end of a chunk that starts from zero, and their derivatives by q."""
    k, b, c, own, both, parameters, states = program(channels, chunks, dimension, CHANNELS, STATES, COMPLEX)
    q, qi = load_poles(poles, parameters, both, COMPLEX)
    s = tl.zeros([CHANNELS, STATES], tl.float32)
    si, t, ti = s, s, s
    for i in range(CHUNK):
        j = k * CHUNK + i
        v = tl.load(x + b * x_row + j * x_token + c, own & (j < length), 0.0).to(tl.float32)
        t, ti = times(t, ti, q, qi, COMPLEX)
        t, ti = t + s, ti + si
        s, si = times(s, si, q, qi, COMPLEX)
        s += v[:, None]
    store_parts(ends, states, both, dimension * channels, s, si, COMPLEX)
    store_parts(slopes, states, both, dimension * channels, t, ti, COMPLEX)


@launched
def average_starts(
    ends, slopes, log_decay, angle, starts, start_slopes, channels, chunks, dimension,
    REVERSE: tl.constexpr, SLOPES: tl.constexpr, CHUNK: tl.constexpr, STATES: tl.constexpr, CHANNELS: tl.constexpr,
    COMPLEX: tl.constexpr,
):  # fmt: skip
    """The averages before every chunk, and their derivatives by q, from those of each chunk alone; with REVERSE those
    after it, which run from the end. Complex ones in the precision of the decays, float64."""
    b = tl.program_id(1).to(tl.int64)
    c = tl.program_id(0) * CHANNELS + tl.arange(0, CHANNELS)
    n = tl.arange(0, STATES)
    both = (c < channels)[:, None] & (n < dimension)[None, :]
    log = tl.load(log_decay + c[:, None] * dimension + n[None, :], both, 0.0)
    s = tl.zeros_like(log)
    si, t, ti, turn = s, s, s, s
    if COMPLEX:
        turn = tl.load(angle + c[:, None] * dimension + n[None, :], both, 0.0)
    f, fi = raised(log, turn, CHUNK, COMPLEX)
    d, di = raised(log, turn, CHUNK - 1, COMPLEX)
    distance = dimension * channels
    for m in range(chunks):
        k = chunks - 1 - m if REVERSE else m
        position = ((b * chunks + k) * (1 + COMPLEX) * dimension + n[None, :]) * channels + c[:, None]
        store_parts(starts, position, both, distance, s.to(tl.float32), si.to(tl.float32), COMPLEX)
        if SLOPES:
            store_parts(start_slopes, position, both, distance, t.to(tl.float32), ti.to(tl.float32), COMPLEX)
            t, ti = times(t, ti, f, fi, COMPLEX)
            e, ei = times(s, si, d, di, COMPLEX)
            v, vi = load_parts(slopes, position, both, distance, COMPLEX)
            t, ti = t + CHUNK * e + v, ti + CHUNK * ei + vi
        s, si = times(s, si, f, fi, COMPLEX)
        v, vi = load_parts(ends, position, both, distance, COMPLEX)
        s, si = s + v, si + vi


@launched
def average_outputs(
    x, weight, poles, direct, starts, y, length, channels, chunks, dimension, x_row, x_token,
    CHUNK: tl.constexpr, STATES: tl.constexpr, CHANNELS: tl.constexpr, COMPLEX: tl.constexpr,
):  # fmt: skip
    """``sum_n w_n s_n + direct x`` in one chunk, from the averages before it: its real part, or its silu."""
    k, b, c, own, both, parameters, states = program(channels, chunks, dimension, CHANNELS, STATES, COMPLEX)
    q, qi = load_poles(poles, parameters, both, COMPLEX)
    w, wi = load_parts(weight, parameters, both, 1, COMPLEX)
    d = tl.load(direct + c, own, 0.0).to(tl.float32)
    s, si = load_parts(starts, states, both, dimension * channels, COMPLEX)
    for i in range(CHUNK):
        j = k * CHUNK + i
        real = own & (j < length)
        v = tl.load(x + b * x_row + j * x_token + c, real, 0.0).to(tl.float32)
        s, si = times(s, si, q, qi, COMPLEX)
        s += v[:, None]
        total = tl.sum(times(s, si, w, wi, COMPLEX)[0], 1) + d * v
        if not COMPLEX:
            total = silu(total)
        tl.store(y + (b * length + j) * channels + c, total.to(y.dtype.element_ty), real)


@launched
def average_gradients(
    grad, x, weight, poles, direct, starts, start_slopes, dinner, dparameters, ddirect, backward,
    length, channels, chunks, dimension, grad_row, grad_token, x_row, x_token,
    CHUNK: tl.constexpr, STATES: tl.constexpr, CHANNELS: tl.constexpr, COMPLEX: tl.constexpr,
):  # fmt: skip
    """Compute gradients of one chunk: before the activation if there is one, of the parameters by these tokens, and of
    the tokens before the chunk."""
    k, b, c, own, both, parameters, states = program(channels, chunks, dimension, CHANNELS, STATES, COMPLEX)
    q, qi = load_poles(poles, parameters, both, COMPLEX)
    w, wi = load_parts(weight, parameters, both, 1, COMPLEX)
    d = tl.load(direct + c, own, 0.0).to(tl.float32)
    distance = dimension * channels
    s, si = load_parts(starts, states, both, distance, COMPLEX)
    t, ti = load_parts(start_slopes, states, both, distance, COMPLEX)
    by_weight = tl.zeros([CHANNELS, STATES], tl.float32)
    by_weight_i, by_decay, by_decay_i, before, before_i, power_i = (
        by_weight, by_weight, by_weight, by_weight, by_weight, by_weight
    )  # fmt: skip
    power = tl.full([CHANNELS, STATES], 1.0, tl.float32)
    by_direct = tl.zeros([CHANNELS], tl.float32)
    for i in range(CHUNK):
        j = k * CHUNK + i
        real = own & (j < length)
        v = tl.load(x + b * x_row + j * x_token + c, real, 0.0).to(tl.float32)
        g = tl.load(grad + b * grad_row + j * grad_token + c, real, 0.0).to(tl.float32)
        t, ti = times(t, ti, q, qi, COMPLEX)
        t, ti = t + s, ti + si
        s, si = times(s, si, q, qi, COMPLEX)
        s += v[:, None]
        if not COMPLEX:
            g *= silu_slope(tl.sum(w * s, 1) + d * v)
            tl.store(dinner + (b * length + j) * channels + c, g.to(dinner.dtype.element_ty), real)
        by_weight, by_weight_i = by_weight + g[:, None] * s, by_weight_i - g[:, None] * si
        by_decay, by_decay_i = by_decay + g[:, None] * t, by_decay_i + g[:, None] * ti
        by_direct += g * v
        before, before_i = before + power * g[:, None], before_i + power_i * g[:, None]
        power, power_i = times(power, power_i, q, qi, COMPLEX)
    q, qi = times(w, wi, q, qi, COMPLEX)
    by_decay, by_decay_i = times(by_decay, by_decay_i, q, qi, COMPLEX)
    before, before_i = times(before, before_i, w, wi, COMPLEX)
    part = dparameters + (b * chunks + k) * 2 * (1 + COMPLEX) * distance
    place = tl.arange(0, STATES)[None, :] * channels + c[:, None]
    store_parts(part, place, both, distance, by_weight, by_weight_i, COMPLEX)
    store_parts(part + (1 + COMPLEX) * distance, place, both, distance, by_decay, -by_decay_i, COMPLEX)
    store_parts(backward, states, both, distance, before, before_i, COMPLEX)
    tl.store(ddirect + (b * chunks + k) * channels + c, by_direct, own)


@launched
def average_adjoint(
    dinner, weight, poles, direct, starts, dx, length, channels, chunks, dimension, dinner_row, dinner_token,
    CHUNK: tl.constexpr, STATES: tl.constexpr, CHANNELS: tl.constexpr, COMPLEX: tl.constexpr,
):  # fmt: skip
    """The gradient of x in one chunk, from its end to its start."""
    k, b, c, own, both, parameters, states = program(channels, chunks, dimension, CHANNELS, STATES, COMPLEX)
    q, qi = load_poles(poles, parameters, both, COMPLEX)
    w, wi = load_parts(weight, parameters, both, 1, COMPLEX)
    d = tl.load(direct + c, own, 0.0).to(tl.float32)
    a, ai = load_parts(starts, states, both, dimension * channels, COMPLEX)
    for i in range(CHUNK):
        j = k * CHUNK + CHUNK - 1 - i
        real = own & (j < length)
        g = tl.load(dinner + b * dinner_row + j * dinner_token + c, real, 0.0).to(tl.float32)
        a, ai = times(a, ai, q, qi, COMPLEX)
        a, ai = a + w * g[:, None], ai + wi * g[:, None]
        total = tl.sum(a, 1) + d * g
        tl.store(dx + (b * length + j) * channels + c, total.to(dx.dtype.element_ty), real)
