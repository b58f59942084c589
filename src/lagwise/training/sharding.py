"""Sharding of weights, gradients and optimiser states between processes, by PyTorch's `fully_shard`.

The arithmetic is that of an unsharded model: autocast chooses what runs in bfloat16, operation by operation, because a
policy that casts the weights would also cast the weights that kernels keep in float32. `torch.distributed.checkpoint`
writes checkpoints, which any number of processes can read.
"""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from torch import Tensor, nn
from torch.distributed.checkpoint.state_dict import (
    StateDictOptions,
    get_model_state_dict,
    get_optimizer_state_dict,
    set_model_state_dict,
    set_optimizer_state_dict,
)
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import DTensor

SHARDS = "shards"  # folder of a checkpoint


def shard(model: Any) -> None:
    """Shard the weights of every layer, and the remaining weights, between all processes. The weights of a layer are
    gathered while it runs."""
    if not dist.is_initialized():  # one process: the same training, and the same checkpoints
        return
    device = next(model.parameters()).device.type
    mesh = init_device_mesh("cuda" if torch.cuda.is_available() else device, (dist.get_world_size(),))
    for layer in model.base_model.layers:
        fully_shard(layer, mesh=mesh)
    fully_shard(model, mesh=mesh)


def own_part(weight: Tensor) -> Tensor:
    """Return the shard of a weight that this process holds."""
    return weight.to_local() if isinstance(weight, DTensor) else weight


def save_shards(model: nn.Module, optimizer: Any, checkpoint: Path) -> None:
    """Write the weights and the optimiser's state, every process its own shard."""
    state = {"model": _weights(model), "optimizer": get_optimizer_state_dict(model, _plain(optimizer))}
    with _alone() as alone:
        dcp.save(state, checkpoint_id=checkpoint / SHARDS, no_dist=alone)


def load_weights(model: nn.Module, checkpoint: Path) -> None:
    """Read the weights of `save_shards`, by any number of processes."""
    state = {"model": _weights(model)}
    with _alone() as alone:
        dcp.load(state, checkpoint_id=checkpoint / SHARDS, no_dist=alone)
    set_model_state_dict(model, state["model"], options=StateDictOptions(strict=False))  # tied weights are there once


def load_optimizer(model: nn.Module, optimizer: Any, checkpoint: Path) -> None:
    """Read the optimiser's state of `save_shards`."""
    state = {"optimizer": get_optimizer_state_dict(model, _plain(optimizer))}
    with _alone() as alone:
        dcp.load(state, checkpoint_id=checkpoint / SHARDS, no_dist=alone)
    set_optimizer_state_dict(model, _plain(optimizer), state["optimizer"])


def _weights(model: nn.Module) -> dict[str, Any]:
    """Collect weights and buffers by name, a tied weight under its first name alone."""
    return {name: value for name, value in get_model_state_dict(model).items() if name not in _tied(model)}


def _tied(model: nn.Module) -> set[str]:
    """List the names of weights that have another name before."""
    every = {name for name, _ in model.named_parameters(remove_duplicate=False)}
    return every - {name for name, _ in model.named_parameters()}


@contextmanager
def _alone() -> Iterator[bool]:
    """Yield whether this is the only process, without the warning that PyTorch's checkpoints give then."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "torch.distributed is disabled, unavailable or uninitialized")
        yield not dist.is_initialized()


def _plain(optimizer: Any) -> Any:
    """Return the optimiser without accelerate's wrapper."""
    return getattr(optimizer, "optimizer", optimizer)
