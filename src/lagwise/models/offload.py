"""Weights that a client has moved away between forwards (accelerate's CPU and disk offload)."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

from torch import nn


def with_offloaded_weights(forward: Callable[..., Any]) -> Callable[..., Any]:
    """A module's `forward` that finds the weights of all its parts loaded.

    accelerate's hooks load the weights of a module for its own `forward` and leave them on the meta device otherwise.
    A block also uses its parts by other methods (`step`, `prefill`, `taps`), which no hook sees.
    """

    @functools.wraps(forward)
    def loaded(module: nn.Module, *args: Any, **kwargs: Any) -> Any:
        first = next(module.parameters(), None)
        if first is None or first.device.type != "meta":
            return forward(module, *args, **kwargs)
        hooked = [(part, hook) for part in module.modules() for hook in _offload_hooks(part)]
        for part, hook in hooked:
            hook.pre_forward(part)
        try:
            return forward(module, *args, **kwargs)
        finally:
            for part, hook in hooked:
                hook.post_forward(part, None)

    return loaded


def _offload_hooks(module: nn.Module) -> list[Any]:
    hook = getattr(module, "_hf_hook", None)
    return [each for each in getattr(hook, "hooks", [hook]) if getattr(each, "offload", False)]
