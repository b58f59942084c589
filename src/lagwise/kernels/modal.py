"""A sum of damped oscillations as a lag kernel: a diagonal state space."""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn

from lagwise.kernels.diagonal import DiagonalKernel, zoh_modes
from lagwise.ops import Modes
from lagwise.ops.recurrence import zoh_inputs
from lagwise.tables import check_integer

_SLOWEST = 1000.0  # tokens that the slowest initial modes last


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

    def real_sides(self) -> list[tuple[Tensor, Tensor, Tensor, Tensor]]:
        dtype = self.precision(self.rate)
        rate, angle, weight, direct = (p.to(dtype) for p in (self.rate, self.angle, self.amplitude, self.direct))
        rate, angle, weight = zoh_modes(rate, angle, weight, self.token_time)
        return [(rate[i], angle[i], weight[i], direct * (i == 0)) for i in range(len(rate))]

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
        if self.token_time != 1:  # the inverse of `zoh_modes`
            rate, angle = rate - math.log(self.token_time), angle / self.token_time
            amplitude = amplitude / zoh_inputs(torch.complex(-rate.exp(), angle), self.token_time)
        self.rate[0, :, :n] = torch.where(real, rate, self.rate[0, :, :n])
        self.angle[0, :, :n] = torch.where(real, angle, self.angle[0, :, :n])
        self.amplitude.zero_()
        self.amplitude[0, :, :n] = torch.view_as_real(amplitude)
        self.direct.copy_(direct + (weights.real * ~real).sum(1))
