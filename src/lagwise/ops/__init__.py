"""Pure functions of tensors. Needs torch only."""

from lagwise.ops.attention import alibi_slopes, attention, attention_reference
from lagwise.ops.block import toeplitz_matrix
from lagwise.ops.chunked_attention import (
    ATTENTION_FUNCTIONS,
    chunked_attention,
    chunked_attention_reference,
    first_real,
    lag_matrix,
    pair_attention,
    rotary,
    rotary_factors,
    rotate,
)
from lagwise.ops.convolution import (
    ENGINES,
    EXACT_ENGINES,
    toeplitz_product,
    toeplitz_reference,
    truncation_length,
)
from lagwise.ops.diagonal_scan import diagonal_scan
from lagwise.ops.dilated_conv import (
    StackShape,
    centre_tap,
    circular_convolution,
    covering_shapes,
    dilated_convolution,
    dilated_prefill,
    dilated_stack,
    receptive_field,
    smallest_dilation,
)
from lagwise.ops.ema import ema_parameters, ema_prefill, ema_recurrence, ema_scan, ema_taps
from lagwise.ops.interpolation import (
    NodeGrid,
    inducing_grid,
    interpolation_matrix,
    prolong,
    restrict,
    row_spacing,
    spaced_grid,
)
from lagwise.ops.linear_attention import linear_attention
from lagwise.ops.local import direct_product
from lagwise.ops.modal import Modes, mean_exponential, modal_poles, modal_prefill, modal_step, modal_taps, modal_taps_of
from lagwise.ops.online_conv import ONLINE_BLOCK, OnlineState, OnlineTaps, online_follow, online_prefill
from lagwise.ops.packing import (
    Layout,
    document_starts,
    from_first_token,
    move_rows,
    per_document,
    row_extents,
    seq_idx_from_cu_seqlens,
)
from lagwise.ops.ragged_dft import ragged_dft
from lagwise.ops.ring import (
    ring_convolve,
    ring_extend,
    ring_lags,
    ring_of,
    ring_product,
    ring_read,
    ring_tokens,
    ring_write,
)
from lagwise.ops.scan import block_scan
from lagwise.ops.ski import (
    SKIPlan,
    causal_ski_matrix,
    causal_ski_product,
    ragged_ski_product,
    ski_product,
    ski_reference,
    split_kernel,
)
from lagwise.ops.ski_plans import best_plan, plan_from_tolerance, ski_error
from lagwise.ops.spectral import fast_length, spectral_product
from lagwise.ops.state_space import Reduction, reduce_taps
from lagwise.ops.symbolic import symbolic, symbolic_product
from lagwise.ops.window import Window

__all__ = [
    "ATTENTION_FUNCTIONS",
    "ENGINES",
    "EXACT_ENGINES",
    "ONLINE_BLOCK",
    "Layout",
    "Modes",
    "NodeGrid",
    "OnlineState",
    "OnlineTaps",
    "Reduction",
    "SKIPlan",
    "StackShape",
    "Window",
    "alibi_slopes",
    "attention",
    "attention_reference",
    "best_plan",
    "block_scan",
    "causal_ski_matrix",
    "causal_ski_product",
    "centre_tap",
    "chunked_attention",
    "chunked_attention_reference",
    "circular_convolution",
    "covering_shapes",
    "diagonal_scan",
    "dilated_convolution",
    "dilated_prefill",
    "dilated_stack",
    "direct_product",
    "document_starts",
    "ema_parameters",
    "ema_prefill",
    "ema_recurrence",
    "ema_scan",
    "ema_taps",
    "fast_length",
    "first_real",
    "from_first_token",
    "inducing_grid",
    "interpolation_matrix",
    "lag_matrix",
    "linear_attention",
    "mean_exponential",
    "modal_poles",
    "modal_prefill",
    "modal_step",
    "modal_taps",
    "modal_taps_of",
    "move_rows",
    "online_follow",
    "online_prefill",
    "pair_attention",
    "per_document",
    "plan_from_tolerance",
    "prolong",
    "ragged_dft",
    "ragged_ski_product",
    "receptive_field",
    "reduce_taps",
    "restrict",
    "ring_convolve",
    "ring_extend",
    "ring_lags",
    "ring_of",
    "ring_product",
    "ring_read",
    "ring_tokens",
    "ring_write",
    "rotary",
    "rotary_factors",
    "rotate",
    "row_extents",
    "row_spacing",
    "seq_idx_from_cu_seqlens",
    "ski_error",
    "ski_product",
    "ski_reference",
    "smallest_dilation",
    "spaced_grid",
    "spectral_product",
    "split_kernel",
    "symbolic",
    "symbolic_product",
    "toeplitz_matrix",
    "toeplitz_product",
    "toeplitz_reference",
    "truncation_length",
]
