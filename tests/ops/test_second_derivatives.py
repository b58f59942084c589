"""Functions with their own gradients: second derivatives, forward mode and batched gradients, for every plan."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

from lagwise.ops import block_scan, toeplitz_product
from lagwise.ops.operation import differentiable_gradients

pytestmark = pytest.mark.real_device  # forward-mode derivatives


def leaves(*shapes: tuple[int, ...]) -> tuple[Tensor, ...]:
    return tuple(torch.randn(shape, dtype=torch.float64, requires_grad=True) for shape in shapes)


def check(function: Callable[..., Any], *inputs: Tensor) -> None:
    forward = {"check_forward_ad": True}
    assert torch.autograd.gradcheck(function, inputs, fast_mode=True, **forward)
    assert torch.autograd.gradgradcheck(function, inputs, fast_mode=True, check_fwd_over_rev=True)


@pytest.mark.parametrize("reverse", [0, 2])
@pytest.mark.parametrize("length", [3, 26])
def test_scan(reverse: int, length: int) -> None:
    inputs = leaves((2, length, 3), (3, 4, 4), (3, 5, 4), (3, 5, 4), (3, 5), (2, 3, 5 - reverse))
    check(lambda x, m, i, o, q, h: block_scan(x, m, i, o, q.sigmoid(), h, reverse=reverse), *inputs)


def test_second_derivative_by_one_argument_includes_the_other() -> None:
    """`torch.autograd.grad(inputs=...)` does not call nodes off the path to the inputs, such as one that would raise an
    error."""
    x, taps = leaves((2, 70, 3), (3, 33))
    exact, ours = [], []
    for engine, found in (("dense", exact), ("fft", ours), ("direct", ours)):
        (first,) = torch.autograd.grad(toeplitz_product(x, taps, engine=engine).tanh().sum(), taps, create_graph=True)
        found.append(torch.autograd.grad(first.square().sum(), x)[0])
    for second in ours:
        torch.testing.assert_close(second, exact[0])


def test_inputs_made_from_one_another() -> None:
    a = torch.tensor(3.0, requires_grad=True)
    b = 2 * a
    da, db = differentiable_gradients(lambda a, b: a * b, (a, b), (True, True), [torch.tensor(1.0)])
    assert da is not None
    assert db is not None
    assert (da.item(), db.item()) == (6.0, 3.0)
