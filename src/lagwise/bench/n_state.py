"""The exact state space of n states for n taps: what a shorter one is compared with."""

from __future__ import annotations

import torch
from torch import Tensor

from lagwise.ops import Modes


def n_state_modes(taps: Tensor) -> Modes:
    """Taps as a diagonal state space of as many states, by their discrete Fourier transform: a baseline for benchmarks.

    Formula: ``k_l = (1/n) sum_s K_s exp(2 pi j s l / n)``, K the DFT of the taps: poles ``exp(2 pi j s / n)``, weights
    ``K_s / n``. Conjugate pairs are one mode, so that there are ``n // 2 + 1`` of them.

    Shapes: taps ``(channels, n)``, lag 0 first; result `Modes`, direct 0, in the precision of the taps or float32.

    Preconditions: exact for the first n tokens only. The poles lie on the unit circle, nothing is ever forgotten, and
    tap ``l + n`` is tap l again: a longer stream needs its state made anew, or the token n lags back taken out of it at
    every step. Rounding does not decay either. `modal_taps`, `modal_step` and `modal_prefill` take these modes.

    Source: the conversion of Qin and Zhong 2023 ("Accelerating Toeplitz Neural Network with Constant-time Inference
    Complexity"), which takes one state for each tap.
    """
    n = taps.shape[1]
    spectrum = torch.fft.rfft(taps.to(torch.promote_types(taps.dtype, torch.float32)), n)
    weights = spectrum / n
    weights[:, 1 : (n + 1) // 2] *= 2  # all but frequencies 0 and pi, which are their own conjugates
    angle = 2 * torch.pi * torch.arange(n // 2 + 1, dtype=torch.float64, device=taps.device) / n
    poles = torch.polar(torch.ones_like(angle), angle).to(weights.dtype)
    return Modes(poles.expand_as(weights), weights, weights.real.new_zeros(len(taps)))
