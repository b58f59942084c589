"""The exact state space with n states for n taps, a baseline for smaller state spaces."""

from __future__ import annotations

import torch
from torch import Tensor

from lagwise.ops import Modes


def n_state_modes(taps: Tensor) -> Modes:
    """Convert taps to a diagonal state space with as many states, by their discrete Fourier transform.

    Formula: ``k_l = (1/n) sum_s K_s exp(2 pi j s l / n)``, K the DFT of the taps: poles ``exp(2 pi j s / n)``, weights
    ``K_s / n``. Conjugate pairs share one mode, so there are ``n // 2 + 1`` modes.

    Shapes: taps ``(channels, n)``, lag 0 first; result `Modes`, direct 0, in the precision of the taps or float32.

    The result is exact for the first n tokens only. The poles lie on the unit circle, so the state does not decay and
    the taps repeat with period n. For a longer stream the state must be recomputed, or the token n lags back subtracted
    at every step. Rounding errors do not decay either. `modal_taps` and `DiagonalSSM` accept these
    modes.

    Source: the conversion of Qin and Zhong 2023 ("Accelerating Toeplitz Neural Network with Constant-time Inference
    Complexity"), which uses one state per tap.
    """
    n = taps.shape[1]
    spectrum = torch.fft.rfft(taps.to(torch.promote_types(taps.dtype, torch.float32)), n)
    weights = spectrum / n
    weights[:, 1 : (n + 1) // 2] *= 2  # frequencies 0 and pi are their own conjugates
    angle = 2 * torch.pi * torch.arange(n // 2 + 1, dtype=torch.float64, device=taps.device) / n
    poles = torch.polar(torch.ones_like(angle), angle).to(weights.dtype)
    return Modes(poles.expand_as(weights), weights, weights.real.new_zeros(len(taps)))
