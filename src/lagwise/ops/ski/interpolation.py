"""Polynomial interpolation between tokens and a coarser uniform grid of nodes."""

from __future__ import annotations

from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from lagwise.ops.constants import cached_tables

_BLOCK = 64
_ROW_BLOCK = 16  # tokens, with a grid per row: the nodes of short rows are close together


class NodeGrid(NamedTuple):
    """Nodes at ``start + k * spacing``, k = 0..nodes-1, in tokens, for signals of ``length`` tokens at 0..length-1.

    degree: of the polynomials; a token is interpolated from the degree + 1 nodes around it.
    """

    length: int
    nodes: int
    start: float
    spacing: float
    degree: int


def inducing_grid(length: int, rank: int, degree: int = 1) -> NodeGrid:
    """``rank`` nodes at even distances over the whole signal, the first and the last at its ends (SKI-TNN alg. 1,
    §3.2.1).

    A signal shorter than the rank has a node on every token. The degree is at most the number of nodes minus one.
    ValueError if rank < 2 or degree < 0.
    """
    if rank < 2 or degree < 0 or length < 1:
        raise ValueError(
            f"rank must be at least 2, degree at least 0, length at least 1; got {rank}, {degree}, {length}"
        )
    nodes = min(rank, length)
    return NodeGrid(length, nodes, 0.0, (length - 1) / (nodes - 1) if nodes > 1 else 1.0, min(degree, nodes - 1))


def spaced_grid(length: int, spacing: int, degree: int = 1) -> NodeGrid:
    """Return nodes every ``spacing`` tokens, from before the first token to after the last. Every token has equally
    many nodes on its left and right, and the weights repeat with the spacing. ValueError for an even degree or a
    spacing below 1."""
    if degree % 2 == 0 or degree < 1 or spacing < 1:
        raise ValueError(f"degree must be odd and spacing at least 1, got {degree} and {spacing}")
    return NodeGrid(length, (length - 1) // spacing + degree + 1, -(degree // 2) * spacing, spacing, degree)


class BlockWeights(NamedTuple):
    """W as blocks of tokens: the nodes that each block meets ``(blocks, width)``, and its weights ``(blocks, size,
    width)``. Computing it takes many small steps, so `restrict` and `prolong` can share it on one grid.

    If every row has its own grid (`row_weights`): nodes ``(batch, blocks, width)``, numbered through the batch, and
    weights ``(batch, blocks, size, width)``.
    """

    nodes: Tensor
    weights: Tensor


def restrict(x: Tensor, grid: NodeGrid, blocks: BlockWeights | None = None) -> Tensor:
    """Spread a signal onto the nodes: ``Wᵀ x``, in O(length).

    Formula: ``z_k = sum_i W_ik x_i``, where W_ik is the Lagrange polynomial of node k, among the nodes around token i,
    evaluated at i.

    Shapes: x ``(batch, length, channels)``; result ``(batch, nodes, channels)``.

    Preconditions: ValueError if the signal does not have the grid's length.

    Source: SKI-TNN §3.2.1 (W has degree + 1 non-zeros per row). Tokens are taken in blocks. A block meets few nodes, so
    it is one small matrix product, and the blocks' contributions to a node are added.
    """
    if x.shape[1] != grid.length:
        raise ValueError(f"the grid is for {grid.length} tokens, got {x.shape[1]}")
    nodes, weights = blocks or block_weights(grid, x)
    count, size = weights.shape[-3:-1]
    x = F.pad(x, (0, 0, 0, count * size - grid.length)) if count * size > grid.length else x
    with torch.autocast(x.device.type, enabled=False):
        shares = weights.transpose(-1, -2) @ x.unflatten(1, (count, size))
    z = x.new_zeros(x.shape[0], grid.nodes, x.shape[2])
    if nodes.dim() == 2:
        return z.index_add(1, nodes.flatten(), shares.flatten(1, 2))
    return z.flatten(0, 1).index_add(0, nodes.flatten(), shares.flatten(0, 2)).view_as(z)


def prolong(z: Tensor, grid: NodeGrid, blocks: BlockWeights | None = None, *, into: Tensor | None = None) -> Tensor:
    """Interpolate node values at the tokens: ``W z``, in O(length), the adjoint of `restrict`.

    Shapes: z ``(batch, nodes, channels)``; result ``(batch, length, channels)``. With ``into`` of that shape, the
    values are added to it in place, which saves one pass over the signal but does not work with autograd.

    Preconditions: ValueError if z does not have the grid's nodes.

    Source: SKI-TNN §3.2.1.
    """
    if z.shape[1] != grid.nodes:
        raise ValueError(f"the grid has {grid.nodes} nodes, got {z.shape[1]}")
    nodes, weights = blocks or block_weights(grid, z)
    if nodes.dim() == 2:
        values = z.index_select(1, nodes.flatten()).unflatten(1, nodes.shape)
    else:
        values = z.flatten(0, 1).index_select(0, nodes.flatten()).unflatten(0, nodes.shape)
    count, size = weights.shape[-3:-1]
    with torch.autocast(z.device.type, enabled=False):
        if into is None:
            return (weights @ values).flatten(1, 2)[:, : grid.length]
        if count * size > grid.length or not into.is_contiguous():
            return into.add_((weights @ values).flatten(1, 2)[:, : grid.length])
        each = weights.repeat(len(z), 1, 1) if weights.dim() == 3 else weights.flatten(0, 1)
        into.unflatten(1, (count, size)).flatten(0, 1).baddbmm_(each, values.flatten(0, 1))
        return into


def block_weights(grid: NodeGrid, like: Tensor) -> BlockWeights:
    """The weights of a grid for signals with the device and dtype of ``like``."""
    return cached_tables(_block_weights, grid, like=like)


def _block_weights(grid: NodeGrid) -> BlockWeights:
    size = min(_BLOCK, grid.length)
    count = -(-grid.length // size)
    token = torch.arange(count * size, dtype=torch.float64)
    left, weights = _weights_at((token.clamp(max=grid.length - 1) - grid.start) / grid.spacing, grid.nodes, grid.degree)
    weights = weights * (token < grid.length)[:, None]
    return _in_blocks(left.view(count, size), weights.view(count, size, -1), grid.nodes)


def _in_blocks(left: Tensor, weights: Tensor, nodes: int) -> BlockWeights:
    """Compute weights ``(..., blocks, size, degree + 1)`` of the nodes from ``left`` on, ``(..., blocks, size)``, by
    block."""
    degree, device = weights.shape[-1] - 1, left.device
    span = int((left[..., -1] - left[..., 0]).max()) + degree + 1  # nodes that a block meets, at most
    start = left[..., :1].clamp(max=nodes - span)
    columns = (left - start)[..., None] + torch.arange(degree + 1, device=device)
    dense = weights.new_zeros(*left.shape, span).scatter(-1, columns, weights)
    return BlockWeights(start + torch.arange(span, device=device), dense)


def row_weights(first: Tensor, lengths: Tensor, nodes: Tensor, grid: NodeGrid) -> BlockWeights:
    """The weights, in float64, of a batch whose rows have individual grids. Nodes lie at even distances from a row's
    first token to its last, or on every token of a row with fewer tokens than nodes.

    Shapes: first, lengths and nodes ``(batch,)``, the position of each row's first token, the number of tokens from it
    to its last, and its number of nodes; grid, the `inducing_grid` of a signal as long as the batch, with at least as
    many nodes. Weights of tokens outside the rows are zero.
    """
    degree, size = grid.degree, min(_ROW_BLOCK, grid.length)
    count = -(-grid.length // size)
    left, weights = _row_weights(first, lengths, nodes, count * size, degree)
    columns, dense = _in_blocks(left.unflatten(1, (count, size)), weights.unflatten(1, (count, size)), grid.nodes)
    row = torch.arange(len(first), device=first.device)[:, None, None] * grid.nodes
    return BlockWeights(row + columns, dense)


def row_matrix(first: Tensor, lengths: Tensor, nodes: Tensor, length: int, rank: int, degree: int) -> Tensor:
    """The weights of `row_weights` as dense matrices ``(batch, length, rank)``, for any number of tokens."""
    left, weights = _row_weights(first, lengths, nodes, length, degree)
    columns = left[..., None] + torch.arange(degree + 1, device=first.device)
    return weights.new_zeros(*left.shape, rank).scatter(2, columns, weights)


def _row_weights(first: Tensor, lengths: Tensor, nodes: Tensor, length: int, degree: int) -> tuple[Tensor, Tensor]:
    """`_weights_at` the tokens of every row, ``(batch, length)`` and ``(batch, length, degree + 1)``: zero outside."""
    token = torch.arange(length, dtype=torch.float64, device=first.device) - first[:, None]
    inside = (token >= 0) & (token < lengths[:, None])
    position = token.clamp(min=0).minimum(lengths[:, None] - 1) / row_spacing(lengths, nodes)[:, None]
    left, weights = _weights_at(position, nodes[:, None], degree)
    return left, weights * inside[..., None]


def row_spacing(lengths: Tensor, nodes: Tensor) -> Tensor:
    """Tokens between the nodes of rows with individual grids: ``max(1, (length - 1) / (nodes - 1))``, in float64.

    Shapes: lengths, nodes and result ``(batch,)``. Source: SKI-TNN §3.2.1.
    """
    return ((lengths - 1).double() / (nodes - 1).clamp(min=1)).clamp(min=1)


def interpolation_matrix(grid: NodeGrid) -> Tensor:
    """W as a dense ``(length, nodes)`` float64 matrix: the reference (SKI-TNN §3.2.1)."""
    position = (torch.arange(grid.length, dtype=torch.float64) - grid.start) / grid.spacing
    first, weights = _weights_at(position, grid.nodes, grid.degree)
    columns = first[:, None] + torch.arange(grid.degree + 1)
    return weights.new_zeros(grid.length, grid.nodes).scatter_(1, columns, weights)


def _weights_at(position: Tensor, nodes: Tensor | int, degree: int) -> tuple[Tensor, Tensor]:
    """The first node of tokens at positions of any shape, in spacings from the first of all, and the weights of its
    degree + 1 nodes, ``(..., degree + 1)``.

    Formula: with u the position in spacings after the first node, ``w_a = prod_{b != a} (u - b) / (a - b)``.
    """
    left = torch.floor(position + (0.5 if degree % 2 == 0 else 0.0)) - degree // 2
    last = nodes - 1 - degree
    first = left.clamp(min=0).minimum(last.clamp(min=0)) if isinstance(last, Tensor) else left.clamp(0, last)
    u = position - first
    weights = []
    for a in range(degree + 1):
        weight = torch.ones_like(u)
        for b in range(degree + 1):
            weight = weight if a == b else weight * ((u - b) / (a - b))
        weights.append(weight)
    return first.long(), torch.stack(weights, dim=-1)
