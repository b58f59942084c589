"""Every engine against the dense matrix, for values and gradients."""

from __future__ import annotations

import math

import pytest
import torch
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from lagwise.ops import EXACT_ENGINES, toeplitz_matrix, toeplitz_product, toeplitz_reference, truncation_length
from lagwise.ops.toeplitz import convolution, fast_length

FAST = tuple(engine for engine in EXACT_ENGINES if engine != "dense")

pytestmark = pytest.mark.usefixtures("uninitialised_is_nan")


def both(engine: str, x: torch.Tensor, taps: torch.Tensor, causal: bool) -> list[tuple[torch.Tensor, torch.Tensor]]:
    """Pairs of (engine, reference) for the output and both gradients."""
    x, taps = x.requires_grad_(), taps.requires_grad_()
    weight = torch.randn(x.shape, dtype=x.dtype)
    results = []
    for y in (toeplitz_product(x, taps, causal=causal, engine=engine), toeplitz_reference(x, taps, causal=causal)):
        results.append((y, *torch.autograd.grad(y, (x, taps), weight)))
    return list(zip(*results, strict=True))


@pytest.mark.covers("TNN eq. 4 and app. B")
@pytest.mark.parametrize("engine", FAST)
@pytest.mark.parametrize("causal", [True, False])
@settings(deadline=None, max_examples=15, suppress_health_check=[HealthCheck.function_scoped_fixture])
@example(1, 0, 2)
@example(64, 80, 1)
@example(1021, 1020, 1)
@given(st.integers(1, 300), st.integers(0, 200), st.integers(1, 3))
def test_engine_equals_the_dense_matrix(engine: str, causal: bool, length: int, half: int, batch: int) -> None:
    x = torch.randn(batch, length, 3, dtype=torch.float64)
    taps = torch.randn(3, 2 * half + 1, dtype=torch.float64)
    for value, exact in both(engine, x, taps, causal):
        torch.testing.assert_close(value, exact, rtol=0, atol=1e-10 * math.sqrt(length) + 1e-12)


@pytest.mark.cpu
@pytest.mark.parametrize(
    ("lags", "causal", "engine"),
    [(1, True, "auto"), (64, True, "auto"), (63, False, "auto"), (500, True, "direct"), (500, True, "dense")],
)
def test_few_lags_and_direct_sums_are_exactly_local(lags: int, causal: bool, engine: str) -> None:
    """With an FFT, a token of 1e30 would affect all outputs, so `auto` uses none for few lags."""
    x, taps = torch.randn(2, 500, 16), torch.randn(16, lags)
    louder = x.clone()
    louder[:, 250] = 1e30
    before, after = (toeplitz_product(signal, taps, causal=causal, engine=engine) for signal in (x, louder))
    reach = 250 if causal else 250 - lags // 2
    assert torch.equal(before[:, :reach], after[:, :reach])
    assert torch.equal(before[:, 250 + lags :], after[:, 250 + lags :])


@pytest.mark.covers("TNN eq. 5")
def test_truncation_bound_holds_and_is_tight() -> None:
    decay, tolerance = 0.99, 1e-8
    cut = truncation_length(decay, tolerance)
    assert cut == 1833
    taps = (decay ** torch.arange(4000, dtype=torch.float64))[None]
    x = torch.ones(1, 4000, 1, dtype=torch.float64)
    error = (toeplitz_product(x, taps) - toeplitz_product(x, taps[:, :cut])).abs().max()
    assert tolerance * 1e-2 < error <= tolerance / (1 - decay)


def test_truncation_length_at_the_ends() -> None:
    assert truncation_length(1.0, 1e-8) is None
    assert truncation_length(0.0, 1e-8) == 1
    for decay, tolerance in ((1.1, 1e-8), (0.9, 0.0), (0.9, 1.0)):
        with pytest.raises(ValueError, match="must be in"):
            truncation_length(decay, tolerance)


def test_fast_lengths_are_even_smooth_and_near() -> None:
    for minimum in range(1, 3000):
        length = fast_length(minimum)
        assert minimum <= length <= max(2, 1.34 * minimum)
        assert length % 2 == 0
        odd = length
        while odd % 2 == 0:
            odd //= 2
        assert odd in (1, 3, 5, 9, 15)


@pytest.mark.covers("TNN eq. 3")
def test_matrix_has_the_taps_on_its_diagonals() -> None:
    matrix = toeplitz_matrix(torch.tensor([[1.0, 2.0, 3.0, 4.0, 5.0]]), 3, causal=False)[0]
    assert matrix.tolist() == [[3, 2, 1], [4, 3, 2], [5, 4, 3]]


@pytest.mark.parametrize(
    ("x", "taps", "options", "message"),
    [
        (torch.ones(1, 0, 2), torch.ones(2, 3), {}, "length >= 1"),
        (torch.ones(1, 4, 0), torch.ones(0, 3), {}, "channels >= 1"),
        (torch.ones(4, 2), torch.ones(2, 3), {}, "batch, length"),
        (torch.ones(1, 4, 2), torch.ones(3, 3), {}, "channels=2"),
        (torch.ones(1, 4, 2), torch.ones(2, 4), {"causal": False}, "an odd number of lags"),
        (torch.ones(1, 4, 2), torch.ones(2, 4), {"engine": "magic"}, "'magic'"),
    ],
)
def test_wrong_arguments_are_named(x: torch.Tensor, taps: torch.Tensor, options: dict, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        toeplitz_product(x, taps, **options)


@pytest.mark.covers("SKI-TNN §3.2")
@pytest.mark.parametrize("origin", [0, 3, 8])
def test_a_direct_product_equals_a_depthwise_convolution(origin: int) -> None:
    """T_sparse of SKI-TNN §3.2."""
    x, taps = torch.randn(2, 40, 3, dtype=torch.float64), torch.randn(3, 9, dtype=torch.float64)
    image = torch.nn.functional.pad(x.transpose(1, 2), (8 - origin, origin))
    expected = torch.nn.functional.conv1d(image, taps.flip(1)[:, None], groups=3).transpose(1, 2)
    torch.testing.assert_close(convolution(x, taps, origin, "direct"), expected, rtol=0, atol=1e-12)
