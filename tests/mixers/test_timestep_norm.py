"""Timestep normalisation: the contract of mixers, its formula, and its digits over long texts."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn

from lagwise import testing
from lagwise.mixers import TimestepNorm
from lagwise.ops.recurrence import Moments, timestep_norm


def factory(channels: int, causal: bool) -> TimestepNorm:
    norm = TimestepNorm(channels, causal=causal, groups=4)
    for parameter in norm.parameters():
        nn.init.normal_(parameter)
    return norm


def start(groups: int, rows: int = 1) -> Moments:
    zeros = torch.zeros(rows, groups, 2)
    return Moments(zeros, zeros, torch.zeros(rows, dtype=torch.long))


def test_it_obeys_the_contract_of_mixers() -> None:
    testing.check_mixer(factory, lengths=(1, 2, 3, 64, 1021))
    assert TimestepNorm(12).groups == 1


@pytest.mark.covers("Megalodon §3.2")
@pytest.mark.parametrize("causal", [True, False])
def test_it_equals_the_moments_of_all_tokens_so_far(causal: bool) -> None:
    norm = factory(12, causal).double()
    x = torch.randn(2, 40, 12, dtype=torch.float64) * torch.arange(1, 13) + 5
    y = norm(x)
    for t in (0, 1, 7, 39):
        for group in range(4):
            part = slice(3 * group, 3 * group + 3)
            so_far = x[:, : t + 1 if causal else 40, part].flatten(1)
            scale = (so_far.var(1, correction=0) + 1e-5).sqrt()
            expected = (x[:, t, part] - so_far.mean(1)[:, None]) / scale[:, None]
            expected = expected * norm.weight[part] + norm.bias[part]
            torch.testing.assert_close(y[:, t, part], expected, rtol=0, atol=1e-12)


@pytest.mark.parametrize("offset", [0.0, 1000.0])
def test_many_tokens_cost_no_digits(offset: float) -> None:
    """In float32 against float64, at once and in chunks, far from a mean of zero too:
    the error is that of the signal's own rounding. The first tokens may be nearly equal and thus divided by a small
    number."""
    torch.manual_seed(0)
    signal = (torch.randn(1, 300_000, 2) + offset).float()
    exact, _ = timestep_norm(signal.double(), start(1))
    exact, tolerance = exact[:, 50:], 6e-8 * (12 + offset)
    whole, _ = timestep_norm(signal, start(1))
    torch.testing.assert_close(whole[:, 50:].double(), exact, rtol=0, atol=tolerance)
    state, parts = start(1), []
    for part in signal.split(90_000, 1):
        y, state = timestep_norm(part, state)
        parts.append(y)
    torch.testing.assert_close(torch.cat(parts, 1)[:, 50:].double(), exact, rtol=0, atol=tolerance)
    mean, variance = signal.double().mean(), signal.double().var(correction=0)
    assert float(state.mean.double().sum()) == pytest.approx(float(mean), abs=1e-7 * (1 + offset))
    assert float(state.variance.double().sum()) == pytest.approx(float(variance), rel=1e-6 * (1 + offset) ** 0.5)


def test_steps_do_not_stall() -> None:
    """An update of a mean in float32 is lost where it is below half its last digit."""
    one = torch.tensor([[[1.0, 0.0]]])
    state = Moments(one, one, torch.tensor([100_000_000]))
    for _ in range(100):
        _, state = timestep_norm(torch.full((1, 1, 2), 2.0), state)
    assert state.mean.dtype == torch.float32
    assert float(state.mean.double().sum()) == pytest.approx(1 + 100 / 100_000_100, abs=1e-12)


def test_gradients_equal_finite_differences_with_an_earlier_state() -> None:
    def run(x: Tensor, mean: Tensor, variance: Tensor) -> tuple[Tensor, ...]:
        y, after = timestep_norm(x, Moments(mean, variance, torch.tensor([3, 0])))
        return y, after.mean, after.variance

    x = torch.randn(2, 5, 4, dtype=torch.float64, requires_grad=True)
    mean, variance = (torch.rand(2, 2, 2, dtype=torch.float64, requires_grad=True) for _ in range(2))
    torch.autograd.gradcheck(run, (x, mean, variance))


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"groups": 5}, "groups must divide the 12 channels, got 5"),
        ({"epsilon": 0}, "epsilon must be a positive"),
    ],
)
def test_wrong_options_are_named(options: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        TimestepNorm(12, **options)
