"""Kernels that are diagonal state spaces, whatever their parametrisation."""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from torch import Tensor

from lagwise.kernels.base import LagKernel, joined_sides
from lagwise.ops import Modes
from lagwise.ops.recurrence import modal_poles, modal_taps, modal_taps_of, zoh_inputs, zoh_tokens
from lagwise.ops.symbolic import symbolic

_MIN_RADIUS = 1e-30  # smallest pole whose logarithm is taken: its powers are negligible


def zoh_modes(rate: Tensor, angle: Tensor, weight: Tensor, token_time: float) -> tuple[Tensor, Tensor, Tensor]:
    """Modes ``p = exp(-exp(rate) + j angle)`` with weights ``(..., 2)``, for tokens of that length (`zoh_inputs`)."""
    if token_time == 1:
        return rate, angle, weight
    factor = zoh_inputs(torch.complex(-rate.double().exp(), angle.double()), token_time)
    scaled = torch.view_as_complex(weight.contiguous()) * factor.to(weight.dtype.to_complex())
    return rate + math.log(token_time), angle * token_time, torch.view_as_real(scaled)


class DiagonalKernel(LagKernel):
    """A sum of damped oscillations for each direction, ``k(l) = Re sum_i w_i p_i**l``, plus a direct part at lag 0.

    Abstract: subclasses implement `real_sides`, or `sides` where poles are made of complex numbers. Lag 0 of a
    two-sided kernel is the sum of both directions.
    """

    recurrent = True
    needs_float64 = True

    def sides(self) -> list[Modes]:
        """The modes for lags 0 and up, and, if the kernel is two-sided, those for 0 and down, with a direct part of
        0."""
        return [
            Modes(modal_poles(rate, angle), torch.view_as_complex(weight.contiguous()), direct)
            for rate, angle, weight, direct in self.real_sides()
        ]

    def real_sides(self) -> list[tuple[Tensor, Tensor, Tensor, Tensor]]:
        """`sides` as `modal_taps_of` takes them, for graphs: ONNX has no complex numbers."""
        sides = []
        for poles, weights, direct in self.sides():
            rate = (-poles.abs().clamp(min=_MIN_RADIUS).log()).log()
            sides.append((rate, poles.angle(), torch.view_as_real(weights), direct))
        return sides

    def modes_at(self, times: Sequence[Tensor]) -> list[tuple[Tensor, Tensor]]:
        """Zero-order-hold discretisation with a time for each token: the poles and input factors of each side, both
        ``(batch, length, channels, modes)``. A kernel with `any_rate` and another discretisation overrides this.

        Args:
            times: For each of `sides`, the times of its tokens ``(batch, length)``, as `zoh_tokens` takes them.
        """
        exponents = [torch.complex(-rate.double().exp(), angle.double()) for rate, angle, *_ in self.real_sides()]
        return [zoh_tokens(e.to(self._weight_type()), time) for e, time in zip(exponents, times, strict=True)]

    def _weight_type(self) -> torch.dtype:
        return self.precision(next(self.parameters())).to_complex()

    def taps(self, length: int) -> Tensor:
        if symbolic(length) or torch.compiler.is_compiling():  # whose graphs hold no complex numbers, at any length
            sides = [modal_taps_of(*side, length) for side in self.real_sides()]
        else:
            sides = [modal_taps(modes, length) for modes in self.sides()]
        if self.causal:
            return sides[0]
        return joined_sides(*sides)

    def recurrence(self) -> Modes:
        """The kernel as `modal_prefill` takes it. ValueError for a two-sided kernel."""
        if not self.causal:
            raise ValueError("a two-sided kernel has no recurrence; make it with causal=True")
        return self.sides()[0]
