"""Toeplitz matrices, their blocks, and sums of products of signals at each lag by matrix multiplication."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

from lagwise.ops.operation import compute_dtype

_LAG_BLOCK, _SHORT_LAG_BLOCK = 32, 16  # the shorter for fewer lags than the longer has


def toeplitz_blocks(taps: Tensor, origin: int, size: int, first: int, last: int) -> Tensor:
    """Blocks ``M[d, c, i, j] = t[c, d * size + i - j]`` of Toeplitz matrices, for block distances d = first..last.

    Shapes: taps ``(channels, n_taps)`` with lag 0 at index ``origin``, zero outside; result
    ``(last - first + 1, channels, size, size)``. Source: TNN eq. 3.
    """
    low = origin + (first - 1) * size + 1  # index of the first block's smallest lag
    high = origin + (last + 1) * size  # one after the last block's largest lag
    band = F.pad(taps[:, max(0, low) : max(0, high)], (max(0, -low), max(0, high - max(taps.shape[1], low))))
    # Views of one row avoid an index array, which would need a gather, and a scatter for its gradient.
    hankel = band.unfold(1, 2 * size - 1, size).unfold(2, size, 1)  # (channels, distance, i, size - 1 - j)
    return hankel.flip(3).transpose(0, 1)


def toeplitz_matrix(taps: Tensor, length: int, *, causal: bool = True) -> Tensor:
    """Build dense Toeplitz matrices ``T[c, i, j] = t[c, i - j]`` (TNN eq. 3).

    Args:
        taps: ``(channels, n_taps)`` as in `toeplitz_product`. Lags without a tap are zero.
        length: Rows and columns of each matrix.
        causal: Whether taps start at lag 0; otherwise lag 0 is in the middle.

    Returns:
        ``(channels, length, length)``.

    Raises:
        ValueError: For an even number of two-sided taps.

    >>> toeplitz_matrix(torch.tensor([[1.0, 0.5]]), 3)
    tensor([[[1.0000, 0.0000, 0.0000],
             [0.5000, 1.0000, 0.0000],
             [0.0000, 0.5000, 1.0000]]])
    """
    return toeplitz_blocks(taps, 0 if causal else centre(taps), length, 0, 0)[0]


def centre(taps: Tensor) -> int:
    """Index of lag 0 among two-sided taps. ValueError for an even number of taps."""
    if taps.shape[1] % 2 == 0:
        raise ValueError(f"two-sided taps need an odd number of lags, with lag 0 in the middle, got {taps.shape[1]}")
    return taps.shape[1] // 2


def block_lag_products(y: Tensor, x: Tensor, first: int, last: int) -> Tensor:
    """Compute sums ``sum_i y_i x_{i - l}`` of every channel, also over the batch, for lags l = first..last.

    Shapes: x and y ``(batch, length, channels)``; result ``(channels, last - first + 1)``. ValueError if first > last.
    """
    if first > last:
        raise ValueError(f"the first lag must not be after the last, got {first} and {last}")
    channels, dtype = x.shape[2], compute_dtype(x, y)
    size = min(x.shape[1], _SHORT_LAG_BLOCK if last - first < _LAG_BLOCK else _LAG_BLOCK)
    before, after = max(0, -(-last // size)), max(0, -(first // size))  # blocks that lags reach
    padding = (0, 0, before * size, after * size + -x.shape[1] % size)
    # (channels, blocks, size), row after row of the batch: only zeros are multiplied with those of another row.
    signal, grad = (F.pad(t.to(dtype), padding).flatten(0, 1).t().contiguous().unflatten(1, (-1, size)) for t in (x, y))
    end = signal.shape[1] - after
    with torch.autocast(x.device.type, enabled=False):
        pairs = [grad[:, before:end].mT @ signal[:, before - d : end - d] for d in range(before, -after - 1, -1)]
    products = torch.cat(pairs, 2)  # entry (i, j) is of lag before * size + i - j
    shape, width = (channels, size, last - first + 1), products.shape[2]
    by_lag = products.as_strided(shape, (size * width, width + 1, 1), before * size - last)
    return by_lag.sum(1).flip(1)
