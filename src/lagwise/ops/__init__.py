"""Pure functions of tensors. Needs torch only."""

from lagwise.ops.attention import alibi_slopes, attention, attention_reference
from lagwise.ops.block import toeplitz_matrix
from lagwise.ops.convolution import (
    ENGINES,
    EXACT_ENGINES,
    toeplitz_product,
    toeplitz_reference,
    truncation_length,
)
from lagwise.ops.interpolation import (
    NodeGrid,
    inducing_grid,
    interpolation_matrix,
    prolong,
    restrict,
    spaced_grid,
)
from lagwise.ops.local import direct_product
from lagwise.ops.packing import document_starts, per_document, seq_idx_from_cu_seqlens
from lagwise.ops.ski import (
    SKIPlan,
    best_plan,
    causal_ski_matrix,
    causal_ski_product,
    plan_from_tolerance,
    ski_error,
    ski_product,
    ski_reference,
    split_kernel,
)
from lagwise.ops.spectral import SPECTRAL_ENGINES, fast_length, spectral_product
from lagwise.ops.window import Window

__all__ = [
    "ENGINES",
    "EXACT_ENGINES",
    "SPECTRAL_ENGINES",
    "NodeGrid",
    "SKIPlan",
    "Window",
    "alibi_slopes",
    "attention",
    "attention_reference",
    "best_plan",
    "causal_ski_matrix",
    "causal_ski_product",
    "direct_product",
    "document_starts",
    "fast_length",
    "inducing_grid",
    "interpolation_matrix",
    "per_document",
    "plan_from_tolerance",
    "prolong",
    "restrict",
    "seq_idx_from_cu_seqlens",
    "ski_error",
    "ski_product",
    "ski_reference",
    "spaced_grid",
    "spectral_product",
    "split_kernel",
    "toeplitz_matrix",
    "toeplitz_product",
    "toeplitz_reference",
    "truncation_length",
]
