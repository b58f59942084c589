"""A block as a layer of a model: with the cache, stochastic depth, gradient checkpointing and offloading."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from transformers.modeling_layers import GradientCheckpointingLayer

from lagwise.blocks import BLOCKS
from lagwise.blocks.chain import ChainBlock
from lagwise.mixers.base import StreamModule
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

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        if isinstance(self.block, ChainBlock):  # a chain recomputes its blocks one by one
            return nn.Module.__call__(self, *args, **kwargs)
        return super().__call__(*args, **kwargs)

    def forward(
        self,
        x: Tensor,
        layout: Layout | None = None,
        cached: StateLayer | None = None,
    ) -> Tensor:
        y = run_streamed(self.block, x, layout or Layout(), cached, self.offloaded)
        return _some_rows(x, y, self.drop) if cached is None and self.training and self.drop else y


def run_streamed(
    part: StreamModule, x: Tensor, layout: Layout, cached: StateLayer | None, offloaded: OffloadProbe
) -> Tensor:
    """The output of a block or mixer for whole sequences, or for the next tokens of those in the cache."""
    if not torch.compiler.is_compiling() and offloaded:
        with offloaded_weights(part):
            return _run(part, x, layout, cached)
    return _run(part, x, layout, cached)


def _run(part: StreamModule, x: Tensor, layout: Layout, cached: StateLayer | None) -> Tensor:
    if cached is None:
        return part(x, layout=layout)
    state = part.init_state(x.shape[0]) if cached.state is None else cached.state
    y, state = part.prefill(x, state, layout=layout)
    cached.advance(state, x.shape[1])
    return y


def _some_rows(x: Tensor, y: Tensor, drop: float) -> Tensor:
    """The block's output, with a share ``drop`` of the rows unchanged and the block's contribution to the others scaled
    up, so that the mean stays the same."""
    kept = x.new_empty(x.shape[0], 1, 1).bernoulli_(1 - drop) / (1 - drop)
    return x + kept * (y - x)
