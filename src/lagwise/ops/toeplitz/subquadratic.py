"""Causal FFT convolutions in one kernel, by NVIDIA's package subquadratic-ops, on GPUs where that is installed."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

from lagwise.ops.bilinear import traced
from lagwise.ops.precision import compute_dtype

_MOST_TAPS, _FEWEST_TAPS = 8192, 128  # of the package's kernels: powers of two between these
_devices = ["cuda"]  # tests add another


def subquadratic_serves(x: Tensor, taps: Tensor) -> bool:
    """Whether `subquadratic_product` computes this product: on a GPU, outside of graphs, not in float64."""
    on_gpu = x.device.type in _devices and taps.shape[1] <= _MOST_TAPS
    return on_gpu and not traced() and compute_dtype(x, taps) == torch.float32


def subquadratic_product(x: Tensor, taps: Tensor, origin: int) -> Tensor:
    """`toeplitz_product` for checked taps ``(channels, n_taps)`` with lag 0 at index ``origin``. Taps before it are
    those of a causal product whose results come ``origin`` tokens late.

    Raises ValueError where the package is not installed.
    """
    try:
        from subquadratic_ops_torch.fft_causal_conv1d import (  # pyrefly: ignore[missing-import]
            fft_causal_conv1d,
        )
    except ImportError as error:
        raise ValueError(
            "engine 'subquadratic' needs the package subquadratic-ops-torch on a GPU (pip install "
            "subquadratic-ops-torch-cu13, or -cu12, by PyTorch's CUDA); engine 'auto' computes the same without it"
        ) from error
    n_taps = max(_FEWEST_TAPS, 1 << (taps.shape[1] - 1).bit_length())
    signal = F.pad(x.float().transpose(1, 2), (0, origin)).contiguous()
    y = fft_causal_conv1d(signal, F.pad(taps.float(), (0, n_taps - taps.shape[1])))
    return y[..., origin:].transpose(1, 2).to(x.dtype)
