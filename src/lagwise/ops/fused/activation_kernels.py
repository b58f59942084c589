"""Activations and their slopes, for kernels in Triton."""

import triton
import triton.language as tl


@triton.jit
def silu(x):
    return x * tl.sigmoid(x)


@triton.jit
def silu_slope(x):
    s = tl.sigmoid(x)
    return s * (1 + x * (1 - s))
