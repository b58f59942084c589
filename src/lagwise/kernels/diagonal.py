"""Kernels that are diagonal state spaces, whatever their parametrisation, and the one with free modes."""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from torch import Tensor, nn

from lagwise.kernels.base import LagKernel, joined_sides
from lagwise.ops import Modes
from lagwise.ops.operation import traced
from lagwise.ops.recurrence import modal_taps, modal_taps_of, zoh_inputs, zoh_tokens
from lagwise.tables import check_integer

_SLOWEST = 1000.0  # tokens that the slowest initial modes last

Side = tuple[Tensor, Tensor, Tensor, Tensor]


class DiagonalKernel(LagKernel):
    """A sum of damped oscillations for each direction, ``k(l) = Re sum_i w_i p_i**l``, plus a direct part at lag 0.

    Abstract: subclasses implement `sides`. Lag 0 of a two-sided kernel is the sum of both directions.
    """

    recurrent = True
    needs_float64 = True
    #: whether poles are in float64: rounded to float32, those near 1 would be off by much of their decay
    exact_poles: bool = True
    #: whether a GPU runs the recurrence over whole sequences (`lagwise.ops.fused.average.moving_average`)
    few_modes: bool = False

    def sides(self) -> list[Side]:
        """The modes for lags 0 and up, and, if the kernel is two-sided, those for 0 and down, with a direct part of 0,
        as `modal_taps_of` takes them: decays and angles of the poles ``exp(-decay + j angle)``, ``(channels, modes)``
        in float64; weights, ``(channels, modes, 2)``; and the direct part, ``(channels,)``. All are real: ONNX has no
        complex numbers."""
        raise NotImplementedError

    def modes(self) -> list[Modes]:
        """`sides` in complex numbers."""
        modes = []
        for decay, angle, weight, direct in self.sides():
            # Not `torch.polar`: its gradient divides by a radius whose square may underflow.
            radius = (-decay).exp()
            poles = torch.complex(radius * angle.cos(), radius * angle.sin())
            weights = torch.view_as_complex(weight.contiguous())
            modes.append(Modes(poles if self.exact_poles else poles.to(weights.dtype), weights, direct))
        return modes

    def modes_at(self, times: Sequence[Tensor]) -> list[tuple[Tensor, Tensor]]:
        """Zero-order-hold discretisation with a time for each token: the poles and input factors of each side, both
        ``(batch, length, channels, modes)``. A kernel with `any_rate` and another discretisation overrides this.

        Args:
            times: For each of `sides`, the times of its tokens ``(batch, length)``, as `zoh_tokens` takes them.
        """
        exponents = [torch.complex(-decay, angle).to(self._weight_type()) for decay, angle, *_ in self.sides()]
        return [zoh_tokens(exponent, time) for exponent, time in zip(exponents, times, strict=True)]

    def _weight_type(self) -> torch.dtype:
        return self.precision(next(self.parameters())).to_complex()

    def _zoh(self, decay: Tensor, angle: Tensor, weight: Tensor, direct: Tensor) -> list[Side]:
        """`sides` from parameters ``(sides, channels, modes)`` of the token of time 1, with inputs that are held for
        the present ``token_time`` (`zoh_inputs`)."""
        if self.token_time != 1:
            factor = zoh_inputs(torch.complex(-decay, angle), self.token_time)
            scaled = torch.view_as_complex(weight.contiguous()) * factor.to(weight.dtype.to_complex())
            decay, angle, weight = decay * self.token_time, angle * self.token_time, torch.view_as_real(scaled)
        return [(decay[i], angle[i], weight[i], direct * 0 if i else direct) for i in range(len(decay))]

    def taps(self, length: int) -> Tensor:
        if traced():  # graphs hold no complex numbers, at any length
            return joined_sides(*(modal_taps_of(*side, length) for side in self.sides()))
        return joined_sides(*(modal_taps(modes, length) for modes in self.modes()))

    def recurrence(self) -> Modes:
        """The kernel as a state space. ValueError for a two-sided kernel."""
        if not self.causal:
            raise ValueError("a two-sided kernel has no recurrence; make it with causal=True")
        return self.modes()[0]


class ModalKernel(DiagonalKernel):
    """A sum of damped oscillations.

    Formula: ``k(l) = Re sum_i w_i p_i**l``, ``p = exp(-exp(rate) + j angle)``, where w has two amplitudes, real and
    imaginary; direct is added at lag 0. A two-sided kernel has a second set of oscillations for lags below 0, and lag 0
    is the sum of both and of direct. The poles are those of S4D (Gu et al. 2022), in discrete time: always |p| < 1.

    Options:
        modes: number of oscillations per direction. ValueError if less than 1.

    `recurrence` gives the same kernel for streaming in constant memory. `load_modes` takes the result of
    `lagwise.ops.reduce_taps` for another kernel, which can then be trained further.

    >>> kernel = ModalKernel(4, modes=3)
    >>> kernel.recurrent, kernel.taps(100).shape  # it streams as a state space
    (True, torch.Size([4, 100]))
    """

    any_rate = True
    exact_poles = False
    undecayed = ("rate", "angle")
    kept_in_float32 = ("rate", "angle", "amplitude", "direct")

    def __init__(self, channels: int, *, causal: bool = True, modes: int = 16):
        super().__init__(channels, causal)
        shape = (1 if causal else 2, channels, check_integer("modes", modes))
        self.rate, self.angle = nn.Parameter(torch.empty(shape)), nn.Parameter(torch.empty(shape))
        self.amplitude = nn.Parameter(torch.empty(*shape, 2))
        self.direct = nn.Parameter(torch.empty(channels))
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Modes that last 1 to 1000 tokens, evenly in the logarithm, with angles evenly over 0 to pi in another order.
        Weights are normal, each mode with an equal share of squares that sum to about one over all lags."""
        modes = self.rate.shape[2]
        with torch.no_grad():
            for parameter, low, high in ((self.rate, -math.log(_SLOWEST), 0.0), (self.angle, 0.0, math.pi)):
                drawn = torch.rand_like(parameter)
                positions = torch.rand_like(parameter).argsort(2)
                parameter.copy_(low + (high - low) * (positions + drawn) / modes)
            energy = -torch.expm1(-2 * self.rate.exp()) / (modes * len(self.rate))
            self.amplitude.normal_().mul_(energy.sqrt()[..., None])
            self.direct.zero_()

    def sides(self) -> list[Side]:
        dtype = self.precision(self.rate)
        return self._zoh(self.rate.double().exp(), self.angle.double(), self.amplitude.to(dtype), self.direct.to(dtype))

    @torch.no_grad()
    def load_modes(self, modes: Modes) -> None:
        """Set the parameters so that these are the modes at the present ``token_time``. If they are fewer than this
        kernel's, the others keep their poles and get weight 0.

        A pole at 0 only affects lag 0 and is added to direct.

        Raises:
            ValueError: If this kernel is two-sided, or for other channels, more modes, or poles that do not decay.
        """
        self.recurrence()
        poles, weights, direct = modes.to(torch.float64, self.rate.device)
        channels, n = poles.shape
        if channels != self.channels or n > self.rate.shape[2]:
            raise ValueError(
                f"modes must be those of {self.channels} channels, at most {self.rate.shape[2]} of each, "
                f"got {channels} and {n}; set option modes to {n}"
            )
        if not bool((poles.abs() < 1).all()):
            raise ValueError(f"modes must have poles inside the unit circle, got |p| = {float(poles.abs().max())}")
        real = poles != 0
        rate, angle = (-poles.abs().where(real, 0.5).log()).log(), poles.angle()
        amplitude = weights * real
        if self.token_time != 1:  # the inverse of `_zoh`
            rate, angle = rate - math.log(self.token_time), angle / self.token_time
            amplitude = amplitude / zoh_inputs(torch.complex(-rate.exp(), angle), self.token_time)
        self.rate[0, :, :n] = torch.where(real, rate, self.rate[0, :, :n])
        self.angle[0, :, :n] = torch.where(real, angle, self.angle[0, :, :n])
        self.amplitude.zero_()
        self.amplitude[0, :, :n] = torch.view_as_real(amplitude)
        self.direct.copy_(direct + (weights.real * ~real).sum(1))
