"""Kernels that are diagonal state spaces, whatever their parameters."""

from __future__ import annotations

from collections.abc import Callable
from typing import Self

import torch
from torch import Tensor

from lagwise.kernels.base import LagKernel
from lagwise.ops import Modes, modal_taps


class DiagonalKernel(LagKernel):
    """A sum of damped oscillations for each direction: ``k(l) = Re sum_i w_i p_i**l``, and a part of lag 0 alone.

    Abstract: subclasses give `sides`. Lag 0 of a two-sided kernel is the sum of both directions.
    """

    recurrent = True

    def sides(self) -> list[Modes]:
        """The modes for lags 0 and up, and if the kernel is two-sided those for 0 and down, whose direct is 0."""
        raise NotImplementedError

    def taps(self, length: int) -> Tensor:
        """See `LagKernel.taps`."""
        after, *before = self.sides()
        taps = modal_taps(after, length)
        if not before:
            return taps
        other = modal_taps(before[0], length)
        return torch.cat([other.flip(1)[:, :-1], other[:, :1] + taps[:, :1], taps[:, 1:]], 1)

    def recurrence(self) -> Modes:
        """The kernel as `modal_step` and `modal_prefill` take it. ValueError if two-sided."""
        if not self.causal:
            raise ValueError("a two-sided kernel has no recurrence; make it with causal=True")
        return self.sides()[0]

    def _apply(self, fn: Callable[[Tensor], Tensor], recurse: bool = True) -> Self:
        """Never below float32: a rounded pole is another kernel, after as many lags as it lasts."""

        def careful(t: Tensor) -> Tensor:
            changed = fn(t)
            return changed if torch.finfo(changed.dtype).bits >= 32 else t.to(changed.device)

        return super()._apply(careful, recurse)
