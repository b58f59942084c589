"""The precision that products are computed in."""

from __future__ import annotations

from collections.abc import Callable, Iterable

import torch
from torch import Tensor


def keeping_float32(change: Callable[[Tensor], Tensor], kept: Iterable[Tensor | None]) -> Callable[[Tensor], Tensor]:
    """``change`` for `torch.nn.Module._apply`, except that the parameters ``kept`` and their gradients stay in at least
    float32 (``module.bfloat16()``): the error of a rounded pole grows with the text."""
    held = [t for parameter in kept if parameter is not None for t in (parameter, parameter.grad) if t is not None]

    def careful(t: Tensor) -> Tensor:
        changed = change(t)
        if not any(t is each for each in held) or torch.finfo(changed.dtype).bits >= 32:
            return changed
        return t.to(changed.device)

    return careful


def compute_dtype(x: Tensor, taps: Tensor) -> torch.dtype:
    """float64 if either input is, otherwise float32: half-precision FFTs are unsupported or too inaccurate."""
    return torch.float64 if {x.dtype, taps.dtype} & {torch.float64, torch.complex128} else torch.float32
