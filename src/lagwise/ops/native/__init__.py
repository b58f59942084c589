"""Loops in C, compiled on the machine that runs them, for the few operations that PyTorch does slowly on a CPU.

The C files are compiled at first use, in a few seconds, with the compiler in ``$CC`` or ``cc``, and kept in the
cache for later processes (`load_compiled`). Without a compiler, on systems other than Linux, or with
``LAGWISE_NATIVE=0``, callers use PyTorch, which gives the same results for finite values.
"""

from lagwise.ops.native.library import MIN_ELEMENTS, available, lanes, serves
from lagwise.ops.native.loops import (
    convolve,
    convolve_gradients,
    gated_grid,
    gated_grid_gradients,
    grid_into,
    lag_products,
    norm_gradients_like,
    norm_like,
    residual_norm,
    residual_norm_gradients,
    row_programs,
    silu_product,
    silu_product_gradients,
)
