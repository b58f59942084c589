"""The streaming step of SKI with a state of fixed shapes."""

from __future__ import annotations

from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from lagwise.mixers.causal_ski import CausalSKI, SKIState
from lagwise.mixers.fixed import FixedMixer, counter
from lagwise.mixers.fixed_ring import infinite_kernel_error
from lagwise.mixers.toeplitz import ToeplitzMixer
from lagwise.ops.streaming import ring_of, ring_product, ring_tokens, ring_write


class FixedSKIState(NamedTuple):
    """As `SKIState`: rings of the last ``width`` inputs and of the nodes before the current cell, the nodes of that
    cell, and the long part's contributions at them, each ``(batch, n, channels)``; and the number of tokens of each
    row, ``(batch,)``."""

    tail: Tensor
    nodes: Tensor
    cell: Tensor
    far: Tensor
    seen: Tensor


class FixedSKI(FixedMixer):
    """Causal SKI. At the end of a cell its first node joins the ring, and the long part is computed for the next cell.

    The graph has no branches, so it computes the long part at every token and uses it only at the end of a cell.
    ValueError for an infinite kernel, whose nodes grow with the text.
    """

    short: Tensor
    coarse: Tensor
    within: Tensor

    def __init__(self, mixer: ToeplitzMixer):
        super().__init__()
        ski, kernel = mixer.ski, mixer.kernel
        assert isinstance(ski, CausalSKI)
        self.start = ski.init_state(kernel, 1)
        self.plan = plan = self.start.plan
        most = ski.most_nodes(kernel, plan)
        if most is None:
            raise infinite_kernel_error(mixer)
        _, coarse = ski.split(kernel, plan, most)
        self.count, self.most = plan.degree + 1, coarse.shape[1] - 1
        self.register_buffer("short", self.start.short.detach().flip(0))
        self.register_buffer("coarse", F.pad(coarse.detach(), (0, plan.degree)).t().contiguous())
        self.register_buffer("within", self.start.within.detach().clone())

    def init_state(self, batch_size: int) -> FixedSKIState:
        zeros = self.short.new_zeros
        sizes = (self.plan.width, self.most, self.count, self.count)
        tail, nodes, cell, far = (zeros(batch_size, n, self.short.shape[1]) for n in sizes)
        return FixedSKIState(tail, nodes, cell, far, counter(tail))

    def step(self, x: Tensor, state: FixedSKIState) -> tuple[Tensor, FixedSKIState]:
        seen, token = state.seen, x.to(self.short.dtype)
        tail = ring_write(state.tail, token, seen)
        weight = self.within[seen % self.plan.spacing][..., None]
        y = ring_product(tail, self.short, seen) + (weight * state.far).sum(1)
        cell = state.cell + weight * token[:, None]
        # Write the node before it is complete: the node it replaces is out of the kernel's reach at the next cell.
        number = seen // self.plan.spacing
        nodes = ring_write(state.nodes, cell[:, 0], number)
        # Node k of the new cell is k + 1 nodes after the last one in the ring.
        shifted = (self.coarse[k : k + self.most] for k in range(1, self.count + 1))
        far = torch.stack([ring_product(nodes, taps, number) for taps in shifted], dim=1)
        moves = ((seen + 1) % self.plan.spacing == 0)[:, None, None]
        far = torch.where(moves, far, state.far)
        cell = torch.where(moves, F.pad(cell[:, 1:], (0, 0, 0, 1)), cell)
        return y.to(x.dtype), FixedSKIState(tail, nodes, cell, far, seen + 1)

    def take(self, state: SKIState) -> FixedSKIState:
        nodes = state.nodes[:, max(0, state.nodes.shape[1] - self.most + 1) :]
        return FixedSKIState(
            ring_of(state.tail, self.plan.width, state.seen),
            ring_of(nodes, self.most, state.seen // self.plan.spacing),
            state.cell.clone(),
            state.far.clone(),
            state.seen.clone(),
        )

    def give(self, state: FixedSKIState) -> SKIState:
        return self.start._replace(
            tail=ring_tokens(state.tail, state.seen)[:, 1:],
            nodes=ring_tokens(state.nodes, state.seen // self.plan.spacing)[:, 1:],
            cell=state.cell,
            far=state.far,
            seen=state.seen,
        )
