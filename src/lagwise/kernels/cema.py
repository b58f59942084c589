"""Megalodon's complex exponential moving average as a lag kernel."""

from __future__ import annotations

import math

import torch
from torch import nn

from lagwise.kernels.diagonal import DiagonalKernel, Side
from lagwise.tables import check_integer

_STD_OMEGA, _MAX_OMEGA = 0.25, 1.0  # deviation and largest magnitude of omega before training


class CEMAKernel(DiagonalKernel):
    """A sum of damped oscillations whose angles are multiples of one learned angle for each channel.

    Formula: ``k(l) = N**-0.5 Re sum_n p_n gamma_n q_n**l``, and omega is added at lag 0, with
    ``p_n = sigmoid(alpha_n)``, ``q_n = (1 - p_n sigmoid(delta_n)) exp(j n angle)``, n from 1 to N,
    ``angle = 2 pi / N sigmoid(theta)``, gamma complex. A two-sided kernel has a second set of parameters for lags below
    0, and lag 0 is the sum of both.

    Options:
        dimension: number N of oscillations per direction (Megalodon: 16). ValueError if less than 1.

    It streams exactly, as a state space.

    Source: Megalodon (Ma et al. 2024), §3.1, eq. 2, as released: there the input has the real weight p and omega is
    added, where the paper's equation also turns the input by the angle and has no omega.
    """

    any_rate = True
    undecayed = ("alpha", "delta", "theta")
    kept_in_float32 = ("alpha", "delta", "theta", "gamma", "omega")

    def __init__(self, channels: int, *, causal: bool = True, dimension: int = 16):
        super().__init__(channels, causal)
        shape = (1 if causal else 2, channels, check_integer("dimension", dimension))
        self.alpha, self.delta = (nn.Parameter(torch.empty(shape)) for _ in range(2))
        self.theta = nn.Parameter(torch.empty(*shape[:2], 1))
        self.gamma = nn.Parameter(torch.empty(*shape, 2))
        self.omega = nn.Parameter(torch.empty(channels))
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Initialise as Megalodon: alpha and delta normal(0, 0.2); sigmoid(theta) down to 1 / channels, evenly in the
        logarithm over the channels in random order; gamma real and normal(0, 1); omega normal(0, 0.25) within 1."""
        with torch.no_grad():
            for parameter in (self.alpha, self.delta):
                parameter.normal_(std=0.2)
            order = torch.rand_like(self.theta, dtype=torch.float64).argsort(1) + 1
            # One channel alone would have an infinite theta.
            self.theta.copy_(torch.logit(max(self.channels, 2) ** (-order.double() / self.channels)))
            self.gamma.normal_().select(-1, 1).zero_()
            # By the inverse of the distribution: rejection, as in `nn.init.trunc_normal_`, waits for values of a GPU.
            bound = math.erf(_MAX_OMEGA / (_STD_OMEGA * math.sqrt(2)))
            self.omega.uniform_(-bound, bound).erfinv_().mul_(_STD_OMEGA * math.sqrt(2))

    def sides(self) -> list[Side]:
        dtype, n = self.precision(self.alpha), self.alpha.shape[2]
        with torch.autocast(self.alpha.device.type, enabled=False):
            alpha, delta, theta = (p.double().sigmoid() for p in (self.alpha, self.delta, self.theta))
            angle = torch.arange(1, n + 1, device=theta.device) * (2 * math.pi / n * theta)
            weight = self.gamma.to(dtype) * (n**-0.5 * alpha[..., None]).to(dtype)
            return self.held(-torch.log1p(-alpha * delta), angle, weight, self.omega.to(dtype))
