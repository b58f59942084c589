"""The base class of lag kernels, which produce taps."""

from __future__ import annotations

from typing import ClassVar

import torch
from torch import Tensor

from lagwise.ops import Modes
from lagwise.ops.precision import KeepsFloat32

# Taps below this, relative to the largest, cannot change a sum in this precision.
_NEGLIGIBLE = {torch.float64: 1e-17}
_NEGLIGIBLE_FLOAT32 = 1e-8


class LagKernel(KeepsFloat32):
    """A parametrisation of k(lag) for each channel. Abstract: subclasses implement `taps` and, if they end or
    decay, `support`.

    `taps` must not depend on the requested length (taps(n) starts with taps(m) for m < n); otherwise a streamed prompt
    would see another kernel than the whole prompt.

    >>> class Exponential(LagKernel):
    ...     def __init__(self, channels, *, causal=True):
    ...         super().__init__(channels, causal)
    ...         self.rate = torch.nn.Parameter(torch.linspace(0.1, 1, channels))
    ...
    ...     def taps(self, length):
    ...         return torch.exp(-self.rate[:, None] * torch.arange(length))
    >>> Exponential(4).taps(100).shape
    torch.Size([4, 100])
    """

    #: parameters with two or more axes that weight decay must skip, such as decay rates; any module may name some
    undecayed: ClassVar[tuple[str, ...]] = ()
    #: parameters and networks that all channels share; any module may name some (see `lagwise.kernels.share`)
    shared: ClassVar[tuple[str, ...]] = ()
    #: whether `smooth_at` works: the kernel has values between tokens
    continuous: bool = False
    #: whether `recurrence` gives the kernel as a state space, to stream by
    recurrent: ClassVar[bool] = False
    #: whether it computes in float64 whatever its parameters' dtype, which Apple's GPUs do not have
    needs_float64: bool = False
    #: whether it is in continuous time, so that ``token_time`` may be other than 1
    any_rate: bool = False
    #: time from token to token, relative to that for which the parameters are
    token_time: float = 1.0
    #: longest signal that `taps` supports; None for any
    max_length: int | None = None

    def __init__(self, channels: int, causal: bool):
        super().__init__()
        if channels < 1:
            raise ValueError(f"channels must be at least 1, got {channels}")
        self.channels = channels
        self.first_channel, self.all_channels = 0, channels  # `some_channels` takes a part of them
        self.causal = causal

    def taps(self, length: int) -> Tensor:
        """Taps for a signal of this length, cut at the kernel's support.

        Returns:
            ``(channels, n)`` for lags 0..n-1 when causal, ``(channels, 2 n - 1)`` for lags -(n-1)..n-1 otherwise, with
            n = min(length, support). In float32 or better, whatever the dtype of the parameters.

        Raises:
            ValueError: for a signal longer than ``max_length``.
        """
        raise NotImplementedError

    def check_length(self, length: int) -> None:
        """ValueError for a signal longer than `taps` supports."""
        if self.max_length is not None and length > self.max_length:
            raise ValueError(
                f"this kernel has coefficients for {self.max_length} tokens, got a sequence of {length}; "
                "use kernel 'rpe' for lengths beyond training"
            )

    def at(self, lags: Tensor) -> Tensor:
        """Values ``(channels, n)`` at integer lags ``(n,)``, in any order; zero where `taps` ends.

        Kernels that can compute single values cheaply override this. Here all taps up to the largest lag are computed.
        """
        furthest = int(lags.abs().max()) + 1
        taps = self.taps(min(furthest, self.max_length or furthest))
        index = lags + (0 if self.causal else taps.shape[1] // 2)
        inside = (index >= 0) & (index < taps.shape[1])
        return taps.index_select(1, index.clamp(0, taps.shape[1] - 1)) * inside

    def smooth_at(self, lags: Tensor) -> Tensor:
        """Values ``(channels, n)`` of the kernel's smooth part, which may be interpolated, at any real lags ``(n,)``.

        ValueError for a kernel that has values at integer lags only.
        """
        raise ValueError(f"{type(self).__name__} has no values between tokens; use a kernel such as 'warped' or 'rpe'")

    def local_taps(self) -> tuple[Tensor, int] | None:
        """Taps ``(channels, m)`` that `smooth_at` omits, and the index of lag 0 among them; None if it omits
        nothing."""
        return None

    def recurrence(self) -> Modes:
        """A causal kernel as `modal_prefill` takes it. ValueError for a kernel that has no such form."""
        raise ValueError(
            f"{type(self).__name__} has no state-space form; `lagwise.ops.reduce_taps` finds one from its taps"
        )

    def spectrum(self, points: int) -> Tensor | None:
        """The spectrum of the kernel wrapped around a circle of this many points, as `spectral_product` takes it, or
        None if the kernel is not parameterised in the frequency domain. Signals of at most ``points / 2`` tokens can
        then skip the inverse FFT."""
        return None

    @property
    def support(self) -> int | None:
        """Number of lags on one side; None if it is infinite. Taps from this lag on are zero, or below rounding in the
        kernel's precision."""
        return self.max_length

    def lags(self, length: int, device: torch.device) -> Tensor:
        """The integer lags of `taps`, in its order."""
        support = self.support
        n = length if support is None else min(length, support)
        return torch.arange(0 if self.causal else 1 - n, n, device=device)

    def reset_parameters(self) -> None:
        """Draw the parameters that the kernel holds directly; layers of a `KernelNetwork` draw theirs."""

    @staticmethod
    def precision(parameter: Tensor) -> torch.dtype:
        """Dtype in which taps are computed: bfloat16 cannot even represent all lags above 256."""
        return torch.promote_types(parameter.dtype, torch.float32)


def joined_sides(after: Tensor, before: Tensor) -> Tensor:
    """Join the taps of both directions to two-sided taps ``(channels, 2 n - 1)``; lag 0 is the sum of both.

    Shapes: after ``(channels, n)``, for lags 0, 1, ...; before ``(channels, n)``, for lags 0, -1, ....
    """
    return torch.cat([before[:, 1:].flip(1), before[:, :1] + after[:, :1], after[:, 1:]], 1)


def negligible(dtype: torch.dtype) -> float:
    """Relative size below which a tap does not change a sum of that dtype (float32 rounding is 6e-8)."""
    return _NEGLIGIBLE.get(dtype, _NEGLIGIBLE_FLOAT32)
