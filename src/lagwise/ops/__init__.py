"""Pure functions of tensors. Needs torch only. Sub-packages have more, by what they compute."""

from lagwise.ops.attention import chunked_attention
from lagwise.ops.packing import Layout
from lagwise.ops.product import ENGINES, EXACT_ENGINES, toeplitz_product, toeplitz_reference
from lagwise.ops.recurrence import Modes, Reduction, block_scan, ema_scan, reduce_taps
from lagwise.ops.ski import SKIPlan, causal_ski_product, ski_product
from lagwise.ops.streaming import online_prefill
from lagwise.ops.toeplitz import dilated_convolution, toeplitz_matrix, truncation_length

__all__ = [
    "ENGINES",
    "EXACT_ENGINES",
    "Layout",
    "Modes",
    "Reduction",
    "SKIPlan",
    "block_scan",
    "causal_ski_product",
    "chunked_attention",
    "dilated_convolution",
    "ema_scan",
    "online_prefill",
    "reduce_taps",
    "ski_product",
    "toeplitz_matrix",
    "toeplitz_product",
    "toeplitz_reference",
    "truncation_length",
]
