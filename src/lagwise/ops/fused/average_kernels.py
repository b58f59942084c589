"""The source of the kernels of `average`. Imports Triton.

Offsets of rows are int64: a tensor may have more than 2**31 elements.
"""

import triton.language as tl

from lagwise.ops.fused.launcher import launched, silu, silu_slope


@launched
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
    position = ((b * chunks + k) * dimension + n[None, :]) * channels + c[:, None]
    tl.store(ends + position, s, both)
    tl.store(slopes + position, t, both)


@launched
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
        position = ((b * chunks + k) * dimension + n[None, :]) * channels + c[:, None]
        tl.store(starts + position, s, both)
        if SLOPES:
            tl.store(start_slopes + position, t, both)
            t = factor * t + slope * s + tl.load(slopes + position, both, 0.0)
        s = factor * s + tl.load(ends + position, both, 0.0)


@launched
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


@launched
def average_gradients(
    grad, x, weight, log_decay, direct, starts, start_slopes, dinner, dparameters, ddirect, backward,
    length, channels, chunks, dimension, grad_row, grad_token, x_row, x_token,
    CHUNK: tl.constexpr, STATES: tl.constexpr, CHANNELS: tl.constexpr,
):  # fmt: skip
    """Compute gradients of one chunk: before the activation, of the parameters by these tokens, and of the tokens
    before the chunk."""
    k, b = tl.program_id(0).to(tl.int64), tl.program_id(2).to(tl.int64)
    c = tl.program_id(1) * CHANNELS + tl.arange(0, CHANNELS)
    n = tl.arange(0, STATES)
    own = c < channels
    both = own[:, None] & (n < dimension)[None, :]
    q = tl.exp(tl.load(log_decay + c[:, None] * dimension + n[None, :], both, 0.0))
    w = tl.load(weight + c[:, None] * dimension + n[None, :], both, 0.0)
    d = tl.load(direct + c, own, 0.0).to(tl.float32)
    position = ((b * chunks + k) * dimension + n[None, :]) * channels + c[:, None]
    s, t = tl.load(starts + position, both, 0.0), tl.load(start_slopes + position, both, 0.0)
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
    tl.store(backward + position, before * w, both)
    tl.store(ddirect + (b * chunks + k) * channels + c, by_direct, own)


@launched
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
