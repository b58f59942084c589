"""Structured kernel interpolation: long kernels on a coarse grid, short ones token by token.

SKI-TNN's decomposition is ``T ≈ T_sparse + W A Wᵀ``, with A the kernel between the nodes of a coarse grid and W the
interpolation from nodes to tokens. `ski_product` is the low-rank part over a whole signal, for bidirectional models.
`causal_ski_product` is a causal form of the same decomposition (ours). SKI-TNN app. B states that masking ``W A Wᵀ``
costs what SKI saves. No mask is needed, however, if a smooth ramp splits the kernel into a short part, applied exactly,
and a long part that is zero at lags where interpolation could reach into the future.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.fx.experimental.symbolic_shapes import has_static_value

from lagwise.ops.constants import cached_tables
from lagwise.ops.fused import convolution as fused_convolution
from lagwise.ops.fused import fused
from lagwise.ops.host import on_host
from lagwise.ops.operation import (
    differentiable,
    differentiable_gradients,
    graph_operator,
    in_graph,
    traced,
    transformed,
)
from lagwise.ops.precision import compute_dtype
from lagwise.ops.ski.interpolation import (
    BlockWeights,
    NodeGrid,
    block_weights,
    inducing_grid,
    interpolation_matrix,
    interpolation_weights,
    prolong,
    restrict,
    row_matrix,
    row_weights,
    spaced_grid,
)
from lagwise.ops.symbolic import chunk_count, symbolic, symbolic_product
from lagwise.ops.toeplitz.block import toeplitz_matrix
from lagwise.ops.toeplitz.direct import convolve, direct_product, owned, tap_gradient
from lagwise.ops.toeplitz.spectral import fft_gradients, fft_product


def ski_product(x: Tensor, coefficients: Tensor, *, degree: int = 1, local: tuple[Tensor, int] | None = None) -> Tensor:
    """Sparse plus low-rank Toeplitz product ``T_sparse x + W A Wᵀ x`` over a whole signal, in O(m length + r log r).

    Formula: ``A_pq = a(p - q)`` between nodes p, q at even distances over the signal; W interpolates from the degree +
    1 nodes around each token (SKI-TNN §3.2.1, alg. 1).

    Args:
        x: ``(batch, length, channels)``.
        coefficients: ``(channels, 2 r - 1)``, the kernel at lags ``(1 - r) s`` to ``(r - 1) s`` with ``s = (length - 1)
            / (r - 1)`` and r = min(rank, length) nodes.
        degree: Degree of the interpolation.
        local: Taps of T_sparse ``(channels, m)`` and the index of lag 0 among them.

    Returns:
        A tensor like x.

    Raises:
        ValueError: For an even number of coefficients, another number of channels, or more nodes than tokens.

    >>> x = torch.ones(1, 5, 1)
    >>> slope = torch.arange(-2.0, 3.0)[None]  # the kernel k(lag) = lag, at 3 nodes: lags -4, -2, 0, 2, 4 of 5 tokens
    >>> y = ski_product(x, 2 * slope)  # interpolation of a linear kernel is exact
    >>> torch.allclose(y.flatten(), torch.tensor([-10.0, -5.0, 0.0, 5.0, 10.0]), atol=1e-5)
    True
    """
    rank = (coefficients.shape[1] + 1) // 2
    if coefficients.shape[0] != x.shape[2] or coefficients.shape[1] % 2 == 0 or rank > x.shape[1]:
        raise ValueError(
            f"coefficients must be (channels={x.shape[2]}, 2 r - 1) with r at most the length {x.shape[1]}, "
            f"got {tuple(coefficients.shape)}"
        )
    return _ski_product(x, coefficients, inducing_grid(x.shape[1], max(2, rank), degree), local)


def ragged_ski_product(
    x: Tensor,
    coefficients: Tensor,
    first: Tensor,
    lengths: Tensor,
    *,
    nodes: Tensor | None = None,
    degree: int = 1,
    local: tuple[Tensor, int] | None = None,
) -> Tensor:
    """`ski_product` of every row of a padded batch separately: rows of different lengths have different grids.

    Formula: as in `ski_product`, with a row's nodes from its first token to its last. A row with fewer tokens than
    nodes has a node on every token; the remaining nodes lie beyond its end and meet no token.

    Shapes: x ``(batch, length, channels)``, zero outside the rows; first and lengths ``(batch,)``, the position of each
    row's first token and the number of tokens from it to its last; coefficients ``(batch, channels, 2 r - 1)``, the
    kernel at lags ``(1 - r) s`` to ``(r - 1) s`` with s = `row_spacing` of each row; nodes ``(batch,)``, each row's
    number of nodes, r for all if None; local as in `ski_product`. Result like x, without meaning outside the rows. The
    cost is O(m length + r log r) per row.

    Preconditions: ValueError for an even number of coefficients, another number of rows or channels, or more nodes than
    tokens.

    Source: SKI-TNN §3.2.1 and alg. 1.
    """
    rank = (coefficients.shape[2] + 1) // 2
    if symbolic(x.shape[1]):
        nodes = torch.full_like(lengths, rank) if nodes is None else nodes
        return _symbolic_rows(x, coefficients, first, lengths, nodes, degree, local)
    if coefficients.shape[:2] != (len(x), x.shape[2]) or coefficients.shape[2] % 2 == 0 or rank > x.shape[1]:
        raise ValueError(
            f"coefficients must be (batch={len(x)}, channels={x.shape[2]}, 2 r - 1) with r at most the length "
            f"{x.shape[1]}, got {tuple(coefficients.shape)}"
        )
    grid = inducing_grid(x.shape[1], max(2, rank), degree)
    nodes = torch.full_like(lengths, grid.nodes) if nodes is None else nodes
    return _ski_product(x, coefficients, grid, local, (first, lengths, nodes))


def _ski_product(
    x: Tensor,
    coefficients: Tensor,
    grid: NodeGrid,
    local: tuple[Tensor, int] | None,
    rows: tuple[Tensor, Tensor, Tensor] | None = None,
) -> Tensor:
    dtype = compute_dtype(x, coefficients)
    if local is not None:
        dtype = torch.promote_types(dtype, compute_dtype(x, local[0]))
    taps, origin = local or (None, 0)
    middle = coefficients.shape[-1] // 2
    return _sparse_plus_smooth(x, taps, coefficients.to(dtype), _Form(origin, middle, grid), rows=rows).to(x.dtype)


def ski_reference(x: Tensor, coefficients: Tensor, *, degree: int = 1) -> Tensor:
    """`ski_product` with dense W and A: O(length²), for tests. Source: SKI-TNN §3.2.1."""
    rank = (coefficients.shape[1] + 1) // 2
    w = interpolation_matrix(inducing_grid(x.shape[1], max(2, rank), degree)).to(coefficients.dtype)
    index = torch.arange(rank)
    a = coefficients[:, index[:, None] - index[None, :] + rank - 1]
    return torch.einsum("ip,cpq,jq,bjc->bic", w, a, w, x)


class SKIPlan(NamedTuple):
    """Split of a causal kernel into a short and a long part.

    Attributes:
        spacing: tokens between nodes.
        width: lags of the short part, where the ramp ends.
        degree: the interpolation's, odd.
    """

    spacing: int = 8
    width: int = 64
    degree: int = 1

    @property
    def first_node_lag(self) -> int:
        """Nodes closer than this many spacings do not interact; otherwise interpolation would reach into the future."""
        return self.degree + 1

    @property
    def short_nodes(self) -> int:
        """Number of coarse values, from lag 0 on, that the short part depends on."""
        return -(-self.width // self.spacing) + self.degree + 1

    def check(self) -> SKIPlan:
        """Return the plan itself. ValueError for an invalid plan."""
        if not all(isinstance(value, int) and not isinstance(value, bool) for value in self):
            raise ValueError(f"spacing, width and degree must be integers, got {tuple(self)}")
        if self.spacing < 1 or self.degree < 1 or self.degree % 2 == 0:
            raise ValueError(f"spacing must be at least 1 and degree odd, got {self.spacing} and {self.degree}")
        if self.width <= self.spacing * self.first_node_lag:
            raise ValueError(
                f"width must be over {self.first_node_lag} spacings, {self.spacing * self.first_node_lag} lags, "
                f"got {self.width}"
            )
        return self

    def grid(self, length: int) -> NodeGrid:
        return spaced_grid(length, self.spacing, self.degree)


def split_kernel(short: Tensor, coarse: Tensor, plan: SKIPlan) -> tuple[Tensor, Tensor]:
    """The short taps and the coarse taps of a causal kernel (see `causal_ski_product`).

    Formula: with k the kernel, h the spacing and a ramp r that rises from 0 at lag ``degree * h`` to 1 at ``width``,
    the coarse taps are ``a_s = r(s h) k(s h)``. The short taps are ``k(l) - mean F(l)`` for l < width, where F is the
    interpolated coarse kernel at lag l, averaged over the position of the tokens in a cell: the short part corrects the
    mean error of the interpolation there.

    Shapes: short ``(channels, width)``, k at lags 0, 1, ...; coarse ``(channels, n)``, k at lags 0, h, 2 h, ..., at
    least `SKIPlan.short_nodes` of them. Returns tensors of the same shapes.
    """
    if in_graph():
        ramp, spread = _split_tables(coarse.detach(), *plan)
    else:
        ramp, spread = cached_tables(_split_constants, plan, like=coarse)
    if has_static_value(coarse.shape[1]):
        head, rest = coarse.split([len(ramp), coarse.shape[1] - len(ramp)], dim=1)
        head = head * ramp
        coarse = torch.cat([head, rest], dim=1)
    else:  # a graph would be another where there is no rest
        factors = F.pad(ramp, (0, 1), value=1)
        coarse = coarse * factors[torch.arange(coarse.shape[1], device=ramp.device).clamp(max=len(ramp))]
        head = _first(coarse, len(ramp))
    with torch.autocast(coarse.device.type, enabled=False):
        return short - head @ spread, coarse


def _first(x: Tensor, count: int) -> Tensor:
    """``x[:, :count]``, contiguous whether or not that is all: graphs keep both apart."""
    return x.index_select(1, torch.arange(torch.sym_min(count, x.shape[1]), device=x.device))


def causal_ski_product(x: Tensor, short: Tensor, coarse: Tensor, plan: SKIPlan) -> Tensor:
    """Causal Toeplitz product as an exact short part and an interpolated long part: ``T_short x + W A Wᵀ x``.

    Formula: T_short has the short taps. Nodes lie every ``spacing`` tokens, and A is lower triangular Toeplitz with the
    coarse taps, zero within ``degree + 1`` nodes of its diagonal. A token meets nodes less than ``(degree + 1) / 2``
    spacings away, so ``W A Wᵀ`` is strictly lower triangular: the product is causal without a mask.

    Shapes: x ``(batch, length, channels)``; short and coarse as from `split_kernel`; result like x. O(length), except
    for an FFT of ``length / spacing`` points.

    Source: ours, for SKI-TNN app. B. The FFT rounds as in `toeplitz_product`.
    """
    if symbolic(x.shape[1]):
        return _symbolic_ski(x, short, coarse, plan)
    grid = plan.grid(x.shape[1])
    dtype = compute_dtype(x, short)
    if has_static_value(grid.nodes) and grid.nodes <= plan.first_node_lag:  # no node is far enough from another
        return direct_product(x, short, 0)
    coarse = (coarse[:, : grid.nodes] if has_static_value(grid.nodes) else _first(coarse, grid.nodes)).to(dtype)
    return _sparse_plus_smooth(x, short, coarse, _Form(0, 0, grid), spacing=plan.spacing).to(x.dtype)


class _Form(NamedTuple):
    """Index of lag 0 among the taps of T_sparse and among those of A, and the number of nodes of A."""

    origin: int
    coarse_origin: int
    grid: NodeGrid


def _sparse_plus_smooth(
    x: Tensor,
    taps: Tensor | None,
    coarse: Tensor,
    form: _Form,
    *,
    spacing: int = 0,
    rows: tuple[Tensor, Tensor, Tensor] | None = None,
) -> Tensor:
    """``T_sparse x + W A Wᵀ x``, with the spacing of a `spaced_grid` or the arguments of `row_weights`, if any."""
    if in_graph():
        taps = x.new_empty(x.shape[2], 0) if taps is None else taps
        numbers = (form.origin, form.coarse_origin, form.grid.nodes, spacing, form.grid.degree)
        if rows is None:
            return _operator(x, taps, coarse, *numbers)
        return _rows_operator(x, taps, coarse, *rows, *numbers)
    if rows is None:
        blocks = None
    elif traced():
        blocks = row_weights(*rows, form.grid)
    else:  # by the numbers of tokens, which the host works out: layers share the weights
        sizes = (tuple(each.tolist()) for each in on_host(*rows) if each is not None)
        blocks = cached_tables(_row_tables, *sizes, form.grid, like=coarse)
    arguments = (x, taps, coarse, form, blocks)
    return _added(*arguments) if transformed() else _SparsePlusSmooth.apply(*arguments)


def _row_tables(
    first: tuple[int, ...], lengths: tuple[int, ...], nodes: tuple[int, ...], grid: NodeGrid
) -> BlockWeights:
    return row_weights(torch.tensor(first), torch.tensor(lengths), torch.tensor(nodes), grid)


def _added(x: Tensor, taps: Tensor | None, coarse: Tensor, form: _Form, blocks: BlockWeights | None) -> Tensor:
    """`_SparsePlusSmooth` term by term, in operations that autograd and `torch.func` can handle."""
    signal = x.to(coarse.dtype)
    z, blocks = _at_nodes(signal, form.grid, blocks)
    y = prolong(_smoothed(z, coarse, form), form.grid, blocks)
    return y if taps is None else y + direct_product(signal, taps, form.origin)


def _symbolic_ski(x: Tensor, short: Tensor, coarse: Tensor, plan: SKIPlan) -> Tensor:
    """`causal_ski_product` at a symbolic length, by cells of one spacing, over which the weights repeat."""
    length, dtype = x.shape[1], compute_dtype(x, short)
    weights = interpolation_weights(plan.grid(plan.spacing))[1].to(x.device, dtype)
    cells = chunk_count(length, plan.spacing)
    signal = F.pad(x.to(dtype), (0, 0, 0, cells * plan.spacing - length)).unflatten(1, (cells, plan.spacing))
    shares = (weights.t() @ signal).unbind(2)
    z = sum(F.pad(share, (0, 0, a, plan.degree - a)) for a, share in enumerate(shares))
    assert isinstance(z, Tensor)
    smooth = symbolic_product(z, coarse, 0)
    around = torch.stack([smooth[:, a : a + cells] for a in range(plan.degree + 1)], dim=2)
    return (symbolic_product(x.to(dtype), short, 0) + (weights @ around).flatten(1, 2)[:, :length]).to(x.dtype)


def _symbolic_rows(
    x: Tensor,
    coefficients: Tensor,
    first: Tensor,
    lengths: Tensor,
    nodes: Tensor,
    degree: int,
    local: tuple[Tensor, int] | None,
) -> Tensor:
    """`ragged_ski_product` at a symbolic length, by dense W and A: O(length * rank). The arguments of one row are for
    all rows."""
    dtype, rank = compute_dtype(x, coefficients), (coefficients.shape[2] + 1) // 2
    degree = degree if symbolic(rank) else min(degree, rank - 1)
    w = row_matrix(first, lengths, nodes, x.shape[1], rank, degree).to(dtype)
    index = torch.arange(rank, device=x.device)
    a = coefficients.to(dtype)[:, :, index[:, None] - index + rank - 1]
    with torch.autocast(x.device.type, enabled=False):
        z = w.transpose(1, 2) @ x.to(dtype)
        y = w @ (a @ z.transpose(1, 2)[..., None])[..., 0].transpose(1, 2)
    return (y if local is None else y + symbolic_product(x.to(dtype), *local)).to(x.dtype)


class _SparsePlusSmooth(torch.autograd.Function):
    """``T_sparse x + W A Wᵀ x`` with its own gradient: both terms then share one result, forward and backward, where
    autograd would compute one each and add them.

    Takes the taps of T_sparse, if any, and those of A in the dtype to compute in, each with the index of lag 0. Those
    of A are for all rows, or ``(batch, channels, n)`` if every row has its own grid, with the weights of these grids.
    """

    @staticmethod
    def forward(
        ctx, x: Tensor, taps: Tensor | None, coarse: Tensor, form: _Form, blocks: BlockWeights | None
    ) -> Tensor:
        y, z, blocks = _forward(x, taps, coarse, form, blocks)
        ctx.save_for_backward(x, taps, coarse, z, *blocks)
        ctx.form = form
        return owned(y)

    @staticmethod
    def backward(ctx, grad: Tensor):
        x, taps, coarse, z, *weights = ctx.saved_tensors
        blocks = BlockWeights(*weights)
        if differentiable():
            inputs = (x, taps, coarse, ctx.form, blocks)
            return tuple(differentiable_gradients(_added, inputs, ctx.needs_input_grad, [grad]))
        return *_backward(grad, x, taps, coarse, ctx.form, blocks, z, ctx.needs_input_grad[:3]), None, None


def _forward(
    x: Tensor, taps: Tensor | None, coarse: Tensor, form: _Form, blocks: BlockWeights | None
) -> tuple[Tensor, Tensor, BlockWeights]:
    """The product, the signal's values at the nodes, and the weights."""
    signal = x.to(coarse.dtype)
    z, blocks = _at_nodes(signal, form.grid, blocks)
    if taps is not None and fused(x, taps, coarse):
        far = prolong(_smoothed(z, coarse, form), form.grid, blocks)
        return fused_convolution.convolve(x, taps, far, form.origin, 1, False), z, blocks
    near = None if taps is None else convolve(signal, *_balanced(taps, form.origin))
    return prolong(_smoothed(z, coarse, form), form.grid, blocks, into=near), z, blocks


def _smoothed(z: Tensor, coarse: Tensor, form: _Form) -> Tensor:
    """``A z``, always by FFT: a dense product is slower even at rank 64 (docs/log.md, "SKI coarse product")."""
    return _as_rows(fft_product(*_as_channels(z, coarse), form.coarse_origin, "auto"), z)


def _at_nodes(signal: Tensor, grid: NodeGrid, blocks: BlockWeights | None) -> tuple[Tensor, BlockWeights]:
    blocks = block_weights(grid, signal) if blocks is None else blocks
    blocks = blocks._replace(weights=blocks.weights.to(signal.dtype))
    return restrict(signal, grid, blocks), blocks


def _backward(
    grad: Tensor,
    x: Tensor,
    taps: Tensor | None,
    coarse: Tensor,
    form: _Form,
    blocks: BlockWeights,
    z: Tensor,
    needs_grad: Sequence[bool],
) -> tuple[Tensor | None, Tensor | None, Tensor | None]:
    """Gradients of the signal, the taps and the coarse taps, where they need them."""
    dx = dtaps = dz = dcoarse = None
    if needs_grad[0] or needs_grad[2]:
        nodes = restrict(grad.to(coarse.dtype), form.grid, blocks)
        signal, kernel = _as_channels(z, coarse)
        nodes, _ = _as_channels(nodes, coarse)
        dz, dcoarse = fft_gradients(nodes, signal, kernel, form.coarse_origin, "auto", (needs_grad[0], needs_grad[2]))
        dcoarse = None if dcoarse is None else dcoarse.view_as(coarse)
    if dz is not None and taps is not None and fused(grad, x, taps):
        far = prolong(_as_rows(dz, z), form.grid, blocks)
        dx = fused_convolution.convolve(grad, taps, far, form.origin, -1, False)
    elif dz is not None:
        near = None if taps is None else convolve(grad, *_balanced(taps.flip(1), taps.shape[1] - 1 - form.origin))
        dx = prolong(_as_rows(dz, z), form.grid, blocks, into=near).to(x.dtype)
    if taps is not None and needs_grad[1]:
        if fused(grad, x, taps):
            parts = fused_convolution.tap_gradient_parts(x, taps)
            fused_convolution.convolution_gradients(grad, x, taps, parts, form.origin, 1, False)
            return dx, fused_convolution.summed_parts(parts).to(taps.dtype), dcoarse
        dtaps = tap_gradient(grad, x, -form.origin, taps.shape[1] - 1 - form.origin).to(taps.dtype)
    return dx, dtaps, dcoarse


def _of_graph(x: Tensor, taps: Tensor, rest: Sequence[Any]) -> tuple[Tensor | None, _Form, BlockWeights | None]:
    """The taps, the form and the weights from the arguments of an operator, whose taps may be empty."""
    *rows, origin, coarse_origin, nodes, spacing, degree = rest
    length = x.shape[1]
    grid = spaced_grid(length, spacing, degree) if spacing else inducing_grid(length, nodes, degree)
    blocks = row_weights(rows[0], rows[1], rows[2], grid) if rows else None
    return taps if taps.shape[1] else None, _Form(origin, coarse_origin, grid), blocks


def _graph_forward(x: Tensor, taps: Tensor, coarse: Tensor, *rest: Any) -> Tensor:
    own, form, blocks = _of_graph(x, taps, rest)
    return _forward(x, own, coarse, form, blocks)[0].to(x.dtype).contiguous()


def _graph_gradients(grad: Tensor, x: Tensor, taps: Tensor, coarse: Tensor, *rest: Any) -> list[Tensor]:
    own, form, weights = _of_graph(x, taps, rest)
    z, blocks = _at_nodes(x.to(coarse.dtype), form.grid, weights)
    dx, dtaps, dcoarse = _backward(grad, x, own, coarse, form, blocks, z, (True, True, True))
    assert dx is not None
    assert dcoarse is not None
    return [dx, torch.empty_like(taps) if dtaps is None else dtaps, dcoarse]  # no operator returns an input


def _like(x: Tensor, taps: Tensor, coarse: Tensor, *rest: Any) -> Tensor:
    return x.new_empty(x.shape)


# The grid depends on the length, for which it would be compiled anew.
_NUMBERS = "SymInt origin, SymInt coarse_origin, SymInt nodes, SymInt spacing, SymInt degree"
_operator, _rows_operator = (
    graph_operator(
        name, _graph_forward, _graph_gradients, _like, tensors="x taps coarse", constants=rows, numbers=_NUMBERS
    )
    for name, rows in (("ski_product", ""), ("ragged_ski_product", "first lengths row_nodes"))
)


def _as_channels(z: Tensor, coarse: Tensor) -> tuple[Tensor, Tensor]:
    """Rows with different taps as channels of one row, for products with one kernel per channel."""
    return (z, coarse) if coarse.dim() == 2 else (z.transpose(0, 1).flatten(1)[None], coarse.flatten(0, 1))


def _as_rows(y: Tensor, z: Tensor) -> Tensor:
    """Inverse of `_as_channels`: rows like z."""
    return y if len(y) == len(z) else y[0].unflatten(1, (len(z), -1)).transpose(0, 1)


def _balanced(taps: Tensor, origin: int) -> tuple[Tensor, int]:
    """Append a zero to the taps if lag 0 is next to the middle: the convolution then has no tokens to cut off, and its
    result is contiguous. The tokens that a zero meets do not matter here, since the smooth part meets every token."""
    before, after = taps.shape[1] - 1 - origin, origin
    if abs(before - after) != 1:
        return taps, origin
    return F.pad(taps, (max(0, before - after), max(0, after - before))), max(before, after)


def causal_ski_matrix(short: Tensor, coarse: Tensor, plan: SKIPlan, length: int) -> Tensor:
    """The dense matrices ``(channels, length, length)`` that `causal_ski_product` applies: the reference."""
    grid = plan.grid(length)
    w = interpolation_matrix(grid).to(coarse.dtype)
    return toeplitz_matrix(short, length) + w @ toeplitz_matrix(coarse, grid.nodes) @ w.t()


@torch.library.custom_op("lagwise::ski_split_tables", mutates_args=())
def _split_tables(like: Tensor, spacing: int, width: int, degree: int) -> tuple[Tensor, Tensor]:
    """`_split_constants` for graphs, which would make them by many launches at every step. Copies: graphs write into
    what they are given."""
    ramp, spread = cached_tables(_split_constants, SKIPlan(spacing, width, degree), like=like)
    return ramp.clone(), spread.clone()


@_split_tables.register_fake
def _(like: Tensor, spacing: int, width: int, degree: int) -> tuple[Tensor, Tensor]:
    count = SKIPlan(spacing, width, degree).short_nodes
    return like.new_empty(count), like.new_empty(count, width)


def _split_constants(plan: SKIPlan) -> tuple[Tensor, Tensor]:
    """The ramp at the first coarse lags ``(n,)``, and the mean weight of each of them at short lags ``(n, width)``."""
    plan.check()
    count = plan.short_nodes
    at = (torch.arange(count, dtype=torch.float64) - plan.degree) * plan.spacing
    t = (at / (plan.width - plan.degree * plan.spacing)).clamp(0, 1)
    ramp = t**3 * (t * (6 * t - 15) + 10)
    ramp[: plan.first_node_lag] = 0
    w = interpolation_matrix(plan.grid(plan.spacing + plan.width))
    w = F.pad(w, (0, count))
    spread = torch.zeros(count, plan.width, dtype=torch.float64)
    for token in range(plan.spacing):  # the first cell's tokens meet the first degree + 1 nodes
        for node in range(plan.degree + 1):
            spread += w[token, node] * w[token : token + plan.width, node : node + count].t()
    return ramp, spread / plan.spacing
