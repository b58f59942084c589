"""Linear recurrences: scans, moving averages, modal state spaces, and the reduction of taps to them."""

from lagwise.ops.recurrence.ema import (
    ema_graph_prefill,
    ema_last,
    ema_parameters,
    ema_prefill,
    ema_recurrence,
    ema_scan,
    ema_taps,
)
from lagwise.ops.recurrence.modal import (
    MIN_RADIUS,
    ModalBlocks,
    Modes,
    SplitModes,
    mean_exponential,
    modal_block,
    modal_graph_prefill,
    modal_poles,
    modal_prefill,
    modal_step,
    modal_taps,
    modal_taps_of,
    zoh_inputs,
)
from lagwise.ops.recurrence.scan import block_scan
from lagwise.ops.recurrence.state_space import Reduction, reduce_taps
from lagwise.ops.recurrence.timestep_norm import Moments, moments_so_far, normalised, timestep_norm, token_moments
from lagwise.ops.recurrence.transfer import largest_difference
from lagwise.ops.recurrence.varying_scan import varying_scan, zoh_sums, zoh_tokens
