"""The inverse Fourier transform of frequencies that are given as real numbers."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from lagwise.ops.operation import Engine, Values, operation


@operation
def inverse_of_parts(parts: Tensor, points: int) -> Tensor:
    """Inverse transforms of real parts of spectra, and of imaginary parts of others.

    Formula: ``irfft(parts[0], points)``, and of a second part ``irfft(1j * parts[1], points)``.

    A compiled graph calls it as it is and has no complex numbers: PyTorch's inductor makes no kernels of them, and
    fails where it tries to (torch 2.11).

    Args:
        parts: ``(1 or 2, rows, points / 2 + 1)``, float32 or float64. Imaginary parts of the first and the last
            frequency are ignored.
        points: An even number.

    Returns:
        ``(1 or 2, rows, points)``.
    """
    if len(parts) == 1:
        spectra = parts.to(parts.dtype.to_complex())
    else:
        none = torch.zeros_like(parts[0])
        spectra = torch.stack([torch.complex(parts[0], none), torch.complex(none, parts[1])])
    return torch.fft.irfft(spectra, points).contiguous()  # cuFFT may keep the order of strides


def inverse_adjoint(spectra: Tensor, points: int) -> Tensor:
    """The gradient of what irfft transforms, from the spectra of the gradient of its results: every frequency but the
    first and the last counts twice, once for its negative."""
    scaled = spectra * (2 / points)
    scaled[..., :: points // 2] /= 2
    return scaled


class _Inverse(Engine):
    @staticmethod
    def forward(parts: Tensor, points: int) -> tuple[Tensor, Values]:
        return inverse_of_parts.plain(parts, points), ()

    @staticmethod
    def backward(args: Values, saved: Values, grads: Values, needs_grad: Sequence[bool]) -> Values:
        spectra = inverse_adjoint(torch.fft.rfft(grads[0]), args[1])
        return torch.cat([spectra[:1].real, spectra[1:].imag]), None


inverse_of_parts.in_graphs(
    "inverse_of_parts", lambda parts, points: parts.new_empty((*parts.shape[:2], points)), engine=_Inverse
)
