"""Dilated convolutions against torch's, and the receptive field measured by impulses."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from lagwise.ops import dilated_convolution
from lagwise.ops.toeplitz import dilated_prefill, dilated_step, receptive_field
from lagwise.ops.window import Window


def torchs_own(x: Tensor, taps: Tensor, dilation: int, causal: bool) -> Tensor:
    reach = (taps.shape[1] - 1) * dilation
    padded = F.pad(x.transpose(1, 2), (reach, 0) if causal else (reach // 2, reach // 2))
    return F.conv1d(padded, taps.flip(1)[:, None], dilation=dilation, groups=x.shape[2]).transpose(1, 2)


@pytest.mark.covers("TCNCA §2")
@settings(deadline=None, max_examples=40)
@given(st.integers(1, 301), st.sampled_from([1, 3, 17]), st.integers(1, 400), st.booleans())
@pytest.mark.usefixtures("uninitialised_is_nan")
def test_values_and_gradients_equal_torchs_conv1d(length: int, kernel_size: int, dilation: int, causal: bool) -> None:
    x = torch.randn(2, length, 3, dtype=torch.float64, requires_grad=True)
    taps = torch.randn(3, kernel_size, dtype=torch.float64, requires_grad=True)
    ours = dilated_convolution(x, taps, dilation, causal=causal)
    theirs = torchs_own(x, taps, dilation, causal)
    grad = torch.randn_like(theirs)
    torch.testing.assert_close(ours, theirs, rtol=0, atol=1e-10)
    for a, b in zip(*(torch.autograd.grad(y, (x, taps), grad) for y in (ours, theirs)), strict=True):
        torch.testing.assert_close(a, b, rtol=0, atol=1e-10)


@pytest.mark.covers("TCNCA app. E")
@pytest.mark.parametrize("shape", [(3, 2, 4, 1), (5, 3, 3, 2), (17, 8, 2, 1), (2, 1, 3, 4), (1, 5, 2, 1)])
def test_the_receptive_field_equals_the_support_of_the_impulse_response(shape: tuple[int, int, int, int]) -> None:
    kernel_size, dilation, depth, convolutions = shape
    size = receptive_field(*shape)
    impulse = torch.zeros(1, size + 20, 1)
    impulse[:, 5] = 1
    for i in range(depth):
        for _ in range(convolutions):
            impulse = dilated_convolution(impulse, torch.ones(1, kernel_size), dilation**i)
    reached = impulse[0, :, 0].nonzero().flatten()
    assert reached.min() == 5
    assert reached.max() == 5 + size - 1


def test_a_dilation_beyond_the_signal_needs_no_padding() -> None:
    x, taps = torch.randn(1, 50, 3), torch.randn(3, 5)
    for causal in (True, False):
        near, far = (dilated_convolution(x, taps, dilation, causal=causal) for dilation in (50, 10**12))
        assert torch.equal(near, far)


@pytest.mark.covers("TCNCA app. B")
@pytest.mark.parametrize("dilation", [1, 3, 40])
@pytest.mark.parametrize("ring", [False, True])
@pytest.mark.parametrize("grad", [False, True])
def test_a_stream_equals_the_whole_and_keeps_its_receptive_field(dilation: int, ring: bool, grad: bool) -> None:
    x, taps = torch.randn(2, 300, 3, dtype=torch.float64), torch.randn(3, 5, dtype=torch.float64)
    reach, parts, seen = 4 * dilation + 1, [], torch.zeros(2, dtype=torch.long)
    window = x.new_zeros(2, reach, 3) if ring else Window.empty(2, 3, reach, like=x)
    for part in x.split(1 if ring else [1, 1, 30, 1, 1, 1, 200, 1, 1, 63], dim=1):
        with torch.set_grad_enabled(grad):
            if ring:
                y, window = dilated_step(part[:, 0], taps.flip(1).t(), dilation, window, seen)
                y = y[:, None]
            else:
                y, window = dilated_prefill(part, taps, dilation, window)
        seen = seen + part.shape[1]
        parts.append(y)
        assert isinstance(window, Window) != ring
        assert (window.size if isinstance(window, Window) else window.shape[1]) <= reach
    torch.testing.assert_close(torch.cat(parts, 1), dilated_convolution(x, taps, dilation), rtol=0, atol=1e-10)


def test_wrong_arguments_are_named() -> None:
    x, taps = torch.randn(1, 9, 3), torch.randn(3, 4)
    with pytest.raises(ValueError, match="dilation must be at least 1, got 0"):
        dilated_convolution(x, taps, 0)
    with pytest.raises(ValueError, match="odd kernel size, got 4"):
        dilated_convolution(x, taps, 1, causal=False)
    with pytest.raises(ValueError, match=r"got \(1, 9, 3\) and \(2, 4\)"):
        dilated_convolution(x, taps[:2], 1)
    with pytest.raises(ValueError, match="dilation must be an integer of at least 1, got 0"):
        receptive_field(3, 0, 2)
    with pytest.raises(ValueError, match="depth must be an integer of at least 1, got True"):
        receptive_field(3, 2, True)
    for dilation, depth in ((1, 10_001), (2, 64)):
        with pytest.raises(ValueError, match=f"depth must be smaller for dilation {dilation} "):
            receptive_field(3, dilation, depth)
