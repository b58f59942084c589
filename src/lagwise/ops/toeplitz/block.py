"""Toeplitz matrices, their blocks, and sums of products of signals at each lag by matrix multiplication."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from lagwise.ops.precision import compute_dtype

_LAG_BLOCK, _SHORT_LAG_BLOCK = 32, 16  # the shorter for fewer lags than the longer has
# Elements of the signal that are transposed, multiplied and transposed back at a time: 8 MB of float32.
_CPU_TILE_ELEMENTS = 1 << 21


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
    """Dense Toeplitz matrices ``T[c, i, j] = t[c, i - j]`` (TNN eq. 3).

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
    origin = 0 if causal else centre(taps)
    lag = torch.arange(length, device=taps.device)[:, None] - torch.arange(length, device=taps.device)[None, :]
    index = lag + origin
    inside = (index >= 0) & (index < taps.shape[1])
    return taps[:, index.clamp(0, taps.shape[1] - 1)] * inside


def centre(taps: Tensor) -> int:
    """Index of lag 0 among two-sided taps. ValueError for an even number of taps."""
    if taps.shape[1] % 2 == 0:
        raise ValueError(f"two-sided taps need an odd number of lags, with lag 0 in the middle, got {taps.shape[1]}")
    return taps.shape[1] // 2


def block_outer(y: Tensor, x: Tensor, dtype: torch.dtype, size: int, first: int, last: int) -> Tensor:
    """Sums ``sum_I y[I] ⊗ x[I - d]`` over blocks I of ``size`` tokens, for block distances d = first..last; blocks
    outside the signal are zero.

    Shapes: x and y ``(batch, length, channels)``; result ``(last - first + 1, channels, size, size)`` in ``dtype``.
    """
    # Contiguous: a batched product into any other layout falls back to a loop over channels.
    total = torch.zeros((last - first + 1, x.shape[2], size, size), dtype=dtype, device=x.device)
    with torch.autocast(x.device.type, enabled=False):
        for tile in _tiles(x, size):
            _add_outer(_blocks(y, tile, total, -last), _blocks(x, tile, total, first), total)
    return total


def block_lag_products(y: Tensor, x: Tensor, first: int, last: int) -> Tensor:
    """Sums ``sum_i y_i x_{i - l}`` of every channel, also over the batch, for lags l = first..last.

    Shapes: x and y ``(batch, length, channels)``; result ``(channels, last - first + 1)``. ValueError if first > last.
    """
    if first > last:
        raise ValueError(f"the first lag must not be after the last, got {first} and {last}")
    size = min(x.shape[1], _SHORT_LAG_BLOCK if last - first < _LAG_BLOCK else _LAG_BLOCK)
    nearest, furthest = -((size - 1 - first) // size), (last + size - 1) // size
    products = block_outer(y, x, compute_dtype(x, y), size, nearest, furthest)
    # Entry (i, j) has lag d * size + i - j. Summing by a small matrix product is ten times as fast as skewing and
    # adding.
    offset = torch.arange(size, device=x.device)
    lag = (offset[:, None] - offset[None, :] + size - 1).flatten()
    sums = products.flatten(2) @ F.one_hot(lag, 2 * size - 1).to(products.dtype)
    total = sums.new_zeros(x.shape[2], (furthest - nearest + 2) * size - 1)
    for n, part in enumerate(sums):
        total[:, n * size : n * size + 2 * size - 1] += part
    start = first - ((nearest - 1) * size + 1)
    return total[:, start : start + last - first + 1]


class _Tile(NamedTuple):
    """Part of a signal that fits into the cache: several whole rows of the batch, or blocks of one row."""

    rows: slice
    start: int  # tokens; a multiple of the block size
    stop: int


def _tiles(x: Tensor, size: int) -> Iterator[_Tile]:
    batch, length, channels = x.shape
    tokens = batch * length if x.device.type != "cpu" else max(size, _CPU_TILE_ELEMENTS // channels // size * size)
    if length <= tokens:
        step = tokens // length
        for row in range(0, batch, step):
            yield _Tile(slice(row, row + step), 0, length)
    else:
        for row in range(batch):
            for start in range(0, length, tokens):
                yield _Tile(slice(row, row + 1), start, min(start + tokens, length))


class _Blocks(NamedTuple):
    """A tile's blocks ``(rows, channels, size)``. The rows of the batch are concatenated, each between the neighbouring
    blocks that the band reaches; these are zero beyond the signal."""

    rows: Tensor
    total: int  # blocks of one row of the batch
    before: int  # neighbours before the tile, among these
    after: int  # and after it
    reach: int  # block at the first distance before the tile's first


def _blocks(x: Tensor, tile: _Tile, matrices: Tensor, first: int) -> _Blocks:
    x = x[tile.rows]
    batch, length, channels = x.shape
    size = matrices.shape[3]
    before, after = max(0, first + len(matrices) - 1), max(0, -first)
    total = before + -(-(tile.stop - tile.start) // size) + after
    reach = before - first
    rows = torch.empty((batch * total, channels, size), dtype=matrices.dtype, device=x.device)
    blocks = rows.unflatten(0, (batch, total))
    low = tile.start - before * size
    start, stop = max(0, low), min(length, tile.stop + after * size)
    skipped = (start - low) // size
    whole, rest = (stop - start) // size, (stop - start) % size  # a symbol has no `divmod`
    blocks[:, :skipped] = 0
    blocks[:, skipped + whole :] = 0
    part = x[:, start : start + whole * size].unflatten(1, (whole, size))
    blocks[:, skipped : skipped + whole] = part.transpose(2, 3)
    if rest:
        blocks[:, skipped + whole, :, :rest] = x[:, start + whole * size : stop].transpose(1, 2)
    return _Blocks(rows, total, before, after, reach)


def _add_outer(grads: _Blocks, blocks: _Blocks, gradient: Tensor) -> None:
    """Add the gradient of the matrices: for every distance, the sum over blocks of grad ⊗ the block at that distance
    before.

    Both have the same number of neighbours in total, so rows of the batch stay aligned. Only zeros lie between rows,
    because a tile of several rows consists of whole rows.
    """
    first, last = grads.before, len(grads.rows) // grads.total * grads.total - grads.after
    for n in range(len(gradient)):
        shift = blocks.reach - grads.before - n
        partner = blocks.rows[first + shift : last + shift].transpose(0, 1)
        gradient[n].baddbmm_(grads.rows[first:last].permute(1, 2, 0), partner)
