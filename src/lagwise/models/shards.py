"""Check that a model accepts shards of sequences that are split between processes."""

from __future__ import annotations

from typing import Any

from lagwise.blocks.norm import BatchNorm
from lagwise.mixers import Mixer


def require_shards(model: Any) -> None:
    """ValueError if a part of a model has no exact form for shards of sequences; the message names it."""
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
