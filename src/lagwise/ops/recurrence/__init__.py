"""Linear recurrences: scans, moving averages, modal state spaces, and the reduction of taps to them."""

from lagwise.ops.recurrence.diagonal import (
    Blocks,
    DiagonalSSM,
    Modes,
    ema_blocks,
    ema_parameters,
    ema_scan,
    ema_taps,
    mean_exponential,
    modal_taps,
    modal_taps_of,
    zoh_inputs,
    zoh_mix,
    zoh_tokens,
)
from lagwise.ops.recurrence.scan import block_scan, varying_scan
from lagwise.ops.recurrence.state_space import Reduction, largest_difference, reduce_taps
from lagwise.ops.recurrence.timestep_norm import Moments, moments_so_far, normalised, timestep_norm, token_moments
