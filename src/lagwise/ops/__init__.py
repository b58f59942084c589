"""Pure functions of tensors. Needs torch only."""

from lagwise.ops.attention import alibi_slopes, attention, attention_reference
from lagwise.ops.convolution import (
    ENGINES,
    fast_length,
    toeplitz_matrix,
    toeplitz_product,
    toeplitz_reference,
    truncation_length,
)
from lagwise.ops.packing import document_starts, per_document, seq_idx_from_cu_seqlens

__all__ = [
    "ENGINES",
    "alibi_slopes",
    "attention",
    "attention_reference",
    "document_starts",
    "fast_length",
    "per_document",
    "seq_idx_from_cu_seqlens",
    "toeplitz_matrix",
    "toeplitz_product",
    "toeplitz_reference",
    "truncation_length",
]
