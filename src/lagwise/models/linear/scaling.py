"""Standardised samples."""

from __future__ import annotations

import torch
from torch import Tensor


def standardised(x: Tensor, mean: list[float] | None, std: list[float] | None) -> Tensor:
    """Samples ``(..., channels)`` less the mean of each channel and over its deviation, as far as these are given: in
    float32 at least. A missing one (NaN) counts as the mean."""
    z = x.to(torch.promote_types(x.dtype, torch.float32))
    if mean is not None:
        z = z - z.new_tensor(mean)
    z = z if std is None else z / z.new_tensor(std)
    return z.masked_fill(z.isnan(), 0)
