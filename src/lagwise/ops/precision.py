"""The precision that products are computed in."""

from __future__ import annotations

from collections.abc import Callable
from typing import ClassVar, Self

import torch
from torch import Tensor, nn


class KeepsFloat32(nn.Module):
    """A module some of whose parameters stay in at least float32 when it is changed to less, as by
    ``module.bfloat16()``, or loaded in less: the error of a rounded pole grows with the text."""

    #: names of these parameters; models collect them from all of their modules
    kept_in_float32: ClassVar[tuple[str, ...]] = ()

    def _apply(self, fn: Callable[[Tensor], Tensor], recurse: bool = True) -> Self:
        parameters = [p for name in self.kept_in_float32 if (p := getattr(self, name)) is not None]
        parameters += [p.grad for p in parameters if p.grad is not None]

        def careful(t: Tensor) -> Tensor:
            changed = fn(t)
            if not any(t is each for each in parameters) or torch.finfo(changed.dtype).bits >= 32:
                return changed
            return t.to(changed.device)

        return super()._apply(careful, recurse)


def compute_dtype(x: Tensor, taps: Tensor) -> torch.dtype:
    """float64 if either input is, otherwise float32: half-precision FFTs are unsupported or too inaccurate."""
    return torch.float64 if {x.dtype, taps.dtype} & {torch.float64, torch.complex128} else torch.float32
