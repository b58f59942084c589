"""Standardisation of samples."""

from __future__ import annotations

import torch
from torch import Tensor


def standardised(x: Tensor, mean: list[float] | None, std: list[float] | None) -> Tensor:
    """Standardise samples ``(..., channels)`` by the mean and deviation of each channel, as far as these are given, in
    at least float32: in bfloat16 a signal far from 0 would lose its digits."""
    x = x.to(torch.promote_types(x.dtype, torch.float32))
    if mean is not None:
        x = x - x.new_tensor(mean)
    return x if std is None else x / x.new_tensor(std)
