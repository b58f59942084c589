"""The exponential moving averages of MEGA and of Megalodon as lag kernels."""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn

from lagwise.kernels.base import LagKernel, joined_sides
from lagwise.kernels.diagonal import DiagonalKernel, Side
from lagwise.ops.fused.average import MOST_COMPLEX
from lagwise.ops.recurrence import ema_parameters, ema_taps, zoh_inputs
from lagwise.tables import check_integer

_STD_OMEGA, _MAX_OMEGA = 0.25, 1.0  # deviation and largest magnitude of omega before training


class EMAKernel(LagKernel):
    """A sum of damped exponentials.

    Formula: ``k(l) = N**-0.5 sum_n p_n beta_n gamma_n q_n**l``, ``p = sigmoid(delta)``, ``q = 1 - p sigmoid(alpha)``
    (TCNCA eq. 1 and app. I; MEGA, Ma et al. 2023, §3.1 and app. A). A two-sided kernel has a second set of parameters
    for lags below 0, and lag 0 is the sum of both, as in MEGA. The parameter ``beta`` is stored as the difference from
    its initial value, alternately 1 and -1, so that weight decay leads back there.

    Options:
        dimension: number N of exponentials per direction (MEGA: 16).
        truncation: number of lags to keep on each side; None for all.

    ValueError if either option is less than 1.

    The mixer ``ema`` computes the same by a scan, and streams in constant memory.

    >>> kernel = EMAKernel(4, dimension=2)
    >>> torch.allclose(kernel.taps(10), kernel.taps(20)[:, :10])  # taps do not depend on the length
    True
    """

    undecayed = ("delta", "alpha")

    def __init__(self, channels: int, *, causal: bool = True, dimension: int = 16, truncation: int | None = None):
        super().__init__(channels, causal)
        check_integer("dimension", dimension)
        if truncation is not None:
            check_integer("truncation", truncation)
        self.truncation = truncation
        self.any_rate = truncation is None  # a truncation counts tokens
        shape = (1 if causal else 2, channels, dimension)
        self.delta, self.alpha, self.beta, self.gamma = (nn.Parameter(torch.empty(shape)) for _ in range(4))
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Initialise as MEGA: delta and alpha normal(0, 0.2), beta within normal(0, 0.02) of 1 and -1, gamma normal(0,
        1)."""
        for parameter, std in ((self.delta, 0.2), (self.alpha, 0.2), (self.beta, 0.02), (self.gamma, 1.0)):
            nn.init.normal_(parameter, std=std)

    def exponentials(self) -> tuple[Tensor, Tensor]:
        """Weights and logarithms of decays, each ``(directions, channels, dimension)``, lags of 0 and up first."""
        dtype = self.precision(self.delta)
        delta, alpha, beta, gamma = (p.to(dtype) for p in (self.delta, self.alpha, self.beta, self.gamma))
        signs = 1 - 2 * (torch.arange(beta.shape[2], dtype=dtype, device=beta.device) % 2)
        weight, log_decay = ema_parameters(delta, alpha, beta + signs, gamma)
        if self.token_time == 1:
            return weight, log_decay
        return weight * zoh_inputs(log_decay, self.token_time), log_decay * self.token_time

    @property
    def support(self) -> int | None:
        return self.truncation

    def taps(self, length: int) -> Tensor:
        weight, log_decay = self.exponentials()
        with torch.autocast(weight.device.type, enabled=False):
            sides = [ema_taps(w, q, length, truncation=self.truncation) for w, q in zip(weight, log_decay, strict=True)]
        return joined_sides(*sides)


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
        self.few_modes = causal and dimension <= MOST_COMPLEX
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
            together = torch.cat([self.alpha, self.delta, self.theta], 2).double().sigmoid()
            alpha, delta, theta = together.split([n, n, 1], 2)
            angle = torch.arange(1, n + 1, device=theta.device) * (2 * math.pi / n * theta)
            weight = self.gamma.to(dtype) * (n**-0.5 * alpha[..., None]).to(dtype)
            return self._zoh(-torch.log1p(-alpha * delta), angle, weight, self.omega.to(dtype))
