"""Softmax attention, whole and in chunks."""

from lagwise.ops.attention.chunked import (
    ATTENTION_FUNCTIONS,
    chunked_attention,
    first_real,
    lag_matrix,
    pair_attention,
    rotary,
    rotary_factors,
    rotate,
)
from lagwise.ops.attention.full import alibi_slopes, attention
