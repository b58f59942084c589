"""SKI against its dense matrices and against the exact kernel."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from lagwise.kernels import RPEKernel
from lagwise.ops import (
    SKIPlan,
    causal_ski_product,
    ski_product,
    toeplitz_product,
    toeplitz_reference,
)
from lagwise.ops.ski import (
    PLANS,
    best_plan,
    causal_ski_matrix,
    ski_error,
    ski_reference,
    split_kernel,
)
from lagwise.ops.ski.products import _sparse_plus_smooth
from lagwise.ops.toeplitz import block_lag_products

pytestmark = pytest.mark.usefixtures("uninitialised_is_nan")


@pytest.mark.covers("SKI-TNN §3.2.1 and alg. 1")
@settings(deadline=None, max_examples=40)
@given(st.integers(1, 300), st.integers(2, 100), st.integers(0, 3))
def test_ski_equals_w_a_w_transposed(length: int, rank: int, degree: int) -> None:
    """SKI-TNN §3.2.1 and alg. 1, for values and gradients."""
    x = torch.randn(2, length, 3, dtype=torch.float64, requires_grad=True)
    a = torch.randn(3, 2 * min(rank, length) - 1, dtype=torch.float64, requires_grad=True)
    fast, exact = ski_product(x, a, degree=degree), ski_reference(x, a, degree=degree)
    torch.testing.assert_close(fast, exact, rtol=0, atol=1e-10)
    weight = torch.randn_like(fast)
    for got, expected in zip(
        torch.autograd.grad(fast, (x, a), weight), torch.autograd.grad(exact, (x, a), weight), strict=True
    ):
        torch.testing.assert_close(got, expected, rtol=0, atol=1e-10)


@pytest.mark.covers("SKI-TNN §3.2.1")
@pytest.mark.parametrize(("rank", "degree"), [(2, 1), (5, 0), (5, 3), (64, 2)])
def test_each_ragged_row_equals_w_a_w_transposed(rank: int, degree: int) -> None:
    """SKI-TNN §3.2.1 per row, for lengths below and above the rank: values and gradients."""
    first, lengths = torch.tensor([0, 3, 149, 20, 86, 40]), torch.tensor([150, 2, 1, 40, 64, 65])
    nodes = min(rank, 150)
    place = torch.arange(150) - first[:, None]
    tokens = torch.randn(6, 150, 3, dtype=torch.float64, requires_grad=True)
    x = tokens * ((place >= 0) & (place < lengths[:, None]))[..., None]
    a = torch.randn(6, 3, 2 * nodes - 1, dtype=torch.float64, requires_grad=True)
    local = torch.randn(3, 5, dtype=torch.float64, requires_grad=True)
    rows = (first, lengths, torch.full_like(lengths, rank))
    fast, of_graphs = (
        ski_product(x, a, degree=degree, local=(local, 2), rows=rows),
        _sparse_plus_smooth.plain(x, local, a, *rows, 2, 0, degree),
    )
    exact = torch.zeros_like(x)
    for i, (start, length) in enumerate(zip(first.tolist(), lengths.tolist(), strict=True)):
        row, spare = x[i : i + 1, start : start + length], max(0, nodes - length)
        y = ski_reference(row, a[i, :, spare : 2 * nodes - 1 - spare], degree=degree)
        exact[i, start : start + length] = y[0] + toeplitz_reference(row, local, causal=False)[0]
    weight = torch.randn_like(x) * (x != 0)
    for y in (fast, of_graphs):
        torch.testing.assert_close(y * weight, exact * weight, rtol=0, atol=1e-10)
    gradients = (torch.autograd.grad(y, (tokens, a, local), weight, retain_graph=True) for y in (fast, exact))
    for got, expected in zip(*gradients, strict=True):
        torch.testing.assert_close(got, expected, rtol=0, atol=1e-10)


@pytest.mark.parametrize("shape", [(2, 3, 4), (1, 3, 5), (2, 2, 5), (2, 3, 13)])
def test_coefficients_of_ragged_rows_are_checked(shape: tuple[int, ...]) -> None:
    rows = (torch.tensor([0, 0]), torch.tensor([6, 4]), torch.tensor([2, 2]))
    with pytest.raises(ValueError, match=r"coefficients must be \(batch=2, channels=3, 2 r - 1\)"):
        ski_product(torch.zeros(2, 6, 3), torch.zeros(shape), rows=rows)


@pytest.mark.covers("SKI-TNN app. B")
@pytest.mark.sampled(4)
@pytest.mark.parametrize("plan", PLANS, ids=str)
@pytest.mark.parametrize("length", [1, 3, 63, 64, 100, 333])
def test_causal_ski_equals_its_matrix(plan: SKIPlan, length: int) -> None:
    """SKI-TNN app. B without the mask, for values and gradients."""
    nodes = max(plan.short_nodes, plan.grid(length).nodes)
    values = torch.randn(2, plan.width + nodes, dtype=torch.float64, requires_grad=True)
    short, coarse = split_kernel(values[:, : plan.width], values[:, plan.width :], plan)
    x = torch.randn(2, length, 2, dtype=torch.float64, requires_grad=True)
    fast = causal_ski_product(x, short, coarse, plan)
    exact = torch.einsum("cij,bjc->bic", causal_ski_matrix(short, coarse, plan, length), x)
    torch.testing.assert_close(fast, exact, rtol=0, atol=1e-10)
    weight = torch.randn_like(fast)
    for got, expected in zip(
        torch.autograd.grad(fast, (x, values), weight, retain_graph=True),
        torch.autograd.grad(exact, (x, values), weight),
        strict=True,
    ):
        torch.testing.assert_close(got, expected, rtol=0, atol=1e-10)


@pytest.mark.covers("SKI-TNN app. B")
@pytest.mark.parametrize("plan", PLANS, ids=str)
def test_causal_ski_is_strictly_causal(plan: SKIPlan) -> None:
    """The low-rank part is exactly strictly lower triangular, so no mask is needed."""
    length = 5 * plan.width
    values = torch.randn(2, plan.grid(length).nodes, dtype=torch.float64)
    short, coarse = split_kernel(torch.randn(2, plan.width, dtype=torch.float64), values, plan)
    long = causal_ski_matrix(torch.zeros_like(short), coarse, plan, length)
    assert long.abs().max() > 0
    assert torch.triu(long).abs().max() == 0


def rpe_taps(decay: float, length: int = 1500) -> Tensor:
    torch.manual_seed(3)
    with torch.no_grad():
        return RPEKernel(6, decay=decay).double().taps(length)


@pytest.mark.sampled(3)
@pytest.mark.parametrize("decay", [0.99, 0.999, 1.0])
@pytest.mark.parametrize("tolerance", [1e-2, 1e-3, 1e-4])
def test_a_tolerance_is_met_in_the_maximum_norm(decay: float, tolerance: float) -> None:
    taps = rpe_taps(decay)
    plan, error = best_plan(taps, tolerance)
    assert error <= tolerance
    # The worst signal for lag 1000's row is the sign of the error; any signal is within the bound.
    matrix = _matrix(taps, plan)
    exact = toeplitz_reference(torch.eye(1024, dtype=taps.dtype)[:, :, None].expand(-1, -1, 6), taps[:, :1024])
    exact = exact.permute(2, 1, 0)
    worst = (matrix - exact).abs().sum(-1).amax(-1) / exact.abs().sum(-1).amax(-1)
    assert worst.max() <= 1.05 * error


def _matrix(taps: Tensor, plan: SKIPlan) -> Tensor:
    nodes = max(plan.short_nodes, plan.grid(1024).nodes)
    split = split_kernel(taps[:, : plan.width], taps[:, :: plan.spacing][:, :nodes], plan)
    return causal_ski_matrix(*split, plan, 1024)


def test_the_end_of_a_kernel_counts_as_error() -> None:
    """A box kernel is smooth except at its end."""
    box = torch.ones(1, 300, dtype=torch.float64)
    plan = SKIPlan()
    assert ski_error(box, plan) < 0.1 * ski_error(box, plan, ends=True)


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: ski_product(torch.zeros(1, 9, 2), torch.zeros(2, 4)), "2 r - 1"),
        (lambda: ski_product(torch.zeros(1, 9, 2), torch.zeros(2, 21)), "at most the length 9"),
        (lambda: SKIPlan(8, 16, 1).check(), "width must be over 2 spacings"),
        (lambda: SKIPlan(8, 64, 2).check(), "odd"),
        (lambda: block_lag_products(torch.zeros(1, 9, 2), torch.zeros(1, 9, 2), 2, 1), "after the last"),
        (lambda: toeplitz_product(torch.zeros(1, 9, 2), torch.zeros(2, 9), engine="ski"), "engine must be one of"),
    ],
)
def test_wrong_arguments_are_named(call: Callable[[], object], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        call()
