"""Fourier transforms of rows of different lengths in one batch."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from lagwise.ops.toeplitz.spectral import fast_length


def ragged_dft(x: Tensor, lengths: Tensor) -> Tensor:
    """Compute the Fourier transform of every row over its own length.

    Formula: ``y[b, k] = sum_{j < n} exp(-2 pi i j k / n) x[b, j]`` for k < n = lengths[b], zero from n on. Because ``j
    k = (j**2 + k**2 - (k - j)**2) / 2``, it is a convolution by a chirp, with the same number of points for all rows.

    Shapes: x ``(batch, length, channels)`` complex, zero from a row's length on; lengths ``(batch,)``, at least 1;
    result like x. Angles are exact: squares are reduced modulo 2 n in integers.

    Source: Bluestein 1970.
    """
    length = x.shape[1]
    position = torch.arange(length, device=x.device)
    turn = (position.square() % (2 * lengths[:, None])).double() * math.pi / lengths[:, None]
    chirp = torch.complex(turn.cos(), -turn.sin()).to(x.dtype)[..., None]
    points = fast_length(2 * length - 1)
    between = chirp.new_zeros(len(x), points - 2 * length + 1, 1)
    kernel = torch.cat([chirp, between, chirp[:, 1:].flip(1)], 1).conj()
    spectrum = torch.fft.fft(x * chirp, points, dim=1) * torch.fft.fft(kernel, dim=1)
    y = torch.fft.ifft(spectrum, dim=1)[:, :length] * chirp
    return y * (position < lengths[:, None])[..., None]


def ragged_irdft(z: Tensor, lengths: Tensor) -> Tensor:
    """Compute the real rows that have these transforms, each given by its non-redundant half.

    Formula: ``y[b, j] = sum_{0 <= k <= n/2} c_k Re(exp(2 pi i j k / n) z[b, k]) / n`` for j < n = lengths[b], zero from
    n on, with c_k = 1 at 0 and n / 2, and 2 elsewhere: `torch.fft.irfft` of every row to its own length.

    Shapes: z ``(batch, length, channels)`` complex, places beyond a row's half without effect; lengths ``(batch,)``, at
    least 1; result like z, but real.
    """
    n = lengths[:, None]
    position = torch.arange(z.shape[1], device=z.device)
    times = (1 + ((position > 0) & (2 * position < n)).to(z.real.dtype)) * (2 * position <= n) / n
    return ragged_dft((z * times[..., None]).conj(), lengths).real
