"""A block as a layer of a model: with the cache, stochastic depth, gradient checkpointing and offloading."""

from __future__ import annotations

import torch
from torch import Tensor
from transformers.modeling_layers import GradientCheckpointingLayer

from lagwise.blocks import BLOCKS
from lagwise.models.cache import StateLayer
from lagwise.models.configuration import LagwiseConfig
from lagwise.models.offload import OffloadProbe, offloaded_weights
from lagwise.ops import Layout
from lagwise.tables import build


class LagwiseLayer(GradientCheckpointingLayer):
    """A block and its index in the cache. drop: probability that training skips the block for a sequence."""

    def __init__(self, config: LagwiseConfig, drop: float = 0.0):
        super().__init__()
        assert config.block is not None
        self.drop = drop
        self.block = build(BLOCKS, config.block, config.hidden_size, what="block", causal=config.causal)
        self.offloaded = OffloadProbe(self.block)

    def forward(
        self,
        x: Tensor,
        layout: Layout | None = None,
        cached: StateLayer | None = None,
    ) -> Tensor:
        if not torch.compiler.is_compiling() and self.offloaded:
            with offloaded_weights(self.block):
                return self._run(x, layout, cached)
        return self._run(x, layout, cached)

    def _run(self, x: Tensor, layout: Layout | None, cached: StateLayer | None) -> Tensor:
        layout = layout or Layout()
        if cached is None:
            y = self.block(x, layout=layout)
            return _some_rows(x, y, self.drop) if self.training and self.drop else y
        mask = layout.mask
        state = self.block.init_state(x.shape[0]) if cached.state is None else cached.state
        if x.shape[1] == 1 and mask is None:
            y, state = self.block.step(x[:, 0], state)
            y = y[:, None]
        else:
            y, state = self.block.prefill(x, state, mask=mask)
        cached.advance(state, x.shape[1])
        return y


def _some_rows(x: Tensor, y: Tensor, drop: float) -> Tensor:
    """The block's output, with a share ``drop`` of the rows unchanged and the block's contribution to the others scaled
    up, so that the mean stays the same."""
    kept = x.new_empty(x.shape[0], 1, 1).bernoulli_(1 - drop) / (1 - drop)
    return x + kept * (y - x)
