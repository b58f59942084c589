"""The kernels of DSS: diagonal state spaces whose weights are divided by their poles."""

from __future__ import annotations

from torch import Tensor

from lagwise.kernels.s4d import S4DKernel
from lagwise.ops.recurrence import mean_exponential
from lagwise.tables import check_integer, known

NORMALIZATIONS = ("exp", "softmax")


class DSSKernel(S4DKernel):
    """A diagonal state space defined by its eigenvalues (Gupta, Gu and Berant 2022, proposition 1).

    Formula: ``k(l) = Re sum_i (w_i / A_i) s_i(l)``, and D is added at lag 0, with
        exp: ``s_i(l) = (exp(A_i dt) - 1) exp(A_i dt l)``;
        softmax: ``s_i(l) = exp(A_i dt l) / sum_{m < span} exp(A_i dt m)``.

    Options:
        modes: pairs of conjugate poles.
        start: initial eigenvalues, as in `S4DKernel`.
        normalization: ``exp`` or ``softmax``.
        span: number of lags in the softmax's sum. The published span is the length of each input, so that the kernel
            depends on it; here it is fixed, and the kernel is the same for every length.

    Real parts are negative in both forms (in the paper, only for ``exp``), so that lags beyond the span decay.
    ValueError for options out of range.
    """

    def __init__(
        self,
        channels: int,
        *,
        causal: bool = True,
        modes: int = 32,
        start: str = "legs",
        normalization: str = "exp",
        span: int = 1024,
    ):
        super().__init__(channels, causal=causal, modes=modes, start=start)
        self.any_rate = normalization == "exp"  # a softmax counts its lags in tokens
        self.normalization, self.span = (
            known(normalization, NORMALIZATIONS, "normalization"),
            check_integer("span", span),
        )

    def _sampled(self, a: Tensor, step: Tensor) -> tuple[Tensor, Tensor]:
        exponent = a * step
        if self.normalization == "exp":
            return exponent.exp(), step * mean_exponential(exponent)
        total = self.span * mean_exponential(self.span * exponent) / mean_exponential(exponent)
        return exponent.exp(), 1 / (total * a)
