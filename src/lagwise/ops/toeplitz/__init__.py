"""Convolutions by exact engines, lag by lag or by FFT, their gates, and stacks of dilated ones."""

from lagwise.ops.toeplitz.block import block_lag_products, toeplitz_matrix
from lagwise.ops.toeplitz.convolution import (
    convolution,
    gated_product,
    reachable_taps,
    truncation_length,
)
from lagwise.ops.toeplitz.dilated import (
    centre_tap,
    dilated_convolution,
    dilated_prefill,
    dilated_step,
    receptive_field,
    tap_reach,
)
from lagwise.ops.toeplitz.spectral import fast_length
