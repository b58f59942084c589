"""The filter of Hyena: a network of sines of the lag, under a decaying window."""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn

from lagwise.kernels.base import LagKernel, negligible
from lagwise.kernels.rpe import KernelLinear
from lagwise.tables import check_integer

_FAST, _SLOW, _TARGET = 0.3, 1.5, 0.01  # shares of the span after which the windows have decayed to the target


class _UndecayedLinear(KernelLinear):
    undecayed = ("weight",)


class HyenaKernel(LagKernel):
    """An implicit filter (Poli et al. 2023, "Hyena Hierarchy", §3.3 and app. D.3).

    Formula: ``k(l) = (exp(-|t| rate_c) + shift) (W f(z))_c`` for channel c, and a learned direct part is added at lag
    0, with

        t: ``l / (span - 1)``.
        z: t, and ``cos(2 pi b s)`` and ``-sin(2 pi b s)`` with s = l / span, for frequencies b at even distances from
            1e-4 to bands - 1.
        f: a linear layer, ``layers`` times (sine, linear), and a sine, each ``sin(w * h)`` with learned frequencies w.
        rate: distributed evenly over the channels, from a decay to 1 % within 1.5 spans to one within 0.3; not learned.

    Options:
        span: number of lags to which t and s are scaled. The published code takes the training length; longer lags
            follow the same formula.
        hidden: width of the network.
        layers: its depth.
        bands: number of frequencies in z; the published language models have 16.
        frequency: w at the start; the published language models have 14.
        shift: added to the windows. Above 0 they do not decay to zero, and the kernel ends at span, as in the published
            code, which has 0.05 (HyenaDNA) or 0. With 0 it ends where the slowest window falls below rounding.

    As in the published code, weight decay applies to no parameter. A two-sided kernel reads lags with their sign.
    ValueError for options out of range.
    """

    continuous = True
    undecayed = ("last",)
    shared = ("first", "hidden", "frequency")

    def __init__(
        self,
        channels: int,
        *,
        causal: bool = True,
        span: int = 1024,
        hidden: int = 64,
        layers: int = 2,
        bands: int = 1,
        frequency: float = 1.0,
        shift: float = 0.0,
    ):
        super().__init__(channels, causal)
        if check_integer("span", span) < 2:
            raise ValueError(f"span must be at least 2, got {span}")
        if not frequency > 0:
            raise ValueError(f"frequency must be above 0, got {frequency}")
        if not 0 <= shift < math.inf:
            raise ValueError(f"shift must be a number of at least 0, got {shift}")
        self.span, self.bands, self.start, self.shift = span, check_integer("bands", bands), frequency, shift
        self.continuous = not shift  # shifted windows end abruptly
        check_integer("layers", layers, min=0)
        self.first = _UndecayedLinear(1 + 2 * bands, check_integer("hidden", hidden))
        self.hidden = nn.ModuleList(_UndecayedLinear(hidden, hidden) for _ in range(layers))
        self.last = nn.Parameter(torch.empty(channels, hidden))
        self.frequency = nn.Parameter(torch.empty(hidden))
        self.direct = nn.Parameter(torch.empty(channels))
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Frequencies as given, the last layer uniform within the inverse root of its number of inputs, the direct part
        normal."""
        with torch.no_grad():
            bound = self.last.shape[1] ** -0.5
            self.last.uniform_(-bound, bound)
            self.frequency.fill_(self.start)
            self.direct.normal_()

    @property
    def support(self) -> int:
        """The lag at which the slowest window falls below rounding, or the span if windows are shifted."""
        if self.shift:
            return self.span
        slowest = math.log(1 / _TARGET) / _SLOW
        return math.ceil(-math.log(negligible(self.precision(self.last))) / slowest * (self.span - 1)) + 1

    def taps(self, length: int) -> Tensor:
        lags = self.lags(length, self.last.device)
        return self.with_local(self._values(lags), lags)

    def smooth_at(self, lags: Tensor) -> Tensor:
        """See `LagKernel.smooth_at`: without the direct part. ValueError for shifted windows, which end abruptly."""
        if self.shift:
            raise ValueError("a hyena kernel with shift ends abruptly at its span, which interpolation cannot follow")
        return self._values(lags) * (lags.abs() < self.support)

    def _values(self, lags: Tensor) -> Tensor:
        dtype = self.precision(self.last)
        lags = lags.to(dtype)
        with torch.autocast(self.last.device.type, enabled=False):
            t, turns = lags / (self.span - 1), 2 * math.pi / self.span * lags
            bands = torch.linspace(1e-4, max(self.bands - 1, 1e-4), self.bands, dtype=dtype, device=lags.device)
            phase = turns[:, None] * bands
            h = self.first(torch.cat([t[:, None], phase.cos(), -phase.sin()], dim=1))
            for layer in self.hidden:
                h = layer((self.frequency.to(dtype) * h).sin())
            values = self.last.to(dtype) @ (self.frequency.to(dtype) * h).sin().t()
            fast, slow = (math.log(1 / _TARGET) / share for share in (_FAST, _SLOW))
            rates = torch.linspace(slow, fast, self.all_channels, dtype=dtype, device=lags.device)
            rates = rates[self.first_channel : self.first_channel + self.channels]
            return values * ((-rates[:, None] * t.abs()).exp() + self.shift)

    def local_taps(self) -> tuple[Tensor, int]:
        """See `LagKernel.local_taps`: the direct part."""
        return self.direct.to(self.precision(self.direct))[:, None], 0
