"""Lag kernels: parametrisations of k(lag), one a file."""

from lagwise.kernels.base import LagKernel
from lagwise.kernels.ema import EMAKernel
from lagwise.kernels.free import FreeKernel
from lagwise.kernels.frequency import FrequencyKernel
from lagwise.kernels.modal import ModalKernel
from lagwise.kernels.network import KernelLinear, KernelNetwork
from lagwise.kernels.rpe import RPEKernel
from lagwise.kernels.warped import WarpedKernel

KERNELS: dict[str, type[LagKernel]] = {
    "rpe": RPEKernel,
    "free": FreeKernel,
    "frequency": FrequencyKernel,
    "warped": WarpedKernel,
    "ema": EMAKernel,
    "modal": ModalKernel,
}

__all__ = [
    "KERNELS",
    "EMAKernel",
    "FreeKernel",
    "FrequencyKernel",
    "KernelLinear",
    "KernelNetwork",
    "LagKernel",
    "ModalKernel",
    "RPEKernel",
    "WarpedKernel",
]
