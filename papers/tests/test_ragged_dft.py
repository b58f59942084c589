"""Fourier transforms of rows of different lengths, against PyTorch's transforms of single rows."""

from __future__ import annotations

import torch

from lagwise_papers.family.ragged_dft import ragged_dft, ragged_irdft

LENGTHS = (1, 2, 7, 12, 30)


def test_rows_are_transformed_over_their_own_lengths() -> None:
    lengths = torch.tensor(LENGTHS)
    x = torch.randn(5, 30, 3, dtype=torch.complex128) * (torch.arange(30) < lengths[:, None])[..., None]
    for row, ours, n in zip(x, ragged_dft(x, lengths), LENGTHS, strict=True):
        torch.testing.assert_close(ours[:n], torch.fft.fft(row[:n], dim=0), rtol=0, atol=1e-12)
        assert not ours[n:].any()


def test_real_rows_are_restored_from_half_spectra() -> None:
    """Values beyond the half have no effect, nor have imaginary parts at its ends."""
    z = torch.randn(5, 30, 3, dtype=torch.complex128)
    for row, ours, n in zip(z, ragged_irdft(z, torch.tensor(LENGTHS)), LENGTHS, strict=True):
        wanted = torch.fft.irfft(row[: n // 2 + 1], n, dim=0)
        torch.testing.assert_close(ours[:n], wanted, rtol=0, atol=1e-12)
        assert not ours[n:].any()
