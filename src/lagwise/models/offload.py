"""Weights that a client has moved away between forwards (accelerate's CPU and disk offload)."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any

from torch import nn


class OffloadProbe:
    """Tells whether the weights of a module are offloaded, which is when they are on the meta device.

    Looks at one parameter alone, of a part that it remembers: to search for it takes as long as a small layer's token.
    """

    def __init__(self, module: nn.Module):
        self.part = next((part for part in module.modules() if any(True for _ in part.parameters(recurse=False))), None)

    def __bool__(self) -> bool:
        if self.part is None:
            return False
        return any(parameter is not None and parameter.is_meta for parameter in self.part._parameters.values())


@contextlib.contextmanager
def offloaded_weights(module: nn.Module) -> Iterator[None]:
    """Within it, the offloaded weights of a module and of all its parts are loaded.

    accelerate's hooks load the weights of a module for its own `forward` and leave them on the meta device otherwise.
    A block also uses its parts by other methods (`step`, `prefill`, `taps`), which no hook sees.
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
    """ValueError if weights are offloaded, for what uses them apart from the model's own forward."""
    if any(parameter.is_meta for parameter in model.parameters()):
        raise ValueError(
            f"{purpose} needs all weights in memory, but some of this model's are offloaded; load it without offloading"
        )


def _offload_hooks(module: nn.Module) -> list[Any]:
    hook = getattr(module, "_hf_hook", None)
    return [each for each in getattr(hook, "hooks", [hook]) if getattr(each, "offload", False)]
