"""Measures of the distance between two signals."""

from __future__ import annotations

import math

import numpy as np
import torch
from torch import Tensor

_LEAST = 1e-10  # is added to the powers that a ratio compares, relative to their sum


def si_sdr(estimate: Tensor, target: Tensor, known: Tensor, *, any_scale: bool = True) -> Tensor:
    """Compute the scale-invariant ratio of signal to distortion in dB, of signals ``(..., samples)``; higher is better.

    Formula: ``10 log10(|a t|^2 / |a t - y|^2)`` with ``a = <y, t> / |t|^2``, over the samples that are ``known``; a is
    1 without ``any_scale``. NaN where the target is silent. Between -100 and 100 dB.

    Source: Le Roux et al. 2019, "SDR - half-baked or well done?".
    """
    t, y = (torch.where(known, each, 0) for each in (target, estimate))
    whole = t.square().sum(-1)
    part = (y * t).sum(-1, keepdim=True) / torch.where(whole > 0, whole, 1)[..., None] * t if any_scale else t
    good, bad = part.square().sum(-1), (part - y).square().sum(-1)
    least = _LEAST * torch.where(good + bad > 0, good + bad, 1)
    ratio = (good + least) / (bad + least)
    return torch.where(whole > 0, 10 / math.log(10) * ratio.log(), torch.nan)


def signal_scores(estimate: np.ndarray, target: np.ndarray) -> dict[str, float]:
    """mse and mae, and si_sdr, a mean over the outputs, of a signal ``(samples, outputs)``; targets may be missing
    (NaN). Scores without a value, such as the si_sdr of silence, are NaN."""
    known = ~np.isnan(target)
    errors = (estimate.astype(np.float64) - target)[known]
    y, t, k = (
        torch.tensor(each.T, device="cpu") for each in (estimate.astype(np.float64), target.astype(np.float64), known)
    )
    ratios = si_sdr(y, t, k)
    ratios = ratios[~ratios.isnan()]
    if not len(errors):
        return dict.fromkeys(("mse", "mae", "si_sdr"), math.nan)
    return {
        "mse": float(np.square(errors).mean()),
        "mae": float(np.abs(errors).mean()),
        "si_sdr": float(ratios.mean()) if len(ratios) else math.nan,
    }
