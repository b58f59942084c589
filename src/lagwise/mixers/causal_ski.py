"""Causal SKI as an engine of the Toeplitz mixer: any lag kernel, approximately, in linear time."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Sequence
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from lagwise.kernels import LagKernel
from lagwise.mixers.two_sided_ski import check_extent
from lagwise.ops import SKIPlan, causal_ski_product, toeplitz_product
from lagwise.ops.packing import move_rows, row_extents
from lagwise.ops.ski import SAMPLED_LAGS, best_plan, prolong, restrict, ski_error, split_kernel
from lagwise.ops.symbolic import symbolic
from lagwise.ops.toeplitz import direct_product
from lagwise.ops.window import join_rows

_FIRST_NODES = 64


class SKIState(NamedTuple):
    """The state of causal SKI, and the kernel in the forms it needs.

    tail: the last ``width - 1`` inputs, ``(batch, width - 1, channels)``, zero before the first.
    nodes: inputs restricted to the nodes before each row's current cell, ``(batch, n, channels)``; n is what the row
    that has seen most needs: one for every ``spacing`` tokens, and at most what the kernel reaches.
    cell: the same for the nodes of the current cell, ``(batch, degree + 1, channels)``, to which tokens still add.
    far: contribution of the long part at these nodes, ``(batch, degree + 1, channels)``: constant within a cell.
    seen: tokens of each row, ``(batch,)``, from its first real one: rows need not be in step.
    short: short taps ``(width, channels)``, lag 0 last. coarse: coarse taps ``(n, channels)``, lag 0 last.
    within: interpolation at each position of a cell, ``(spacing, degree + 1)``.
    """

    tail: Tensor
    nodes: Tensor
    cell: Tensor
    far: Tensor
    seen: Tensor
    short: Tensor
    coarse: Tensor
    within: Tensor
    plan: SKIPlan

    def map_batch(self, change: Callable[[Tensor], Tensor]) -> SKIState:
        return self._replace(
            tail=change(self.tail),
            nodes=change(self.nodes),
            cell=change(self.cell),
            far=change(self.far),
            seen=change(self.seen),
        )

    @staticmethod
    def join(states: Sequence[SKIState]) -> SKIState:
        longest = max(states, key=lambda state: len(state.coarse))
        if any(state.plan != longest.plan for state in states):
            raise ValueError(f"states to join must have the same plan, got {[tuple(state.plan) for state in states]}")
        return longest._replace(
            tail=torch.cat([state.tail for state in states]),
            nodes=join_rows([state.nodes for state in states]),
            cell=torch.cat([state.cell for state in states]),
            far=torch.cat([state.far for state in states]),
            seen=torch.cat([state.seen for state in states]),
        )


class CausalSKI:
    """How `ToeplitzMixer` applies a causal kernel with ``engine="ski"``: the kernel split into a short and a long part
    (`causal_ski_product`), by a plan or to a tolerance.

    SKI-TNN's own kernel is rough near lag 0 and has more knots than nodes: such a model is defined by its nodes, and an
    exact engine would compute another one. A smooth kernel, such as RPE's, is approximated, with the error that
    `choose` gives.

    Options:
        spacing, width, degree: as in `SKIPlan` (8, 64, 1).
        tolerance: instead of these, use the plan that `plan_from_tolerance` chooses for the current kernel at every
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
        given = {
            name: value
            for name, value in zip(SKIPlan._fields, (spacing, width, degree), strict=True)
            if value is not None
        }
        if tolerance is not None and given:
            name, value = next(iter(given.items()))
            raise ValueError(f"{name} has no effect on SKI beside a tolerance, got {value}")
        if tolerance is not None and tolerance <= 0:
            raise ValueError(f"tolerance must be greater than 0, got {tolerance}")
        self.tolerance = tolerance
        self.fixed_plan = SKIPlan(**given).check()

    def mix(self, kernel: LagKernel, x: Tensor, mask: Tensor | None) -> Tensor:
        """`Mixer.mix` with this kernel."""
        check_extent(kernel, x, mask)
        graph = torch.compiler.is_compiling()  # which cannot branch on padding
        if mask is None or (not graph and mask[:, 0].all()):
            return self._mix(kernel, x)
        # Nodes count from a row's first token, so rows are moved to the start, and back.
        first, lengths = row_extents(mask)
        moved = self._mix(kernel, move_rows(x, -first, x.shape[1] if graph else int(lengths.max())))
        return move_rows(moved, first, x.shape[1])

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

    @torch.no_grad()
    def choose(self, kernel: LagKernel) -> tuple[SKIPlan, float]:
        """The plan for a causal kernel with its current parameters, and its error as `plan_from_tolerance` estimates
        it."""
        reach = kernel.reach
        lags = SAMPLED_LAGS if reach is None else min(reach, SAMPLED_LAGS)
        taps, ends = kernel.taps(lags), reach == lags
        if self.tolerance is None:
            return self.fixed_plan, ski_error(taps, self.fixed_plan, ends=ends)
        return best_plan(taps, self.tolerance, ends=ends)

    def init_state(self, kernel: LagKernel, batch_size: int) -> SKIState:
        """`Mixer.init_state` with this kernel."""
        plan = self.plan(kernel)
        short, coarse = (taps.t().flip(0) for taps in self.split(kernel, plan, _FIRST_NODES))
        count = plan.degree + 1
        return SKIState(
            tail=short.new_zeros(batch_size, plan.width - 1, kernel.channels),
            nodes=short.new_zeros(batch_size, 0, kernel.channels),
            cell=short.new_zeros(batch_size, count, kernel.channels),
            far=short.new_zeros(batch_size, count, kernel.channels),
            seen=torch.zeros(batch_size, dtype=torch.long, device=short.device),
            short=short,
            coarse=coarse,
            within=prolong(torch.eye(count, dtype=short.dtype, device=short.device)[None], plan.grid(plan.spacing))[0],
            plan=plan,
        )

    def prefill(self, kernel: LagKernel, x: Tensor, state: SKIState, mask: Tensor | None) -> tuple[Tensor, SKIState]:
        """`Mixer.mix_next` with this kernel."""
        plan, length = state.plan, x.shape[1]
        if kernel.max_length is not None:
            kernel.check_length(int(state.seen.max()) + length)
        signal = torch.cat([state.tail, x.to(state.tail.dtype)], dim=1)
        new = signal[:, plan.width - 1 :]
        if length == 1:
            near = (signal * state.short).sum(1, keepdim=True)
        else:
            near = direct_product(signal, state.short.t().flip(1), 0)[:, plan.width - 1 :]
        phase = state.seen % plan.spacing
        if length == 1 and mask is None and int(phase.max()) + 1 < plan.spacing:  # no row enters its next cell
            weight = state.within[phase][..., None]
            y = near + (weight * state.far).sum(1, keepdim=True)
            cell = state.cell + weight * new
            return y.to(x.dtype), state._replace(tail=signal[:, 1:], cell=cell, seen=state.seen + 1)
        # Rows are shifted so that each starts where its current cell does: padding before a row's first token drops
        # out, and a row in the middle of a cell is shifted into it. The grid ends where the last row does.
        skipped = torch.zeros_like(state.seen)
        if mask is not None:
            skipped = torch.where(state.seen == 0, mask.bool().int().cumsum(1).eq(0).sum(1), 0)
        shift = phase - skipped
        ends = phase + length - skipped
        furthest = int(ends.max())
        grid = plan.grid(max(1, furthest))
        count, before = plan.degree + 1, state.nodes.shape[1]
        cell = F.pad(restrict(move_rows(new, shift, grid.length), grid), (0, 0, 0, 1))
        cell = cell + F.pad(state.cell, (0, 0, 0, cell.shape[1] - count))
        seen = state.seen + length - skipped
        cells, most = ends // plan.spacing, furthest // plan.spacing
        tail = signal[:, length:]
        if length > plan.width:
            tail = tail.clone()  # otherwise it would keep the whole signal in memory
        if most == 0:  # the nodes before are not needed
            y = near + move_rows(prolong(state.far, grid), -shift, length)
            return y.to(x.dtype), state._replace(tail=tail, cell=cell[:, :count], seen=seen)
        nodes, far = torch.cat([state.nodes, cell], dim=1), state.far
        coarse = self._enough_coarse(kernel, state, nodes.shape[1])
        if grid.nodes > count:
            far = toeplitz_product(nodes, coarse.flip(0).t()[:, : nodes.shape[1]])[:, before : before + grid.nodes]
        y = near + move_rows(prolong(far, grid), -shift, length)
        # The state ends with the nodes of each row's new cell.
        kept = before + count + most
        limit = self.most_nodes(kernel, plan)
        # Rows out of step change cells at other times, but none needs more nodes than it has seen. If the kernel ends,
        # the last cell's first node still needs that many before it.
        needed = int(seen.max()) // plan.spacing + count
        needed = needed if limit is None else min(needed, limit + plan.degree)
        cut = max(0, kept - needed)
        nodes = move_rows(nodes, most - cells - cut, kept - cut)
        rows = cells.nonzero()[:, 0]
        far = state.far.index_copy(0, rows, self._far(nodes[rows], coarse, count))
        after = state._replace(tail=tail, nodes=nodes[:, :-count], cell=nodes[:, -count:])
        return y.to(x.dtype), after._replace(far=far, seen=seen, coarse=coarse)

    def _mix(self, kernel: LagKernel, x: Tensor) -> Tensor:
        plan = self.plan(kernel)
        return causal_ski_product(x, *self.split(kernel, plan, plan.grid(x.shape[1]).nodes), plan)

    def split(self, kernel: LagKernel, plan: SKIPlan, nodes: int) -> tuple[Tensor, Tensor]:
        """Short and coarse taps, for at least this many nodes or as many as the kernel reaches."""
        limit = self.most_nodes(kernel, plan)
        if not symbolic(nodes):
            nodes = max(plan.short_nodes, min(nodes, limit) if limit else nodes)
        else:  # a few more than needed do no harm
            nodes = limit or nodes + plan.short_nodes
        device = next(kernel.parameters()).device
        lags = torch.cat([torch.arange(plan.width, device=device), torch.arange(nodes, device=device) * plan.spacing])
        values = kernel.at(lags)
        return split_kernel(values[:, : plan.width], values[:, plan.width :], plan)

    def most_nodes(self, kernel: LagKernel, plan: SKIPlan) -> int | None:
        """Coarse taps of the kernel that are not negligible, if it ends."""
        reach = kernel.reach
        return None if reach is None else max(plan.short_nodes, -(-reach // plan.spacing) + 1)

    def _enough_coarse(self, kernel: LagKernel, state: SKIState, nodes: int) -> Tensor:
        """The state's coarse taps, or twice as many when there are more nodes."""
        limit = self.most_nodes(kernel, state.plan)
        if nodes <= len(state.coarse) or (limit is not None and limit <= len(state.coarse)):
            return state.coarse
        return self.split(kernel, state.plan, 2 ** (nodes - 1).bit_length())[1].t().flip(0)

    @staticmethod
    def _far(nodes: Tensor, coarse: Tensor, count: int) -> Tensor:
        """The coarse product at the last ``count`` nodes: ``(batch, count, channels)``."""
        total = nodes.shape[1]
        rows = []
        for end in range(total - count + 1, total + 1):
            reach = min(end, len(coarse))
            rows.append((nodes[:, end - reach : end] * coarse[len(coarse) - reach :]).sum(1))
        return torch.stack(rows, dim=1)
