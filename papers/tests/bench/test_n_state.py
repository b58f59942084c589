"""The state space with one state per tap is exact for that many tokens, then periodic."""

from __future__ import annotations

import pytest
import torch

from lagwise.ops import toeplitz_product
from lagwise.ops.recurrence import modal_prefill, modal_taps
from lagwise_papers.bench.n_state import n_state_modes


@pytest.mark.parametrize("n", [1, 2, 3, 8, 33])
def test_n_states_reproduce_n_taps_periodically(n: int) -> None:
    taps = torch.randn(3, n, dtype=torch.float64)
    modes = n_state_modes(taps)
    assert modes.poles.shape == (3, n // 2 + 1)
    torch.testing.assert_close(modal_taps(modes, 3 * n), taps.repeat(1, 3), rtol=0, atol=1e-12)
    x = torch.randn(2, n, 3, dtype=torch.float64)
    y, _ = modal_prefill(x, modes, None)
    torch.testing.assert_close(y, toeplitz_product(x, taps, engine="dense"), rtol=0, atol=1e-12)


def test_n_states_are_float32_for_lower_precisions() -> None:
    modes = n_state_modes(torch.randn(2, 5, dtype=torch.bfloat16))
    assert modes.poles.dtype == modes.weights.dtype == torch.complex64
    assert modes.direct.dtype == torch.float32
