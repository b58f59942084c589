"""Kernels that are sums of exponentials: MEGA's and sums of damped oscillations."""

from __future__ import annotations

import math

import pytest
import torch
from torch import nn

from lagwise.kernels import EMAKernel, ModalKernel
from lagwise.ops import Modes
from lagwise.ops.recurrence import modal_taps


def test_ema_is_initialized_as_in_mega() -> None:
    """Decays near 3/4, and weights with alternating signs times those of gamma."""
    torch.manual_seed(1)
    kernel = EMAKernel(200, dimension=4)
    weight, log_decay = kernel.exponentials()
    assert abs(log_decay.exp().mean() - 0.75) < 0.01
    assert torch.equal((weight * kernel.gamma).sign()[0], torch.tensor([1.0, -1.0, 1.0, -1.0]).expand(200, 4))


@pytest.mark.parametrize("causal", [True, False])
def test_modal_gradients_are_finite_for_any_rate(causal: bool) -> None:
    """Also for poles below float32's normal range, and for few poles, which vectorized loops handle by other code."""
    kernel = ModalKernel(1, causal=causal, modes=3)
    for rate in (-12.0, 0.0, 4.4, 4.5, 4.55, 4.6, 4.7, 6.0):
        nn.init.constant_(kernel.rate, rate)
        kernel.zero_grad()
        kernel.taps(20).sum().backward()
        for name, parameter in kernel.named_parameters():
            assert parameter.grad is not None
            assert parameter.grad.isfinite().all(), (name, rate)


def test_modal_taps_have_the_scale_of_other_kernels() -> None:
    for causal in (True, False):
        kernel = ModalKernel(200, causal=causal)
        assert abs(kernel.taps(5000).square().sum(1).mean() - 1) < 0.25
        assert kernel.rate.min() > -math.log(1000.0) - 1e-4
        assert kernel.rate.max() <= 0
        assert kernel.angle.min() >= 0
        assert kernel.angle.max() <= math.pi


@pytest.mark.parametrize("time", [1.0, 0.5, 3.0])
def test_a_modal_kernel_can_be_set_to_given_modes(time: float) -> None:
    poles = torch.tensor([[0.9 + 0.1j, -0.5, 0], [0.99j, 0, 0]], dtype=torch.complex128)
    weights = torch.tensor([[1 - 2j, 3, 0], [0.5j, 7, 0]], dtype=torch.complex128)  # one weight at a pole of 0
    modes = Modes(poles, weights, torch.tensor([1.0, -1.0], dtype=torch.float64))
    kernel = ModalKernel(2, modes=5)
    kernel.token_time = time
    kernel.load_modes(modes)
    expected = modal_taps(modes, 200)
    torch.testing.assert_close(kernel.taps(200).double(), expected, rtol=0, atol=1e-5)
    kernel.taps(200).square().sum().backward()
    assert all(p.grad is not None and p.grad.isfinite().all() for p in kernel.parameters())
    for wrong, message in (
        (ModalKernel(2, modes=2), "2 channels, at most 2 of each, got 2 and 3; set option modes to 3"),
        (ModalKernel(3), "3 channels"),
        (ModalKernel(2, causal=False), "two-sided"),
    ):
        with pytest.raises(ValueError, match=message):
            wrong.load_modes(modes)
    with pytest.raises(ValueError, match=r"inside the unit circle, got \|p\| = 2"):
        kernel.load_modes(modes._replace(poles=poles + 2 * (poles == 0)))
