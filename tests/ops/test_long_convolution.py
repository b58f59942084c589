"""Long causal products are computed in parts, so that rounding errors stay local."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from lagwise.ops import toeplitz_product
from lagwise.ops.toeplitz import spectral

pytestmark = pytest.mark.usefixtures("uninitialised_is_nan")


def with_gradients(x: Tensor, taps: Tensor, weight: Tensor, engine: str) -> list[Tensor]:
    x, taps = x.detach().requires_grad_(), taps.detach().requires_grad_()
    y = toeplitz_product(x, taps, engine=engine)
    return [y.detach(), *torch.autograd.grad(y, (x, taps), weight)]


@pytest.mark.parametrize(("length", "n_taps"), [(65, 65), (257, 66), (1000, 1000), (1021, 500), (1021, 2000)])
@pytest.mark.parametrize("most", [3, 16])
def test_parts_equal_the_dense_matrix(length: int, n_taps: int, most: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(spectral, "_PART", 64)
    monkeypatch.setattr(spectral, "_MAX_PARTS", most)
    monkeypatch.setattr(spectral, "_CPU_GROUP_CHANNELS", 3)
    monkeypatch.setattr(spectral, "_CPU_GROUP_ELEMENTS", 4096)  # and fewer at a time where parts meet frames
    x, weight = torch.randn(2, 3, length, 5, dtype=torch.float64)
    taps = torch.randn(5, n_taps, dtype=torch.float64)
    plan = spectral.plan_product(length, min(n_taps, length), 0, "auto")
    assert plan.frames > 1
    assert plan.parts <= most
    for ours, exact in zip(*(with_gradients(x, taps, weight, e) for e in ("auto", "dense")), strict=True):
        torch.testing.assert_close(ours, exact, rtol=0, atol=1e-9)


def test_later_tokens_do_not_change_earlier_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(spectral, "_PART", 64)
    x, taps = torch.randn(1, 1024, 3), torch.randn(3, 1024)
    before = toeplitz_product(x, taps)
    x[:, 700] *= 1e5
    after = toeplitz_product(x, taps)
    assert torch.equal(before[:, :640], after[:, :640])
    assert not torch.equal(before[:, 700:], after[:, 700:])


def test_float32_is_accurate_at_both_ends_of_100000_tokens() -> None:
    """The first outputs and the gradients of the last tokens and lags are sums of few terms, for which rounding
    relative to the largest value would be large."""
    length, near = 100_000, 64
    x, weight = torch.randn(2, 1, length, 2) + 1
    taps = torch.randn(2, length) + 1
    exact = with_gradients(x.double(), taps.double(), weight.double(), "fft")
    for ours, true, ends in zip(
        with_gradients(x, taps, weight, "auto"),
        exact,
        ((slice(None), slice(near)), (slice(None), slice(-near, None)), (slice(None), slice(-near, None))),
        strict=True,
    ):
        assert (ours - true)[ends].abs().max() < 5e-5 * true[ends].abs().max()
        assert (ours - true).abs().max() < 1e-6 * true.abs().max()
