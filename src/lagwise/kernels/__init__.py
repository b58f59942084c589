"""Lag kernels: parametrisations of k(lag)."""

from lagwise.kernels.base import LagKernel
from lagwise.kernels.diagonal import DiagonalKernel, ModalKernel
from lagwise.kernels.ema import CEMAKernel, EMAKernel
from lagwise.kernels.free import FreeKernel
from lagwise.kernels.frequency import FrequencyKernel
from lagwise.kernels.hyena import HyenaKernel
from lagwise.kernels.rpe import KernelLinear, KernelNetwork, RPEKernel
from lagwise.kernels.s4d import DSSKernel, S4DKernel, S4Kernel
from lagwise.kernels.sgconv import SGConvKernel
from lagwise.kernels.spectral import SpectralKernel
from lagwise.kernels.warped import WarpedKernel
from lagwise.outside import Registry

_OWN: dict[str, type[LagKernel]] = {
    "rpe": RPEKernel,
    "free": FreeKernel,
    "frequency": FrequencyKernel,
    "warped": WarpedKernel,
    "ema": EMAKernel,
    "cema": CEMAKernel,
    "modal": ModalKernel,
    "s4d": S4DKernel,
    "dss": DSSKernel,
    "s4": S4Kernel,
    "sgconv": SGConvKernel,
    "hyena": HyenaKernel,
    "spectral": SpectralKernel,
}
KERNELS = Registry("kernel", LagKernel, "lagwise.kernels", _OWN)


def register_kernel(name: str, kernel: type[LagKernel]) -> None:
    """Let configurations name a kernel of another package: ``{"name": NAME, ...options}``.

    Installed packages need not call this: they declare an entry point ``NAME = "package.module:Class"`` in the group
    ``lagwise.kernels``.

    Args:
        name: The name in configurations.
        kernel: The class.

    Raises:
        ValueError: For a name that lagwise itself has.
        TypeError: For anything that is not a subclass of `LagKernel`.
    """
    KERNELS.register(name, kernel)


__all__ = [
    "KERNELS",
    "CEMAKernel",
    "DSSKernel",
    "DiagonalKernel",
    "EMAKernel",
    "FreeKernel",
    "FrequencyKernel",
    "HyenaKernel",
    "KernelLinear",
    "KernelNetwork",
    "LagKernel",
    "ModalKernel",
    "RPEKernel",
    "S4DKernel",
    "S4Kernel",
    "SGConvKernel",
    "SpectralKernel",
    "WarpedKernel",
    "register_kernel",
]
