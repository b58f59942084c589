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


class OffloadProbe:
    """Test of whether the weights of a module are offloaded, that is, on the meta device.

    A single parameter of a cached part is tested, because a search takes as long as a token through a small layer.
    """

    def __init__(self, module: nn.Module):
        self.part = next((part for part in module.modules() if any(True for _ in part.parameters(recurse=False))), None)

    def __bool__(self) -> bool:
        if self.part is None:
            return False
        return any(parameter is not None and parameter.is_meta for parameter in self.part._parameters.values())


@contextlib.contextmanager
def offloaded_weights(module: nn.Module) -> Iterator[None]:
    """A context in which the offloaded weights of a module and of all its parts are loaded.

    accelerate's hooks load the weights of a module for its own `forward` and leave them on the meta device otherwise. A
    block also uses its parts by other methods (`step`, `prefill`, `taps`), which hooks do not see.
    """
    hooked = [(part, hook) for part in module.modules() for hook in _offload_hooks(part)]
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


def _offload_hooks(module: nn.Module) -> list[Any]:
    hook = getattr(module, "_hf_hook", None)
    return [each for each in getattr(hook, "hooks", [hook]) if getattr(each, "offload", False)]


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
    with offloaded_weights(part) if not torch.compiler.is_compiling() and offloaded else contextlib.nullcontext():
        if cached is None:
            return part(x, layout=layout)
        state = part.init_state(x.shape[0]) if cached.state is None else cached.state
        y, cached.state = part.prefill(x, state, layout=layout)
        return y


def _some_rows(x: Tensor, y: Tensor, drop: float) -> Tensor:
    """The block's output, with a share ``drop`` of the rows unchanged and the block's contribution to the others scaled
    up, so that the mean stays the same."""
    scale = x.new_empty(x.shape[0], 1, 1).bernoulli_(1 - drop) / (1 - drop)
    return x + scale * (y - x)
