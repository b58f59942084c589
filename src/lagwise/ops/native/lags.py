"""Sums of products of two signals at every lag."""

from __future__ import annotations

import ctypes
import math

import torch
from torch import Tensor

from lagwise.ops.native.library import longs, loops, pointers

# Partial sums distribute the work and round less than one long sum, but must be added up at the end.
_PARTS_PER_THREAD, _TOKENS_OF_A_PART, _ELEMENTS_OF_PARTS = 8, 512, 1 << 22
_MOST_LAGS = 1024  # at once: the loop keeps more than this many tokens on a thread's stack


def lag_products(y: Tensor, x: Tensor, first: int, last: int, dilation: int) -> Tensor:
    """Sums ``sum_i y_i x_{i - l dilation}`` of every channel, also over the batch, for l = first..last.

    Shapes: x and y ``(batch, length, channels)``, float32, on the CPU; result ``(channels, last - first + 1)``.
    """
    y, x = (t if t.stride(2) == 1 else t.contiguous() for t in (y, x))
    ranges = [(start, min(start + _MOST_LAGS - 1, last)) for start in range(first, last + 1, _MOST_LAGS)]
    return torch.cat([_some_lag_products(y, x, start, stop, dilation) for start, stop in ranges], dim=1)


def _some_lag_products(y: Tensor, x: Tensor, first: int, last: int, dilation: int) -> Tensor:
    library, group, lag_group, *_ = loops()
    (batch, length, channels), lags, threads = x.shape, last - first + 1, torch.get_num_threads()
    part = (-(-channels // group), -(-lags // lag_group) * lag_group, group)
    most = min(batch * length // _TOKENS_OF_A_PART, _PARTS_PER_THREAD * threads, _ELEMENTS_OF_PARTS // math.prod(part))
    parts = max(1, most)
    out = torch.empty((parts, *part), dtype=torch.float32, device="cpu")
    library.lag_products(
        *(*pointers(y), *longs(y.stride(0), y.stride(1))),
        *(*pointers(x), *longs(x.stride(0), x.stride(1))),
        *pointers(out),
        *longs(batch, length, channels, dilation, first, last, parts),
        ctypes.c_int(threads),
    )
    return out.sum(0).transpose(1, 2).flatten(0, 1)[:channels, :lags].flip(1)
