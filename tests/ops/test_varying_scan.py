"""Recurrences whose tokens last for different times."""

from __future__ import annotations

import itertools

import pytest
import torch

from lagwise.ops.recurrence import varying_scan, zoh_tokens


@pytest.mark.parametrize("length", [1, 2, 3, 16, 17, 63])
@pytest.mark.parametrize("dtype", [torch.float64, torch.complex128])
def test_it_is_the_recurrence(length: int, dtype: torch.dtype) -> None:
    x, poles = (torch.randn(2, length, 3, 2, dtype=dtype) for _ in range(2))
    state = torch.randn(2, 3, 2, dtype=dtype)
    expected, h = [], state
    for t in range(length):
        h = poles[:, t] * h + x[:, t]
        expected.append(h)
    torch.testing.assert_close(varying_scan(x, poles, state), torch.stack(expected, 1), rtol=1e-10, atol=1e-10)


@pytest.mark.parametrize("dtypes", [*itertools.product([torch.float64, torch.complex128], repeat=3)])
def test_gradients_are_those_of_finite_differences(dtypes: tuple[torch.dtype, ...]) -> None:
    shapes = (2, 7, 2), (2, 7, 2), (2, 2)
    inputs = [torch.randn(shape, dtype=dtype, requires_grad=True) for shape, dtype in zip(shapes, dtypes, strict=True)]
    assert torch.autograd.gradcheck(varying_scan, inputs)
    assert torch.autograd.gradgradcheck(varying_scan, inputs, fast_mode=True)


def test_torch_func_takes_the_same_gradient() -> None:
    x, poles = (torch.randn(1, 9, 2, dtype=torch.float64) for _ in range(2))
    leaf = x.clone().requires_grad_()
    varying_scan(leaf, poles).sin().sum().backward()
    found = torch.func.grad(lambda x: varying_scan(x, poles).sin().sum())(x)
    torch.testing.assert_close(found, leaf.grad)


def test_a_token_of_no_time_leaves_the_state() -> None:
    poles, factors = zoh_tokens(torch.tensor([-0.3]), torch.zeros(1, 1))
    assert poles.item() == 1
    assert factors.item() == 0
