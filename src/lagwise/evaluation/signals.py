"""Measures of the distance between two signals."""

from __future__ import annotations

import math

import numpy as np
import torch
from torch import Tensor

_RELATIVE_EPSILON = 1e-10  # added to both powers of a ratio, relative to their sum


def si_sdr(estimate: Tensor, target: Tensor, mask: Tensor, *, any_scale: bool = True) -> Tensor:
    """Compute the scale-invariant ratio of signal to distortion in dB, of signals ``(..., samples)``; higher is better.

    Formula: ``10 log10(|a t|^2 / |a t - y|^2)`` with ``a = <y, t> / |t|^2``, over the samples where ``mask`` is True; a
    is 1 without ``any_scale``. NaN where the target is silent. Between -100 and 100 dB.

    Source: Le Roux et al. 2019, "SDR - half-baked or well done?".
    """
    t, y = (torch.where(mask, each, 0) for each in (target, estimate))
    target_power = t.square().sum(-1)
    scale = (y * t).sum(-1, keepdim=True) / torch.where(target_power > 0, target_power, 1)[..., None]
    reference = scale * t if any_scale else t
    signal_power, error_power = reference.square().sum(-1), (reference - y).square().sum(-1)
    epsilon = _RELATIVE_EPSILON * torch.where(signal_power + error_power > 0, signal_power + error_power, 1)
    ratio = (signal_power + epsilon) / (error_power + epsilon)
    return torch.where(target_power > 0, 10 / math.log(10) * ratio.log(), torch.nan)


def signal_scores(estimate: np.ndarray, target: np.ndarray) -> dict[str, float]:
    """Compute ``mse``, ``mae`` and ``si_sdr``, the mean over the outputs, of a signal ``(samples, outputs)``; targets
    may be missing (NaN). Scores without a value, such as the si_sdr of silence, are NaN."""
    is_known = ~np.isnan(target)
    errors = (estimate.astype(np.float64) - target)[is_known]
    signals = (estimate.astype(np.float64), target.astype(np.float64), is_known)
    ratios = si_sdr(*(torch.tensor(each.T, device="cpu") for each in signals))
    ratios = ratios[~ratios.isnan()]
    if not len(errors):
        return dict.fromkeys(("mse", "mae", "si_sdr"), math.nan)
    return {
        "mse": float(np.square(errors).mean()),
        "mae": float(np.abs(errors).mean()),
        "si_sdr": float(ratios.mean()) if len(ratios) else math.nan,
    }
