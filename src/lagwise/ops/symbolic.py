"""Products at a length that an exported graph leaves open: without FFTs, complex numbers or loops over the length."""

from __future__ import annotations

from typing import cast

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.fx.experimental.symbolic_shapes import has_static_value

from lagwise.ops.operation import in_graph
from lagwise.ops.precision import compute_dtype

FINE = 64  # distance of exponentials over a symbolic number of lags; those between are products


def symbolic(length: int) -> bool:
    """Whether a length is a symbol of a graph being exported, so that nothing may depend on its value."""
    return not isinstance(length, int)


def open_length(length: int) -> bool:
    """Whether a graph being recorded may have to hold for other lengths, too."""
    return symbolic(length) or in_graph()


def chunk_count(length: int, size: int) -> int:
    """Number of chunks of a size that hold a length: at least two where a graph leaves it open, because a graph of a
    single chunk works for no other number."""
    if symbolic(length):
        return length // size + 2
    whole = -(-length // size)
    return whole if has_static_value(length) else cast("int", torch.sym_max(whole, 2))


def symbolic_product(x: Tensor, taps: Tensor, origin: int, dilation: int = 1) -> Tensor:
    """`direct_product` at a symbolic length, for any number of taps.

    A depthwise convolution: O(length * taps), exactly causal.
    """
    dtype, count = compute_dtype(x, taps), taps.shape[1]
    with torch.autocast(x.device.type, enabled=False):
        padded = F.pad(x.to(dtype).transpose(1, 2), ((count - 1 - origin) * dilation, origin * dilation))
        y = F.conv1d(padded, taps.to(dtype).flip(1)[:, None], groups=x.shape[2], dilation=dilation)
    return y.transpose(1, 2).to(x.dtype)
