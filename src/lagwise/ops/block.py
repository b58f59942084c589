"""Toeplitz products by blocks: exactly causal, and all matrix multiplication."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

from lagwise.ops.spectral import compute_dtype

_BLOCK = 64


def block_product(x: Tensor, taps: Tensor, origin: int) -> Tensor:
    """Cut the matrix into ``_BLOCK``-sized Toeplitz blocks; one batched GEMM for each block distance.

    Entries above the diagonal of a causal kernel are exact zeros and blocks above it are never touched, so a finite
    future cannot reach the past, not even by rounding.
    """
    dtype = compute_dtype(x, taps)
    batch, length, channels = x.shape
    size = min(_BLOCK, length)
    blocks = -(-length // size)
    signal = F.pad(x.to(dtype), (0, 0, 0, blocks * size - length)).reshape(batch, blocks, size, channels)
    signal = signal.permute(3, 2, 1, 0).flip(1)  # (channels, size, blocks, batch), last token of a block first
    furthest = min(blocks - 1, (taps.shape[1] - 1 - origin + size - 1) // size)
    nearest = -min(blocks - 1, (origin + size - 1) // size)
    # Row i of the Hankel view from lag (distance - 1) * size + 1 on, times a reversed block, is row i of the Toeplitz
    # block: views of one padded row of taps, where an index array would cost a gather and its gradient a scatter.
    before = max(0, (1 - nearest) * size - 1 - origin)
    after = max(0, (furthest + 1) * size + origin - taps.shape[1])
    padded = F.pad(taps.to(dtype), (before, after))
    total = signal.new_zeros(signal.shape)
    for distance in range(nearest, furthest + 1):
        lag = (distance - 1) * size + 1 + origin + before
        matrix = padded[:, lag : lag + 2 * size - 1].unfold(1, size, 1)
        first, last = max(0, -distance), blocks - max(0, distance)
        product = torch.bmm(matrix, signal[:, :, first:last].flatten(2)).unflatten(2, (last - first, batch))
        # Pad to full size and add: in-place slices would cost autograd a copy of the total for every distance.
        total = total + F.pad(product, (0, 0, first + distance, blocks - last - distance))
    y = total.permute(3, 2, 1, 0).reshape(batch, blocks * size, channels)[:, :length]
    return y.to(x.dtype)
