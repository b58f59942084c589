"""Pure functions of tensors. Needs torch only."""

from lagwise.ops.attention import alibi_slopes, attention, attention_reference
from lagwise.ops.convolution import (
    ENGINES,
    toeplitz_matrix,
    toeplitz_product,
    toeplitz_reference,
    truncation_length,
)
from lagwise.ops.packing import document_starts, per_document, seq_idx_from_cu_seqlens
from lagwise.ops.spectral import SPECTRAL_ENGINES, fast_length, spectral_product

__all__ = [
    "ENGINES",
    "SPECTRAL_ENGINES",
    "alibi_slopes",
    "attention",
    "attention_reference",
    "document_starts",
    "fast_length",
    "per_document",
    "seq_idx_from_cu_seqlens",
    "spectral_product",
    "toeplitz_matrix",
    "toeplitz_product",
    "toeplitz_reference",
    "truncation_length",
]
