"""Weights that are moved away between forward passes (accelerate's CPU and disk offload)."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any

from torch import nn


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
    """ValueError if weights are offloaded, for code that uses them outside the model's forward."""
    if any(parameter.is_meta for parameter in model.parameters()):
        raise ValueError(
            f"{purpose} needs all weights in memory, but some of this model's are offloaded; load it without offloading"
        )


def _offload_hooks(module: nn.Module) -> list[Any]:
    hook = getattr(module, "_hf_hook", None)
    return [each for each in getattr(hook, "hooks", [hook]) if getattr(each, "offload", False)]
