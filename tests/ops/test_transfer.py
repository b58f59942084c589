"""The bound of an error over all frequencies, in cases with a known maximum."""

from __future__ import annotations

import pytest
import torch

from lagwise.ops import Modes
from lagwise.ops.recurrence import largest_difference


def one_mode(pole: complex, weight: float = 1.0, direct: float = 0.0) -> Modes:
    complex_of_one = torch.tensor([[pole]], dtype=torch.complex128), torch.tensor([[weight]], dtype=torch.complex128)
    return Modes(*complex_of_one, torch.tensor([direct], dtype=torch.float64))


@pytest.mark.parametrize("radius", [0.0, 0.9, 0.9998, 0.9999999])
@pytest.mark.parametrize("sign", [1, -1])
@pytest.mark.parametrize("n", [1, 50, 1000])
def test_the_bound_for_zero_taps_and_one_pole(radius: float, sign: int, n: int) -> None:
    """The peak is at 0 or pi and far narrower than the spacing of the initially sampled frequencies."""
    bound, total = largest_difference(torch.zeros(n, dtype=torch.float64), one_mode(sign * radius))
    assert 1 - 1e-6 <= bound * (1 - radius) <= 1.04 + 1e-6
    assert total >= (1 - 1e-6) / (1 - radius)


@pytest.mark.parametrize("angle", [0.3, 1.2345, 3.0])
def test_a_peak_between_sampled_frequencies(angle: float) -> None:
    pole = torch.polar(torch.tensor(1 - 1e-6, dtype=torch.float64), torch.tensor(angle, dtype=torch.float64))
    bound, _ = largest_difference(torch.zeros(300, dtype=torch.float64), one_mode(pole.item()))
    assert 0.499999e6 <= bound <= 1.05 * 0.500002e6  # half of it is the conjugate pole's, which is far


def test_large_errors_are_not_refined() -> None:
    """The value at a sampled frequency is returned, and no bound."""
    taps = torch.zeros(100, dtype=torch.float64)
    modes = one_mode(0.5, direct=1.0)
    assert largest_difference(taps, modes, enough=2.9)[0] == pytest.approx(3, abs=1e-12)
    assert 3 <= largest_difference(taps, modes, enough=3.1)[0] <= 3.12
    assert largest_difference(taps, one_mode(0.0, 0.0))[0] == 0
