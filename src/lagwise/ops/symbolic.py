"""Products at a length that an exported graph leaves open: without FFTs, complex numbers or loops over the length."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

from lagwise.ops.precision import compute_dtype

FINE = 64  # distance of exponentials over a symbolic number of lags; those between are products


def symbolic(length: int) -> bool:
    """Whether a length is a symbol of a graph being exported, so that nothing may depend on its value."""
    return not isinstance(length, int)


def chunk_count(length: int, size: int) -> int:
    """Number of pieces of a size that hold a symbolic length: at least two, because a graph exported with a single
    piece works for no other number."""
    return length // size + 2


def symbolic_product(x: Tensor, taps: Tensor, origin: int, dilation: int = 1) -> Tensor:
    """`direct_product` at a symbolic length, for any number of taps.

    A depthwise convolution: O(length * taps), exactly causal.
    """
    dtype, count = compute_dtype(x, taps), taps.shape[1]
    with torch.autocast(x.device.type, enabled=False):
        padded = F.pad(x.to(dtype).transpose(1, 2), ((count - 1 - origin) * dilation, origin * dilation))
        y = F.conv1d(padded, taps.to(dtype).flip(1)[:, None], groups=x.shape[2], dilation=dilation)
    return y.transpose(1, 2).to(x.dtype)
