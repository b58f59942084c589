"""A block as a layer of a model: with the cache, stochastic depth and gradient checkpointing, and with weights that are
moved away between forward passes (accelerate's CPU and disk offload)."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor, nn
from transformers.modeling_layers import GradientCheckpointingLayer

from lagwise.blocks import BLOCKS
from lagwise.blocks.chain import ChainBlock
from lagwise.mixers.base import StreamModule
from lagwise.models.cache import StateLayer
from lagwise.models.configuration import LagwiseConfig
from lagwise.ops import Layout
from lagwise.tables import build


def own_weights(module: nn.Module) -> dict[str, Any]:
    """The parameters that the first part with any holds directly. They tell whether the weights are offloaded, that is,
    on the meta device: a search takes as long as a token through a small layer."""
    return next(
        (part._parameters for part in module.modules() if any(True for _ in part.parameters(recurse=False))), {}
    )


@contextlib.contextmanager
def _loaded(module: nn.Module) -> Iterator[None]:
    """A context in which the offloaded weights of a module and of all its parts are loaded: accelerate's hooks load
    them for `forward` alone, and a block also uses its parts by other methods (`step`, `prefill`, `taps`)."""
    hooks = ((part, getattr(part, "_hf_hook", None)) for part in module.modules())
    each_hook = ((part, each) for part, hook in hooks for each in getattr(hook, "hooks", [hook]))
    hooked = [(part, hook) for part, hook in each_hook if getattr(hook, "offload", False)]
    for part, hook in hooked:
        hook.pre_forward(part)
    try:
        yield
    finally:
        for part, hook in hooked:
            hook.post_forward(part, None)


def require_loaded(model: nn.Module, purpose: str) -> None:
    """Raise ValueError if weights are offloaded, for code that uses them outside the model's forward."""
    if any(parameter.is_meta for parameter in model.parameters()):
        raise ValueError(
            f"{purpose} needs all weights in memory, but some of this model's are offloaded; load it without offloading"
        )


class LagwiseLayer(GradientCheckpointingLayer):
    """A block and its index in the cache. drop: probability that training skips the block for a sequence."""

    def __init__(self, config: LagwiseConfig, drop: float = 0.0):
        super().__init__()
        assert config.block is not None
        self.drop = drop
        self.block = build(BLOCKS, config.block, config.hidden_size, what="block", causal=config.causal)
        self._weights = own_weights(self.block)

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        if isinstance(self.block, ChainBlock):  # a chain recomputes its blocks one by one
            return nn.Module.__call__(self, *args, **kwargs)
        return super().__call__(*args, **kwargs)

    def forward(self, x: Tensor, layout: Layout | None = None, cached: StateLayer | None = None) -> Tensor:
        y = run_streamed(self.block, x, layout or Layout(), cached, self._weights)
        return _some_rows(x, y, self.drop) if cached is None and self.training and self.drop else y


def run_streamed(
    part: StreamModule, x: Tensor, layout: Layout, cached: StateLayer | None, weights: dict[str, Any]
) -> Tensor:
    """The output of a block or mixer for whole sequences, or for the next tokens of those in the cache. weights: those
    of `own_weights`."""
    offloaded = not torch.compiler.is_compiling() and any(p is not None and p.is_meta for p in weights.values())
    with _loaded(part) if offloaded else contextlib.nullcontext():
        if cached is None:
            return part(x, layout=layout)
        state = part.init_state(x.shape[0]) if cached.state is None else cached.state
        y, cached.state = part.prefill(x, state, layout=layout)
        return y


def _some_rows(x: Tensor, y: Tensor, drop: float) -> Tensor:
    """The block's output, with a share ``drop`` of the rows unchanged and the block's contribution to the others scaled
    up, so that the mean stays the same."""
    scale = x.new_empty(x.shape[0], 1, 1).bernoulli_(1 - drop) / (1 - drop)
    x = x[..., : y.shape[2]]  # without what a chain adds before its blocks
    return x + scale * (y - x)
