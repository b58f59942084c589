"""The kernel of FD-TNN."""

from __future__ import annotations

import math

import pytest
import torch

from lagwise.kernels import FrequencyKernel


@pytest.mark.covers("SKI-TNN §3.3, alg. 2 and def. 1")
@pytest.mark.parametrize("inputs", ["cos", "omega"])
@pytest.mark.parametrize("activation", ["relu", "silu", "gelu"])
def test_causal_frequency_taps_have_the_networks_real_part(inputs, activation) -> None:
    """SKI-TNN alg. 2 and def. 1, with the Hilbert transform computed as a convolution."""
    grid = 24
    kernel = FrequencyKernel(3, hidden=8, layers=2, activation=activation, inputs=inputs, grid=grid).double()
    angle = torch.arange(grid + 1, dtype=torch.float64) * math.pi / grid
    real = kernel.network(torch.cos(angle)[:, None] if inputs == "cos" else angle[:, None]).t()
    # The definition's 2 / (pi l) at odd l, summed over its periodic images: cot(pi l / 2n) / n.
    l = torch.arange(1, 2 * grid, dtype=torch.float64)  # noqa: E741
    h = torch.cat([torch.zeros(1, dtype=torch.float64), (l % 2) / torch.tan(math.pi * l / (2 * grid)) / grid])
    even = torch.cat([real, real[:, 1:-1].flip(1)], dim=1)
    index = (torch.arange(2 * grid)[:, None] - torch.arange(2 * grid)[None, :]) % (2 * grid)
    hilbert = even @ h[index].t()
    expected = torch.fft.ifft(torch.complex(even, -hilbert))
    assert expected.imag.abs().max() < 1e-14
    assert expected.real[:, grid + 1 :].abs().max() < 1e-14  # causal
    torch.testing.assert_close(kernel.taps(grid + 1), expected.real[:, : grid + 1], rtol=0, atol=1e-13)
    torch.testing.assert_close(torch.fft.rfft(kernel.taps(99), 2 * grid).real, real, rtol=0, atol=1e-13)


@pytest.mark.covers("SKI-TNN §3.3.2")
def test_two_sided_frequency_taps_have_the_networks_response() -> None:
    """SKI-TNN §3.3.2: real and imaginary halves, real at 0 and pi."""
    grid = 24
    kernel = FrequencyKernel(3, causal=False, hidden=8, layers=2, grid=grid).double()
    angle = torch.arange(grid + 1, dtype=torch.float64) * math.pi / grid
    real, imaginary = kernel.network(torch.cos(angle)[:, None]).t().chunk(2)
    imaginary = imaginary.clone()
    imaginary[:, [0, -1]] = 0
    lags = torch.arange(-grid, grid + 1, dtype=torch.float64)
    response = kernel.taps(999).to(torch.complex128) @ torch.exp(-1j * lags[:, None] * angle[None, :])
    torch.testing.assert_close(response, torch.complex(real, imaginary), rtol=0, atol=1e-12)


@pytest.mark.covers("SKI-TNN §1")
def test_refining_the_grid_of_a_smooth_response_keeps_its_taps() -> None:
    """SKI-TNN §1: a finer grid reaches further back, and aliasing from beyond the old grid disappears."""
    coarse = FrequencyKernel(4, activation="silu", grid=128, hidden=8, layers=1).double()
    fine = FrequencyKernel(4, activation="silu", grid=512, hidden=8, layers=1).double()
    fine.load_state_dict(coarse.state_dict())
    torch.testing.assert_close(fine.taps(100), coarse.taps(100), rtol=0, atol=1e-9)
    assert fine.taps(9999).shape[1] == 513


@pytest.mark.real_device
def test_compilation_with_known_wrong_results_is_refused() -> None:
    kernel = FrequencyKernel(3, activation="silu", grid=16)
    with pytest.raises(Exception, match="wrong gradients"):
        torch.compile(kernel.taps, backend="eager", fullgraph=True)(8)
    with torch.no_grad():
        compiled = torch.compile(kernel.taps, backend="eager", fullgraph=True)(8)
    torch.testing.assert_close(compiled, kernel.taps(8))


@pytest.mark.parametrize("causal", [True, False])
def test_sums_of_waves_equal_the_transform(causal: bool) -> None:
    """Of graphs without FFTs."""
    kernel = FrequencyKernel(3, causal=causal, hidden=8, layers=1, grid=20).double()
    torch.testing.assert_close(kernel._real_taps(), kernel.taps(21), rtol=0, atol=1e-12)
