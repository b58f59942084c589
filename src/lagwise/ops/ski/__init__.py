"""Structured kernel interpolation: Toeplitz products in linear time, approximately."""

from lagwise.ops.ski.interpolation import (
    NodeGrid,
    inducing_grid,
    interpolation_matrix,
    prolong,
    restrict,
    row_spacing,
    spaced_grid,
)
from lagwise.ops.ski.products import (
    PLANS,
    SAMPLED_LAGS,
    SKIPlan,
    best_plan,
    causal_ski_matrix,
    causal_ski_product,
    ski_error,
    ski_product,
    ski_reference,
    split_kernel,
)
