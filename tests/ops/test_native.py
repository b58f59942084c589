"""The C loops give the same sums as PyTorch, and are skipped if they cannot be compiled."""

from __future__ import annotations

import functools
from pathlib import Path

import pytest
import torch

from lagwise.ops import native
from lagwise.ops.native import library
from lagwise.ops.toeplitz import convolution
from lagwise.ops.toeplitz import direct as local

pytestmark = pytest.mark.cpu
compiled = pytest.mark.usefixtures("_compiled")


@pytest.fixture
def _compiled() -> None:
    if not native.available():
        pytest.skip("no C compiler here")


@pytest.fixture
def fresh_process(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Reset the module as if nothing had been compiled, with an empty cache; gives the cache folder."""
    monkeypatch.setenv("LAGWISE_CACHE", str(tmp_path))
    monkeypatch.setattr(library, "_loops", library._loops.__wrapped__)
    return tmp_path


def integers(*shape: int) -> torch.Tensor:
    """Integers, whose sums of products are exact in float32 in any order."""
    return torch.randint(-4, 5, shape).float()


@compiled
@pytest.mark.parametrize("dilation", [1, 3, 60])
@pytest.mark.parametrize(("first", "last"), [(0, 0), (0, 3), (-16, 15), (-5, -2), (0, 40), (3, 20)])
@pytest.mark.parametrize(("batch", "length", "channels"), [(1, 1, 1), (2, 37, 5), (1, 300, 48), (3, 129, 17)])
def test_sums_equal_their_definition(
    batch: int, length: int, channels: int, first: int, last: int, dilation: int
) -> None:
    y, x = integers(batch, length, channels), integers(batch, length, channels)
    expected = torch.zeros(channels, last - first + 1)
    for n, lag in enumerate(range(first * dilation, (last + 1) * dilation, dilation)):
        after, before = y[:, max(0, lag) :], x[:, max(0, -lag) :]
        shared = max(0, length - abs(lag))
        expected[:, n] = (after[:, :shared] * before[:, :shared]).sum((0, 1))
    assert torch.equal(native.lag_products(y, x, first, last, dilation), expected)


@compiled
def test_many_lags_take_several_calls() -> None:
    """The number of lags is not limited by a thread's stack."""
    x = integers(1, 40, 3)
    got = native.lag_products(x, x, -150_000, 150_000, 1)
    assert torch.equal(got[:, 150_000 - 39 : 150_000 + 40], native.lag_products(x, x, -39, 39, 1))
    assert got.count_nonzero() == got[:, 150_000 - 39 : 150_000 + 40].count_nonzero()


@compiled
@pytest.mark.parametrize("threads", [1, 3])
def test_the_number_of_threads_does_not_matter(threads: int) -> None:
    y, x = integers(4, 2000, 24), integers(4, 2000, 24)
    expected = native.lag_products(y, x, 0, 9, 1)
    before = torch.get_num_threads()
    torch.set_num_threads(threads)
    try:
        got = native.lag_products(y, x, 0, 9, 1)
    finally:
        torch.set_num_threads(before)
    assert torch.equal(got, expected)


@pytest.mark.parametrize("has_native", [True, False])
def test_lags_beyond_the_signal_have_no_gradient(monkeypatch: pytest.MonkeyPatch, has_native: bool) -> None:
    monkeypatch.setattr(native, "available", lambda: has_native and library._loops() is not None)
    y, x = integers(2, 20, 5), integers(2, 20, 5)
    got = local.tap_gradient(y, x, -9, 9, 7)
    assert torch.equal(got[:, 7:12], local.tap_gradient(y, x, -2, 2, 7))
    assert not got[:, :7].any()
    assert not got[:, 12:].any()
    assert not local.tap_gradient(y, x, 20, 25, 1).any()


@pytest.mark.usefixtures("fresh_process")
def test_it_can_be_disabled(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LAGWISE_NATIVE", "0")
    assert not native.available()


@pytest.mark.usefixtures("fresh_process")
def test_a_missing_compiler_is_reported(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("CC", raising=False)
    monkeypatch.setenv("PATH", "/nowhere")
    with pytest.warns(UserWarning, match="training is slower.: there is no C compiler"):
        assert not native.available()


@pytest.mark.usefixtures("fresh_process")
def test_a_compiler_that_fails_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    """There is one warning, and gradients are still computed."""
    monkeypatch.setenv("CC", "false")
    x, taps = torch.randn(1, 50, 8), torch.randn(8, 5, requires_grad=True)
    with pytest.warns(UserWarning, match="falling back to PyTorch .training is slower.: ") as said:
        assert not native.available()
    assert len(said) == 1
    assert "false" in str(said[0].message)
    monkeypatch.setattr(library, "_loops", functools.cache(library._loops))
    with pytest.warns(UserWarning, match="falling back to PyTorch"):
        convolution(x, taps, 0, "direct").sum().backward()
    assert taps.grad is not None


def test_many_lags_without_native_code_use_blocks(monkeypatch: pytest.MonkeyPatch) -> None:
    """PyTorch's methods for few and for many lags agree with each other."""
    monkeypatch.setattr(native, "available", lambda: False)
    y, x = torch.randn(2, 200, 7), torch.randn(2, 200, 7)
    few, many = local.tap_gradient(y, x, 0, 3, 1), local.tap_gradient(y, x, 0, 30, 1)
    torch.testing.assert_close(few, many[:, :4], rtol=0, atol=1e-4)
