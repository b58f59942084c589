"""Models divided between processes: by weights, as PyTorch's `fully_shard` leaves them, or by shards of sequences."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn
from torch.distributed.fsdp import FSDPModule
from torch.distributed.tensor import DTensor

from lagwise.blocks import Block
from lagwise.blocks.prenorm import BatchNorm
from lagwise.kernels import LagKernel
from lagwise.mixers import Mixer


@torch.no_grad()
def whole_model(model: Any) -> Any:
    """The model if it is whole; otherwise a copy with whole weights in every process, each of which must call this."""
    if not any(isinstance(p, DTensor) for p in model.parameters()):
        return model
    state = {n: t.full_tensor() if isinstance(t, DTensor) else t for n, t in model.state_dict().items()}
    copy = type(model)(model.config)  # `fully_shard`'s class makes whole models
    copy.load_state_dict(state, assign=True)
    copy.tie_weights()
    return copy.train(model.training)


def require_whole_layers(model: nn.Module) -> None:
    """Raise ValueError if `fully_shard` was given a part of a layer that is used without its `forward`, by steps of a
    stream or for its taps: the weights would not be gathered."""
    for name, part in model.named_modules():
        if isinstance(part, FSDPModule) and isinstance(part, Block | Mixer | LagKernel):
            raise ValueError(f"fully_shard cannot shard {name} ({type(part).__name__}) on its own; shard whole layers")


def require_shards(model: Any) -> None:
    """Raise ValueError if a part of a model has no exact form for shards of sequences; the message names it."""
    config = model.config
    if not getattr(model, "splits", True):
        raise ValueError(f"{type(model).__name__} pools tokens, so it cannot take shards of sequences")
    if config.input_name != "tokens":
        raise ValueError(f"shards of sequences must be of tokens, got inputs={config.inputs!r}")
    if config.stochastic_depth:
        raise ValueError(
            "stochastic depth would drop other layers in every shard of a sequence: set model.stochastic_depth=0"
        )
    for name, part in model.named_modules():
        if isinstance(part, BatchNorm):
            raise ValueError(f"{name} is a batch norm, which takes statistics of one shard: choose another norm")
        if isinstance(part, Mixer):
            part.require_shards()
