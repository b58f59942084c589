"""The product over a grid in one loop equals dense matrices, for values and gradients, and falls back where it must."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from lagwise.ops import native, toeplitz_matrix
from lagwise.ops.grid import gated_grid_product

pytestmark = pytest.mark.cpu
SHAPES = [(1, 1, 1, 1), (2, 3, 5, 20), (3, 8, 8, 16), (2, 14, 14, 33), (1, 1, 7, 5), (1, 6, 1, 300), (5, 2, 3, 130)]
every_shape = pytest.mark.parametrize(("batch", "height", "width", "channels"), SHAPES)


@pytest.fixture(params=["native", "plain"])
def way(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    if request.param == "plain":
        monkeypatch.setattr(native, "available", lambda: False)
    elif not native.available():
        pytest.skip("no C compiler here")
    return request.param


def dense(
    gate: Tensor, value: Tensor, rows: Tensor, columns: Tensor, width: int, biases: Tensor | None = None
) -> Tensor:
    """The definition, with matrices of both axes, in float64."""
    gate, value, rows, columns = (t.double() for t in (gate, value, rows, columns))
    if biases is not None:
        gate, value = gate + biases[0].double(), value + biases[1].double()
    image = F.silu(value).unflatten(1, (-1, width))
    along = torch.einsum("cjk,bikc->bijc", toeplitz_matrix(rows, width, causal=False), image)
    down = torch.einsum("cik,bkjc->bijc", toeplitz_matrix(columns, image.shape[1], causal=False), image)
    return F.silu(gate) * (along + down).flatten(1, 2)


def noise(
    batch: int, height: int, width: int, channels: int, dtype: torch.dtype = torch.float32, more: int = 0
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Gate, value and taps, with so many more taps on either side than the axes need."""
    gate, value = ((3 * torch.randn(batch, height * width, channels)).to(dtype).requires_grad_() for _ in range(2))
    rows, columns = (torch.randn(channels, max(1, 2 * (size + more) - 1)).requires_grad_() for size in (width, height))
    return gate, value, rows, columns


def gradients(y: Tensor, inputs: tuple[Tensor, ...], weight: Tensor) -> tuple[Tensor, ...]:
    return torch.autograd.grad((y * weight).sum(), inputs)


@every_shape
@pytest.mark.parametrize("biased", [False, True])
@pytest.mark.parametrize("more", [0, 2, -1])
@pytest.mark.parametrize(("dtype", "tolerance"), [(torch.float32, 2e-6), (torch.bfloat16, 4e-2)])
@pytest.mark.usefixtures("way")
def test_values_and_gradients_equal_dense_matrices(
    batch: int, height: int, width: int, channels: int, more: int, biased: bool, dtype: torch.dtype, tolerance: float
) -> None:
    inputs = noise(batch, height, width, channels, dtype, more)
    biases = torch.randn(2, channels, requires_grad=True) if biased else None
    y = gated_grid_product(*inputs, width, biases)
    assert y.dtype == dtype
    expected = dense(*inputs, width, biases)
    inputs = inputs if biases is None else (*inputs, biases)
    weight = torch.randn_like(expected)
    found = (y, *gradients(y.double(), inputs, weight))
    for got, wanted in zip(found, (expected, *gradients(expected, inputs, weight)), strict=True):
        scale = float(wanted.detach().abs().max()) + 1e-30
        torch.testing.assert_close(got.double() / scale, wanted.double() / scale, rtol=0, atol=tolerance)


@pytest.mark.parametrize("threads", [1, 3])
@pytest.mark.usefixtures("way")
def test_the_number_of_threads_does_not_matter(threads: int) -> None:
    inputs = noise(7, 4, 4, 300)
    weight = torch.randn(7, 16, 300)
    before = torch.get_num_threads()
    expected = gradients(gated_grid_product(*inputs, 4), inputs, weight)
    torch.set_num_threads(threads)
    try:
        found = gradients(gated_grid_product(*inputs, 4), inputs, weight)
    finally:
        torch.set_num_threads(before)
    torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("overwrite", [False, True])
@pytest.mark.usefixtures("way")
def test_the_gate_is_overwritten_only_where_allowed(overwrite: bool) -> None:
    inputs, biases = noise(2, 3, 4, 20), torch.randn(2, 20)
    gate, expected = inputs[0].detach().clone(), dense(*inputs, 4, biases).float()
    y = gated_grid_product(*inputs, 4, biases, overwrite_gate=overwrite)  # with gradients
    assert torch.equal(inputs[0], gate)
    torch.testing.assert_close(y, expected, rtol=1e-4, atol=1e-4)
    with torch.no_grad():
        y = gated_grid_product(*inputs, 4, biases, overwrite_gate=overwrite)
    torch.testing.assert_close(y, expected, rtol=1e-4, atol=1e-4)
    assert overwrite or torch.equal(inputs[0], gate)


@pytest.mark.usefixtures("way")
def test_an_empty_batch() -> None:
    inputs = noise(0, 3, 4, 20)
    y = gated_grid_product(*inputs, 4)
    assert y.shape == (0, 12, 20)
    assert not any(grad.any() for grad in torch.autograd.grad(y.sum(), inputs))


def test_wrong_shapes() -> None:
    gate, value, rows, columns = (t.detach() for t in noise(2, 3, 4, 20))
    with pytest.raises(ValueError, match="odd number of lags"):
        gated_grid_product(gate, value, rows[:, 1:], columns, 4)
    with pytest.raises(ValueError, match="gate and value must have the same shape"):
        gated_grid_product(gate[:1], value, rows, columns, 4)
    with pytest.raises(ValueError, match=r"taps must be \(channels=20"):
        gated_grid_product(gate, value, rows[:5], columns, 4)
    with pytest.raises(ValueError, match="at least one token and one channel"):
        gated_grid_product(gate[..., :0], value[..., :0], rows[:0], columns[:0], 4)
    with pytest.raises(ValueError, match="at least one token and one channel"):
        gated_grid_product(gate[:, :0], value[:, :0], rows, columns, 4)
    with pytest.raises(ValueError, match=r"biases must be \(2, channels=20\)"):
        gated_grid_product(gate, value, rows, columns, 4, torch.randn(20))
    with pytest.raises(ValueError, match="width must divide the length 12"):
        gated_grid_product(gate, value, rows, columns, 5)
