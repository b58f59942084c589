"""SKI as an engine of the Toeplitz mixer: lag kernels by inducing points, approximately, in linear time."""

from __future__ import annotations

import warnings
from typing import Any, NamedTuple, TypeVar, cast

import torch
import torch.nn.functional as F
from torch import Tensor

from lagwise.kernels import LagKernel
from lagwise.kernels.base import cached
from lagwise.ops import Layout, SKIPlan, causal_ski_product, ski_product, toeplitz_product
from lagwise.ops.constants import cached_tables, table_device
from lagwise.ops.host import added, read_counts
from lagwise.ops.operation import at_most, beyond, device_check, symbolic, traced
from lagwise.ops.packing import move_rows
from lagwise.ops.ski import (
    SAMPLED_LAGS,
    best_plan,
    interpolation_matrix,
    prolong,
    restrict,
    row_spacing,
    ski_error,
    split_kernel,
)
from lagwise.ops.toeplitz import convolution
from lagwise.ops.window import Window, extended, ring_lags, ring_of, ring_tokens, ring_write, spaced
from lagwise.tables import check_integer

_FIRST_NODES = 64
_MAX_DEGREE = 7  # above, extrapolation at the ends of a text makes errors larger

Length = TypeVar("Length", int, Tensor)


def _check_extent(kernel: LagKernel, x: Tensor, layout: Layout) -> None:
    """Raise ValueError for a row that is longer than the kernel supports; in graphs, have the device fail at it."""
    limit = kernel.max_length
    if limit is None or not beyond(x.shape[1], limit):
        return
    if layout.mask is None or not traced():
        kernel.check_length(x.shape[1] if layout.mask is None else layout.extents[2])
    else:
        message = f"a text of more than the {limit} tokens that a kernel has coefficients for, in a compiled model"
        device_check(lambda: (layout.extents[1] <= limit).all(), message)


class SKIState(NamedTuple):
    """The state of causal SKI.

    Attributes:
        tail: the last ``width`` inputs, a window.
        nodes: inputs restricted to the nodes before each row's current cell, a ring ``(batch, capacity, channels)``:
            one for every ``spacing`` tokens. The capacity grows with the text, up to ``max_nodes``.
        cell: the same for the nodes of the current cell, ``(batch, degree + 1, channels)``, to which tokens still add.
        far: contribution of the long part at these nodes, ``(batch, degree + 1, channels)``: constant within a cell.
        seen: tokens of each row, ``(batch,)``, from its first real one: rows need not be in step.
        plan: how the kernel is split in this stream.
        max_nodes: nodes that the kernel reaches back, None for a kernel without end.
    """

    tail: Window | Tensor
    nodes: Tensor
    cell: Tensor
    far: Tensor
    seen: Tensor
    plan: SKIPlan
    max_nodes: int | None


class SKITaps(NamedTuple):
    """A kernel as causal SKI needs it: short taps ``(width, channels)``, lag 0 last; coarse taps ``(n, channels)``, lag
    0 first; and the interpolation at each position of a cell, ``(spacing, degree + 1)``."""

    short: Tensor
    coarse: Tensor
    within: Tensor


class CausalSKI:
    """Engine of `ToeplitzMixer` for a causal kernel with ``engine="ski"``: the kernel split into a short and a long
    part (`causal_ski_product`), by a plan or to a tolerance.

    SKI-TNN's own kernel is rough near lag 0 and has more knots than nodes: such a model is defined by its nodes, and an
    exact engine would compute another one. A smooth kernel, such as RPE's, is approximated, with the error that
    `choose` gives.

    Options:
        spacing, width, degree: as in `SKIPlan` (8, 64, 1).
        tolerance: instead of these, use the plan that `best_plan` chooses for the current kernel at every
            forward pass and at the start of every stream, or the most accurate one, with a warning, if none meets it.
            `torch.export` needs a plan.

    ValueError for options that are out of range, and for a tolerance beside parts of a plan.
    """

    def __init__(
        self,
        kernel: LagKernel,
        *,
        spacing: int | None = None,
        width: int | None = None,
        degree: int | None = None,
        tolerance: float | None = None,
    ):
        pairs = zip(SKIPlan._fields, (spacing, width, degree), strict=True)
        options = {name: value for name, value in pairs if value is not None}
        if tolerance is not None and options:
            name, value = next(iter(options.items()))
            raise ValueError(f"{name} has no effect on SKI beside a tolerance, got {value}")
        if tolerance is not None and tolerance <= 0:
            raise ValueError(f"tolerance must be greater than 0, got {tolerance}")
        self.tolerance = tolerance
        self.fixed_plan = SKIPlan(**options).check()

    def mix(self, mixer: Any, x: Tensor, state: SKIState | None, layout: Layout) -> tuple[Tensor, Any]:
        """`Mixer.mix`, without times and shards."""
        if state is not None:
            return self._prefill(mixer, x, state, layout.mask)
        _check_extent(kernel := mixer.kernel, x, layout)
        plan = self.plan(kernel)
        if not layout.padded_before:
            return causal_ski_product(x, *self.split(kernel, plan, plan.grid(x.shape[1]).nodes), plan), None
        # Nodes count from a row's first token, so rows are moved to the start, and back.
        first, _, longest = layout.extents
        moved = move_rows(x, -first, longest)
        y = causal_ski_product(moved, *self.split(kernel, plan, plan.grid(longest).nodes), plan)
        return move_rows(y, first, x.shape[1]), None

    def plan(self, kernel: LagKernel) -> SKIPlan:
        """The plan for a causal kernel with its current parameters."""
        if self.tolerance is None:
            return self.fixed_plan
        plan, error = self.choose(kernel)
        if error > self.tolerance:
            warnings.warn(
                f"no SKI plan meets tolerance {self.tolerance:g} on this kernel: its error is about {error:.1e}; "
                "an exact engine, such as 'auto', has none",
                stacklevel=2,
            )
        return plan

    def planned(self, kernel: LagKernel) -> CausalSKI:
        """Copy with the plan for a kernel, whatever kernel it is used with."""
        return type(self)(kernel, **self.plan(kernel)._asdict())

    @torch.no_grad()
    def choose(self, kernel: LagKernel) -> tuple[SKIPlan, float]:
        """The plan for a causal kernel with its current parameters, and its error as `best_plan` estimates
        it."""
        support = kernel.support
        lags = SAMPLED_LAGS if support is None else min(support, SAMPLED_LAGS)
        taps, ends = kernel.taps(lags), support == lags
        if self.tolerance is None:
            return self.fixed_plan, ski_error(taps, self.fixed_plan, ends=ends)
        return best_plan(taps, self.tolerance, ends=ends)

    def derive(self, kernel: LagKernel, form: str) -> SKITaps:
        """`Derived.derive`: for fixed shapes all coarse taps of a kernel that ends, otherwise the first ones."""
        plan = self.plan(kernel)
        limit = self.node_limit(kernel, plan)
        short, coarse = self.split(kernel, plan, limit if form != "eager" and limit else _FIRST_NODES)
        within = interpolation_matrix(plan.grid(plan.spacing)).to(short)
        return SKITaps(short.t().flip(0).contiguous(), coarse.t().contiguous(), within)

    def init_state(self, mixer: Any, batch_size: int) -> SKIState:
        """`Mixer.init_state`."""
        kernel, taps = mixer.kernel, mixer.derived(checked=True)
        spacing, count = taps.within.shape
        width, channels = taps.short.shape
        limit = self.node_limit(kernel, plan := SKIPlan(spacing, width, count - 1))
        max_nodes = None if limit is None else limit - 1
        zeros, capacity = taps.short.new_zeros, _capacity(len(taps.coarse) - 1, max_nodes)  # all that a graph may need
        return SKIState(
            tail=Window.empty(batch_size, channels, width, like=taps.short),
            nodes=zeros(batch_size, capacity, channels),
            cell=zeros(batch_size, count, channels),
            far=zeros(batch_size, count, channels),
            seen=zeros(batch_size, dtype=torch.long),
            plan=plan,
            max_nodes=max_nodes,
        )

    def mix_token(self, mixer: Any, x: Tensor, state: SKIState) -> tuple[Tensor, SKIState]:
        """`Mixer.mix_token`. At the end of a cell its first node joins the ring, and the long part is computed for the
        next cell; in a graph, which has no branches, at every token."""
        kernel, taps, seen = mixer.kernel, mixer.derived(), state.seen
        width, spacing, token = state.plan.width, state.plan.spacing, x.to(taps.short.dtype)
        counts = None if traced() else read_counts(seen)
        if kernel.max_length is not None and counts is not None:
            kernel.check_length(max(counts) + 1)
        tail = extended(state.tail, token[:, None], seen)
        met, phase = spaced(tail, 1, width, seen), seen % spacing
        weight = taps.within[phase][..., None]
        y = (met * taps.short[width - met.shape[1] :]).sum(1) + (weight * state.far).sum(1)
        cell = state.cell + weight * token[:, None]
        after = state._replace(tail=tail, cell=cell, seen=added(seen, 1))
        if counts is not None and all((n + 1) % spacing for n in counts):  # no row enters its next cell
            return y.to(x.dtype), after
        index, nodes = seen // spacing, state.nodes
        if counts is not None:
            nodes = _grown(nodes, _capacity(max(counts) // spacing + 1, state.max_nodes))
            met = nodes.shape[1] + cell.shape[1]
            taps = taps._replace(coarse=self._enough_coarse(kernel, state.plan, taps.coarse, met))
        # Write the node before it is complete: the node it replaces is out of the kernel's reach at the next cell.
        nodes = ring_write(nodes, cell[:, 0], index)
        # Node k of the new cell is k + 1 nodes after the last one in the ring.
        after_last = torch.arange(1, cell.shape[1] + 1, device=nodes.device)[:, None]
        coarse = F.pad(taps.coarse, (0, 0, 0, max(0, nodes.shape[1] + cell.shape[1] - len(taps.coarse))))
        far = (nodes[:, None] * coarse[ring_lags(nodes, index)[:, None] + after_last]).sum(2)
        moves = (phase == spacing - 1)[:, None, None]
        far = torch.where(moves, far, state.far)
        cell = torch.where(moves, F.pad(cell[:, 1:], (0, 0, 0, 1)), cell)
        return y.to(x.dtype), after._replace(nodes=nodes, cell=cell, far=far)

    def _prefill(self, mixer: Any, x: Tensor, state: SKIState, mask: Tensor | None) -> tuple[Tensor, SKIState]:
        kernel, taps = mixer.kernel, mixer.derived()
        plan, length, count = state.plan, x.shape[1], state.plan.degree + 1
        # Nodes count from each row's first token as the whole kernel does: padding before a row's first token drops
        # out, and a row in the middle of a cell is shifted into it. The grid ends where the last row does.
        skipped = torch.zeros_like(state.seen)
        if mask is not None:
            skipped = torch.where(state.seen == 0, mask.int().cumsum(1).eq(0).sum(1), 0)
        phase, done = state.seen % plan.spacing, state.seen // plan.spacing  # done: nodes before the current cell
        ends, seen = phase + length - skipped, state.seen + length - skipped
        counts, furthest = state.seen.tolist(), int(ends.max())
        if kernel.max_length is not None:
            kernel.check_length(max(counts) + length)
        in_step = mask is None and min(counts) == max(counts)

        def moved(rows: Tensor, shift: Tensor, size: int) -> Tensor:
            if not in_step:
                return move_rows(rows, shift, size)
            first = int(shift[0])
            return F.pad(rows, (0, 0, first, size - rows.shape[1] - first))

        new = x.to(taps.short.dtype)
        assert isinstance(state.tail, Window)
        past = state.tail.tokens
        past = past[:, max(0, past.shape[1] - plan.width + 1) :].to(new.dtype)
        near = convolution(torch.cat([past, new], 1), taps.short.t().flip(1), 0, "direct")[:, past.shape[1] :]
        after = state._replace(tail=extended(state.tail, new, state.seen), seen=seen)
        cells, last, grid = ends // plan.spacing, furthest // plan.spacing, plan.grid(max(1, furthest))
        cell = F.pad(restrict(moved(new, phase - skipped, grid.length), grid), (0, 0, 0, last + count - grid.nodes))
        cell = cell + F.pad(state.cell, (0, 0, 0, cell.shape[1] - count))
        if last == 0:  # the nodes before are not needed
            y = near + moved(prolong(state.far, grid), skipped - phase, length)
            return y.to(x.dtype), after._replace(cell=cell)
        before = min(max(counts) // plan.spacing, state.nodes.shape[1])
        nodes = torch.cat([ring_tokens(state.nodes, done)[:, state.nodes.shape[1] - before :], cell], dim=1)
        coarse = self._enough_coarse(kernel, plan, taps.coarse, nodes.shape[1])
        far = toeplitz_product(nodes, coarse.t()[:, : nodes.shape[1]])[:, before:]
        y = near + moved(prolong(far[:, : grid.nodes], grid), skipped - phase, length)
        # Each row's new cell goes to the end. Rows out of step change cells at other times.
        capacity = _capacity(int(seen.max()) // plan.spacing, state.max_nodes)
        nodes, far = (moved(t, last - cells, t.shape[1])[:, -count - capacity :] for t in (nodes, far))
        return y.to(x.dtype), after._replace(
            nodes=ring_of(nodes[:, :-count], capacity, seen // plan.spacing),
            cell=nodes[:, -count:].clone(),
            far=far[:, -count:].clone(),
        )

    def split(self, kernel: LagKernel, plan: SKIPlan, nodes: int) -> tuple[Tensor, Tensor]:
        """Short and coarse taps, for at least this many nodes or as many as the kernel reaches."""
        limit = self.node_limit(kernel, plan)
        nodes = cast("int", torch.sym_max(plan.short_nodes, at_most(limit, nodes) if limit else nodes))
        like = next(kernel.parameters())
        (lags,) = cached_tables(_split_lags, plan, nodes, like=like)
        values = kernel.at(lags)
        short, coarse = values.split([plan.width, values.shape[1] - plan.width], dim=1)
        return split_kernel(short, coarse, plan)

    def node_limit(self, kernel: LagKernel, plan: SKIPlan) -> int | None:
        """Count the coarse taps of the kernel that are not negligible, if it ends."""
        support = kernel.support
        return None if support is None else max(plan.short_nodes, -(-support // plan.spacing) + 1)

    def _enough_coarse(self, kernel: LagKernel, plan: SKIPlan, coarse: Tensor, nodes: int) -> Tensor:
        """Return coarse taps for so many nodes or as many as the kernel reaches: the given ones if they suffice."""
        limit = self.node_limit(kernel, plan)
        if nodes <= len(coarse) or (limit is not None and limit <= len(coarse)):
            return coarse
        count = 2 ** (nodes - 1).bit_length()
        # Beside the given ones, which are of the present weights (`Derived.derived`): so their number stays their own.
        make = lambda: (self.split(kernel, plan, count)[1].t().contiguous(), coarse)  # noqa: E731
        return cached(kernel, "coarse", (plan, count, id(coarse)), make, by_value=False)[0]


def _split_lags(plan: SKIPlan, nodes: int) -> tuple[Tensor]:
    """The lags of the short taps, and of so many coarse ones."""
    device = table_device()
    coarse = torch.arange(nodes, device=device) * plan.spacing
    return (torch.cat([torch.arange(plan.width, device=device), coarse]),)


def _capacity(nodes: int, max_nodes: int | None) -> int:
    """Capacity of a ring that holds so many nodes: a power of two, up to what the kernel reaches."""
    capacity = max(_FIRST_NODES, 1 << (nodes - 1).bit_length() if nodes > 1 else 1)
    return capacity if max_nodes is None else min(capacity, max_nodes)


def _grown(nodes: Tensor, capacity: int) -> Tensor:
    """A ring of at least this capacity. One that is smaller than it may become has not gone round yet."""
    missing = capacity - nodes.shape[1]
    return F.pad(nodes, (0, 0, 0, missing)) if missing > 0 else nodes


class TwoSidedSKI:
    """Engine of `ToeplitzMixer` for a two-sided kernel with ``engine="ski"``: the kernel's free taps as a depthwise
    convolution, its smooth part by SKI of a rank (SKI-TNN alg. 1).

    Options:
        rank: inducing points (SKI-TNN §5.2: 64).
        spacing: most tokens between inducing points; longer texts have more than ``rank`` of them. None, as published,
            keeps their number and moves them apart, so that a model fails on texts much longer than in training.
        degree: of the interpolation (1, linear), at most 7.

    ValueError for options that are out of range, and for a kernel without values between tokens.
    """

    def __init__(self, kernel: LagKernel, *, rank: int = 64, spacing: int | None = None, degree: int = 1):
        self.rank, self.degree = check_integer("rank", rank, 2), check_integer("degree", degree, 0)
        if degree > _MAX_DEGREE:
            raise ValueError(f"degree must be at most {_MAX_DEGREE}, got {degree}: polynomials explode at the ends")
        self.spacing = None if spacing is None else check_integer("spacing", spacing, 1)
        if not kernel.continuous:
            kernel.smooth_at(torch.zeros(0))  # raises an explanatory error

    def mix(self, mixer: Any, x: Tensor, state: None, layout: Layout) -> tuple[Tensor, None]:
        """`Mixer.mix`, without times and shards."""
        _check_extent(mixer.kernel, x, layout)
        if symbolic(x.shape[1]) or layout.padded_before or layout.padded_after:
            return self._mix_rows(mixer.kernel, x, layout), None
        return self._mix_whole(mixer.kernel, x), None

    def _mix_whole(self, kernel: LagKernel, x: Tensor) -> Tensor:
        """Mix rows that are all real (SKI-TNN alg. 1)."""
        rank = min(self._nodes(x.shape[1]), x.shape[1])
        spacing = (x.shape[1] - 1) / max(1, rank - 1)
        dtype = torch.promote_types(x.dtype, torch.float32)  # not every device has float64
        lags = torch.arange(1 - rank, rank, dtype=dtype, device=x.device) * spacing
        return ski_product(x, kernel.smooth_at(lags), degree=self.degree, local=kernel.local_taps())

    def _mix_rows(self, kernel: LagKernel, x: Tensor, layout: Layout) -> Tensor:
        """Apply SKI-TNN alg. 1 to every row separately, from its first token to its last. Where a graph leaves the
        length open, one with fewer tokens than nodes has nodes beyond its end."""
        if layout.mask is None:
            lengths = torch.full((1,), x.shape[1], device=x.device)
            first, longest = torch.zeros_like(lengths), x.shape[1]
        else:
            first, lengths, longest = layout.host.extents
        rank = at_most(self._nodes(longest), longest)
        nodes = lengths.new_full(lengths.shape, at_most(self.rank, longest))
        if self.spacing is not None:
            nodes = nodes.maximum(_nodes_apart(lengths, self.spacing))
        if torch.compiler.is_compiling():
            lags = _row_lags(lengths, nodes, rank)
        else:
            like = x.new_empty(0, dtype=torch.promote_types(x.dtype, torch.float32))
            sizes = tuple(lengths.tolist()), tuple(nodes.tolist()), rank
            (lags,) = cached_tables(_row_tables, *sizes, like=like)
        coefficients = kernel.smooth_at(lags.flatten()).reshape(-1, *lags.shape).transpose(0, 1)
        local = kernel.local_taps()
        return ski_product(x, coefficients, degree=self.degree, local=local, rows=(first, lengths, nodes))

    def _nodes(self, length: int) -> int:
        """Return the number of inducing points of a text that has at least as many tokens."""
        if self.spacing is None:
            return self.rank
        return torch.sym_max(self.rank, _nodes_apart(length, self.spacing))  # type: ignore[return-value]


def _row_lags(lengths: Tensor, nodes: Tensor, rank: int) -> Tensor:
    """The lags between the nodes of each row, ``(batch, 2 rank - 1)``, in float64."""
    steps = torch.arange(1 - rank, rank, dtype=torch.float64, device=lengths.device)
    return row_spacing(lengths, nodes)[:, None] * steps


def _row_tables(lengths: tuple[int, ...], nodes: tuple[int, ...], rank: int) -> tuple[Tensor]:
    return (_row_lags(torch.tensor(lengths), torch.tensor(nodes), rank),)


def _nodes_apart(length: Length, spacing: int) -> Length:
    """``1 + ceil((length - 1) / spacing)``: nodes from the first token to the last, at most a spacing apart."""
    return 1 - (1 - length) // spacing
