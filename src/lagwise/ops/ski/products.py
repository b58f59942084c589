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

from lagwise.ops.constants import cached_tables
from lagwise.ops.fused import TritonEngine
from lagwise.ops.fused import convolution as fused_convolution
from lagwise.ops.host import on_host
from lagwise.ops.operation import (
    Engine,
    Values,
    at_most,
    chunk_count,
    compute_dtype,
    operation,
    symbolic,
)
from lagwise.ops.ski.interpolation import (
    BlockWeights,
    NodeGrid,
    block_weights,
    inducing_grid,
    interpolation_matrix,
    prolong,
    restrict,
    row_matrix,
    row_weights,
    spaced_grid,
)
from lagwise.ops.toeplitz.block import toeplitz_matrix
from lagwise.ops.toeplitz.convolution import convolution
from lagwise.ops.toeplitz.direct import convolve, owned

# The channels and lags on which a plan is chosen.
_SAMPLED_CHANNELS = 16
SAMPLED_LAGS = 1024


def ski_product(
    x: Tensor,
    coefficients: Tensor,
    *,
    degree: int = 1,
    local: tuple[Tensor, int] | None = None,
    rows: tuple[Tensor, Tensor, Tensor] | None = None,
) -> Tensor:
    """Sparse plus low-rank Toeplitz product ``T_sparse x + W A Wᵀ x`` over a whole signal, in O(m length + r log r).

    Formula: ``A_pq = a(p - q)`` between nodes p, q at even distances over the signal; W interpolates from the degree +
    1 nodes around each token (SKI-TNN §3.2.1, alg. 1).

    Args:
        x: ``(batch, length, channels)``.
        coefficients: ``(channels, 2 r - 1)``, the kernel at lags ``(1 - r) s`` to ``(r - 1) s`` with ``s = (length - 1)
            / (r - 1)`` and r = min(rank, length) nodes. With rows ``(batch, channels, 2 r - 1)``, where s is the
            `row_spacing` of each.
        degree: Degree of the interpolation.
        local: Taps of T_sparse ``(channels, m)`` and the index of lag 0 among them.
        rows: Where rows are padded, and each has a grid of its own: the position of its first token, the number of
            tokens from it to its last, and its number of nodes, each ``(batch,)``. A row with fewer tokens than nodes
            has a node on every token; the remaining nodes lie beyond its end and meet no token.

    Returns:
        A tensor like x, without meaning outside the rows, where x must be zero.

    Raises:
        ValueError: For an even number of coefficients, another number of rows or channels, or more nodes than tokens.

    >>> x = torch.ones(1, 5, 1)
    >>> slope = torch.arange(-2.0, 3.0)[None]  # the kernel k(lag) = lag, at 3 nodes: lags -4, -2, 0, 2, 4 of 5 tokens
    >>> y = ski_product(x, 2 * slope)  # interpolation of a linear kernel is exact
    >>> torch.allclose(y.flatten(), torch.tensor([-10.0, -5.0, 0.0, 5.0, 10.0]), atol=1e-5)
    True
    """
    if not symbolic(x.shape[1]):  # there, the arguments of one row may be for all rows, and nodes beyond its end
        lead = (x.shape[2],) if rows is None else (len(x), x.shape[2])
        if coefficients.shape[:-1] != lead or coefficients.shape[-1] not in range(1, 2 * x.shape[1], 2):
            expected = f"{'' if rows is None else f'batch={len(x)}, '}channels={x.shape[2]}, 2 r - 1"
            raise ValueError(
                f"coefficients must be ({expected}) with r at most the length {x.shape[1]}, "
                f"got {tuple(coefficients.shape)}"
            )
    dtype, (taps, origin) = compute_dtype(x, coefficients), local or (None, 0)
    if taps is not None:
        dtype = torch.promote_types(dtype, compute_dtype(x, taps))
    return _sparse_plus_smooth(x, taps, coefficients.to(dtype), *(rows or [None] * 3), origin, 0, degree)


def ski_reference(x: Tensor, coefficients: Tensor, *, degree: int = 1) -> Tensor:
    """`ski_product` with dense W and A: O(length²), for tests. Source: SKI-TNN §3.2.1."""
    return _sparse_plus_smooth.plain(x, None, coefficients, None, None, None, 0, 0, degree)


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
    ramp, spread = ski_split_tables(coarse.detach(), *plan)
    factors = F.pad(ramp, (0, 1), value=1)
    coarse = coarse * factors[torch.arange(coarse.shape[1], device=ramp.device).clamp(max=len(ramp))]
    # Contiguous whether or not these are all: a graph for any number of nodes is the same then.
    head = coarse.index_select(1, torch.arange(len(ramp), device=coarse.device))
    with torch.autocast(coarse.device.type, enabled=False):
        return short - head @ spread, coarse


def causal_ski_product(x: Tensor, short: Tensor, coarse: Tensor, plan: SKIPlan) -> Tensor:
    """Causal Toeplitz product as an exact short part and an interpolated long part: ``T_short x + W A Wᵀ x``.

    Formula: T_short has the short taps. Nodes lie every ``spacing`` tokens, and A is lower triangular Toeplitz with the
    coarse taps, zero within ``degree + 1`` nodes of its diagonal. A token meets nodes less than ``(degree + 1) / 2``
    spacings away, so ``W A Wᵀ`` is strictly lower triangular: the product is causal without a mask.

    Shapes: x ``(batch, length, channels)``; short and coarse as from `split_kernel`; result like x. O(length), except
    for an FFT of ``length / spacing`` points.

    Source: ours, for SKI-TNN app. B. The FFT rounds as in `toeplitz_product`.
    """
    coarse = coarse.to(compute_dtype(x, short))
    return _sparse_plus_smooth(x, short, coarse, None, None, None, 0, plan.spacing, plan.degree)


@operation
def _sparse_plus_smooth(
    x: Tensor,
    taps: Tensor | None,
    coarse: Tensor,
    first: Tensor | None,
    lengths: Tensor | None,
    row_nodes: Tensor | None,
    origin: int,
    spacing: int,
    degree: int,
) -> Tensor:
    """``T_sparse x + W A Wᵀ x``, in the dtype of the coarse taps within: those of A, of which taps beyond the number of
    nodes are not used. Nodes are a `spaced_grid` if there is a spacing, and A is causal; otherwise they are those of
    `row_weights`, or of an `inducing_grid`, and A is two-sided.

    It holds for lengths that a graph leaves open: by cells of one spacing, over which the weights repeat, or by dense
    W and A.
    """
    signal = x.to(coarse.dtype)
    with torch.autocast(x.device.type, enabled=False):
        if spacing:
            y = _by_cells(signal, coarse, spacing, degree)
        else:
            y = _by_matrices(signal, coarse, first, lengths, row_nodes, degree)
    return (y if taps is None else y + convolution(signal, taps, origin, "direct")).to(x.dtype)


def _by_cells(x: Tensor, coarse: Tensor, spacing: int, degree: int) -> Tensor:
    weights, cells = interpolation_matrix(spaced_grid(spacing, spacing, degree)).to(x), chunk_count(x.shape[1], spacing)
    signal = F.pad(x, (0, 0, 0, cells * spacing - x.shape[1])).unflatten(1, (cells, spacing))
    shares = (weights.t() @ signal).unbind(2)
    z = sum(F.pad(share, (0, 0, a, degree - a)) for a, share in enumerate(shares))
    smooth = convolution(z, coarse, 0, "spectral")
    around = torch.stack([smooth[:, a : a + cells] for a in range(degree + 1)], dim=2)
    return (weights @ around).flatten(1, 2)[:, : x.shape[1]]


def _by_matrices(
    x: Tensor, coarse: Tensor, first: Tensor | None, lengths: Tensor | None, nodes: Tensor | None, degree: int
) -> Tensor:
    rank = (coarse.shape[-1] + 1) // 2
    if first is None or lengths is None or nodes is None:
        first, lengths, nodes = (torch.tensor([n], device=x.device) for n in (0, x.shape[1], rank))
    w = row_matrix(first, lengths, nodes, x.shape[1], rank, at_most(degree, rank - 1)).to(x.dtype)
    index = torch.arange(rank, device=x.device)
    a = coarse[..., index[:, None] - index + rank - 1]
    z = (w.mT @ x).mT  # (batch, channels, nodes)
    return w @ (a @ z[..., None])[..., 0].mT


class _Shared(Engine):
    """A sum whose terms share one result, forward and backward, where autograd would compute one each and add them."""

    @classmethod
    def forward(cls, x: Tensor, taps: Tensor | None, coarse: Tensor, *rest: Any) -> tuple[Tensor, Values]:
        *rows, origin, spacing, degree = rest
        grid, blocks = _nodes(x, coarse, rows, spacing, degree)
        z = restrict(x.to(coarse.dtype), grid, blocks)
        signal, kernel, centre = _as_channels(z, coarse, spacing)
        smooth = _as_rows(convolution(signal, kernel, centre, "spectral"), z)
        return cls.both(x, taps, origin, smooth, grid, blocks), (z,)

    @classmethod
    def backward(cls, args: Values, saved: Values, grads: Values, needs_grad: Sequence[bool]) -> Values:
        x, taps, coarse, *rows, origin, spacing, degree = args
        grid, blocks = _nodes(x, coarse, rows, spacing, degree)
        z = saved[0] if saved else restrict(x.to(coarse.dtype), grid, blocks)  # an operator of a graph saves nothing
        dx = dtaps = dcoarse = None
        if needs_grad[0] or needs_grad[2]:
            signal, kernel, centre = _as_channels(z, coarse, spacing)
            nodes = _as_channels(restrict(grads[0].to(coarse.dtype), grid, blocks), coarse, spacing)[0]
            arguments = (signal, kernel, centre, "spectral", 1)
            dz, dcoarse = convolution.gradients(arguments, (), [nodes], (needs_grad[0], needs_grad[2]))
            if dcoarse is not None:
                dcoarse = F.pad(dcoarse, (0, coarse.shape[-1] - dcoarse.shape[1])).view_as(coarse)
            if dz is not None:
                dx = cls.both(grads[0], taps, origin, _as_rows(dz, z), grid, blocks, adjoint=True)
        if taps is not None and needs_grad[1]:
            _, dtaps = convolution.gradients((x, taps, origin, "direct", 1), (), grads, (False, True))
        return dx, dtaps, dcoarse

    @staticmethod
    def both(
        x: Tensor,
        taps: Tensor | None,
        origin: int,
        z: Tensor,
        grid: NodeGrid,
        blocks: BlockWeights,
        *,
        adjoint: bool = False,
    ) -> Tensor:
        """``T_sparse x + W z``, with the adjoint of T_sparse on request: like x, in one tensor."""
        near = None
        if taps is not None:
            taps, origin = (taps.flip(1), taps.shape[1] - 1 - origin) if adjoint else (taps, origin)
            near = convolve(x.to(z.dtype), *_balanced(taps, origin))
        return owned(prolong(z, grid, blocks, into=near).to(x.dtype))


@_sparse_plus_smooth.engine("triton")
class _SharedKernels(_Shared):
    @staticmethod
    def serves(x: Tensor, taps: Tensor | None, coarse: Tensor, *_: Any) -> bool:
        return taps is not None and TritonEngine.serves(x, taps, coarse)

    @staticmethod
    def both(x, taps, origin, z, grid, blocks, *, adjoint=False) -> Tensor:
        return fused_convolution.convolve(x, taps, prolong(z, grid, blocks), origin, -1 if adjoint else 1, False)


_sparse_plus_smooth.engine("shared")(_Shared)
# The grid depends on the length, for which it would be compiled anew.
_sparse_plus_smooth.in_graphs("ski_product", lambda x, *_: x.new_empty(x.shape), constants="first lengths row_nodes")


def _nodes(
    x: Tensor, coarse: Tensor, rows: Sequence[Tensor | None], spacing: int, degree: int
) -> tuple[NodeGrid, BlockWeights]:
    """The grid of a signal, and its weights, by the numbers of tokens: layers share them."""
    rank, like = coarse.shape[-1] // 2 + 1, x.new_empty(0, dtype=coarse.dtype)
    grid = spaced_grid(x.shape[1], spacing, degree) if spacing else inducing_grid(x.shape[1], max(2, rank), degree)
    sizes = [tuple(each.tolist()) for each in on_host(*rows) if each is not None]
    return grid, cached_tables(_row_tables, *sizes, grid, like=like) if sizes else block_weights(grid, like)


def _row_tables(
    first: tuple[int, ...], lengths: tuple[int, ...], nodes: tuple[int, ...], grid: NodeGrid
) -> BlockWeights:
    return row_weights(torch.tensor(first), torch.tensor(lengths), torch.tensor(nodes), grid)


def _as_channels(z: Tensor, coarse: Tensor, spacing: int) -> tuple[Tensor, Tensor, int]:
    """The nodes, the coarse taps that they meet, and the index of lag 0 among these; rows with different taps as
    channels of one row. The product is always by FFT: a dense one is slower even at rank 64 (docs/log.md, "SKI coarse
    product")."""
    centre = 0 if spacing else coarse.shape[-1] // 2
    kernel = coarse[..., : z.shape[1] + centre]
    if coarse.dim() == 2:
        return z, kernel, centre
    return z.transpose(0, 1).flatten(1)[None], kernel.flatten(0, 1), centre


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


@operation
def ski_split_tables(like: Tensor, spacing: int, width: int, degree: int) -> tuple[Tensor, Tensor]:
    """Copies of `_split_constants`, since graphs write into what they are given."""
    ramp, spread = cached_tables(_split_constants, SKIPlan(spacing, width, degree), like=like)
    return ramp.clone(), spread.clone()


def _split_tables_like(like: Tensor, spacing: int, width: int, degree: int) -> tuple[Tensor, Tensor]:
    count = SKIPlan(spacing, width, degree).short_nodes
    return like.new_empty(count), like.new_empty(count, width)


# Graphs would make them by many launches at every step.
ski_split_tables.in_graphs("ski_split_tables", _split_tables_like, constants="like", results="ramp spread")


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


def best_plan(taps: Tensor, tolerance: float, *, ends: bool = False) -> tuple[SKIPlan, float]:
    """The cheapest plan whose estimated error on a kernel is within the tolerance, or the most accurate one if there is
    none; and that error.

    The estimate is `ski_error` on the 16 roughest channels (by second differences) and the first 1024 lags, relative
    as the tolerance. The choice depends on values, so an exported model cannot make it.

    Shapes: taps ``(channels, n)``, lag 0 first. ``ends``: whether the kernel is zero beyond the taps; otherwise it is
    not examined there.

    >>> smooth = 0.999 ** torch.arange(4096.0)[None]
    >>> plan, error = best_plan(smooth, 1e-3)
    >>> plan.spacing > 1, error < 1e-3
    (True, True)
    """
    taps = taps.detach()
    roughness = taps.diff(n=2, dim=1).abs().sum(1) / taps.abs().sum(1).clamp(min=1e-30)
    chosen = roughness.topk(min(_SAMPLED_CHANNELS, len(taps))).indices
    ends = ends and taps.shape[1] <= SAMPLED_LAGS
    sample = taps[chosen, :SAMPLED_LAGS]
    best: tuple[SKIPlan, float] | None = None
    for plan in PLANS:
        error = ski_error(sample, plan, ends=ends)
        if best is None or error < best[1]:
            best = plan, error
        if error <= tolerance:
            break
    assert best is not None
    return best


# From the cheapest to the most accurate, by measurement (docs/log.md, "SKI plans").
PLANS = (
    SKIPlan(16, 64, 1),
    SKIPlan(8, 64, 1),
    SKIPlan(8, 64, 3),
    SKIPlan(8, 96, 3),
    SKIPlan(4, 96, 3),
    SKIPlan(4, 128, 5),
    SKIPlan(2, 128, 5),
)


@torch.no_grad()
def ski_error(taps: Tensor, plan: SKIPlan, *, ends: bool = False) -> float:
    """Largest error of `causal_ski_product` on signals within [-1, 1], relative to the largest output.

    Formula: ``max_c sum_l max_p |T̃_p(l) - k(l)| / sum_l |k(l)|``, where p is the position of the earlier token in its
    cell: at least the relative error of the operator in the maximum norm, for these channels and lags.

    Args:
        taps: ``(channels, n)``, lag 0 first.
        plan: How the kernel is split.
        ends: Whether the kernel is zero beyond the taps, so that the error of interpolating over its end counts.
            Otherwise it continues, and the last lags, where interpolation would need later ones, are left out.
    """
    edge = (plan.degree + 1) * plan.spacing
    taps = taps.double()
    total = taps.abs().sum(1).clamp(min=1e-300)
    if ends:
        taps = F.pad(taps, (0, 2 * edge))
    length = taps.shape[1]
    nodes = max(plan.short_nodes, plan.grid(length + plan.spacing).nodes)
    padded = F.pad(taps, (0, max(plan.width, nodes * plan.spacing) - length))
    short, coarse = split_kernel(padded[:, : plan.width], padded[:, :: plan.spacing][:, :nodes], plan)
    # An impulse at each position in the first cell gives the operator's column there.
    signal = torch.eye(plan.spacing, length + plan.spacing, dtype=taps.dtype, device=taps.device)
    answers = causal_ski_product(signal[..., None].expand(-1, -1, len(taps)), short, coarse, plan)
    lags = max(1, length - edge)
    errors = torch.stack([answer[p : p + lags] - taps.t()[:lags] for p, answer in enumerate(answers)])
    return (errors.abs().amax(0).sum(0) / total).max().item()
