"""The precision that products are computed in."""

from __future__ import annotations

import torch
from torch import Tensor


def compute_dtype(x: Tensor, taps: Tensor) -> torch.dtype:
    """float64 if either input is, otherwise float32: half-precision FFTs are unsupported or too inaccurate."""
    return torch.float64 if {x.dtype, taps.dtype} & {torch.float64, torch.complex128} else torch.float32
