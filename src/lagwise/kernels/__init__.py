"""Lag kernels: parametrisations of k(lag), one a file."""

from lagwise.kernels.base import KernelLinear, LagKernel
from lagwise.kernels.free import FreeKernel
from lagwise.kernels.rpe import RPEKernel

KERNELS: dict[str, type[LagKernel]] = {
    "rpe": RPEKernel,
    "free": FreeKernel,
}

__all__ = ["KERNELS", "FreeKernel", "KernelLinear", "LagKernel", "RPEKernel"]
