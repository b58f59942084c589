"""Gates and norms in one pass equal PyTorch's, for values and gradients."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.fx.experimental.proxy_tensor import make_fx

from lagwise.ops import native, tokens
from lagwise.ops.tokens import rms_norm, silu_product

pytestmark = pytest.mark.cpu
EPSILON = 1e-6


@pytest.fixture(autouse=True)
def _small_tensors_too(monkeypatch: pytest.MonkeyPatch) -> None:
    if not native.available():
        pytest.skip("no C compiler here")
    monkeypatch.setattr(tokens, "_FEWEST", 0)


@pytest.fixture
def calls(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The names of the loops that were called."""
    made: list[str] = []
    for name in ("silu_product", "silu_product_gradients", "rms_norm", "rms_norm_gradient"):

        def recorded(*arguments: Tensor, name: str = name, loop: Callable = getattr(native, name)) -> Tensor:
            made.append(name)
            return loop(*arguments)

        monkeypatch.setattr(native, name, recorded)
    return made


def plain_product(gate: Tensor, value: Tensor) -> Tensor:
    return F.silu(gate) * value


def plain_norm(x: Tensor) -> Tensor:
    return x / (x.square().mean(-1, keepdim=True) + EPSILON).sqrt()


def norm(x: Tensor) -> Tensor:
    return rms_norm(x, EPSILON)


OF_ONE_TENSOR = [(norm, plain_norm), (lambda t: silu_product(t, t), lambda t: plain_product(t, t))]


def check(ours: Callable, plain: Callable, inputs: list[Tensor], tolerance: float) -> None:
    """Compare values and gradients with those in float64."""
    exact = [t.detach().double().requires_grad_() for t in inputs]
    y, wanted = ours(*inputs), plain(*exact)
    weight = torch.randn_like(wanted)
    assert y.dtype == inputs[0].dtype
    found = (y, *torch.autograd.grad((y * weight).sum(), inputs))
    for got, expected in zip(found, (wanted, *torch.autograd.grad((wanted * weight).sum(), exact)), strict=True):
        torch.testing.assert_close(got.double(), expected, rtol=tolerance, atol=tolerance)


SHAPES = [(1,), (5,), (16,), (3, 37), (2, 7, 192), (0, 4), (2, 0, 8)]


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize(("dtype", "tolerance"), [(torch.float32, 1e-5), (torch.bfloat16, 2e-2)])
def test_silu_product(shape: tuple[int, ...], dtype: torch.dtype, tolerance: float, calls: list[str]) -> None:
    inputs = [(3 * torch.randn(shape)).to(dtype).requires_grad_() for _ in range(2)]
    check(silu_product, plain_product, inputs, tolerance)
    assert calls == ["silu_product", "silu_product_gradients"]


@pytest.mark.parametrize("shape", SHAPES)
def test_rms_norm(shape: tuple[int, ...], calls: list[str]) -> None:
    scales = torch.logspace(-4, 4, shape[0])[(..., *(None,) * (len(shape) - 1))]  # small rows feel the epsilon
    check(norm, plain_norm, [(scales * torch.randn(shape)).requires_grad_()], 1e-5 if len(shape) > 1 else 1e-3)
    assert calls == ["rms_norm", "rms_norm_gradient"]


def test_views_and_expanded_gradients() -> None:
    both = torch.randn(6, 40)
    gate, value = (t.requires_grad_() for t in both.split(20, 1))
    for ours, plain, inputs in ((silu_product, plain_product, (gate, value)), (norm, plain_norm, (gate.t(),))):
        got = torch.autograd.grad(ours(*inputs).sum(), inputs)
        torch.testing.assert_close(got, torch.autograd.grad(plain(*inputs).sum(), inputs), rtol=1e-4, atol=1e-5)


def test_results_may_be_modified_in_place() -> None:
    x = torch.randn(4, 20, requires_grad=True)
    for ours, plain in OF_ONE_TENSOR:
        (got,) = torch.autograd.grad(ours(x).mul_(2).square().sum(), x)
        torch.testing.assert_close(got, torch.autograd.grad((2 * plain(x)).square().sum(), x)[0], rtol=1e-4, atol=1e-5)


def test_second_derivatives_and_transforms() -> None:
    x, tangent = torch.randn(3, 8, requires_grad=True), torch.randn(3, 8)
    for ours, plain in OF_ONE_TENSOR:
        found = []
        for function in (ours, plain):
            (first,) = torch.autograd.grad(function(x).pow(3).sum(), x, create_graph=True)
            found.append((*torch.autograd.grad(first.square().sum(), x), *torch.func.jvp(function, (x,), (tangent,))))
        torch.testing.assert_close(*found, rtol=1e-3, atol=1e-3)


def test_second_derivatives_of_views() -> None:
    x = torch.randn(8, 3, requires_grad=True)
    for ours, plain in OF_ONE_TENSOR:
        found = []
        for function in (ours, plain):
            (first,) = torch.autograd.grad(function(x.t()).pow(3).sum(), x, create_graph=True)
            found.append(torch.autograd.grad(first.square().sum(), x))
        torch.testing.assert_close(*found, rtol=1e-3, atol=1e-3)


def test_batched_gradients() -> None:
    x, weights = torch.randn(4, 20, requires_grad=True), torch.randn(3, 4, 20)
    for ours, plain in OF_ONE_TENSOR:
        (got,) = torch.autograd.grad(ours(x), x, weights, is_grads_batched=True)
        (expected,) = torch.autograd.grad(plain(x), x, weights, is_grads_batched=True)
        torch.testing.assert_close(got, expected, rtol=1e-4, atol=1e-5)


def test_graphs_of_traces_are_complete(tmp_path: Path) -> None:
    def both(x: Tensor) -> Tensor:
        return norm(silu_product(x, x))

    x, other = torch.randn(4, 20), torch.randn(4, 20)
    torch.testing.assert_close(make_fx(both)(x)(other), both(other))
    traced = torch.jit.trace(both, x)
    torch.jit.save(traced, str(tmp_path / "both.pt"))
    torch.testing.assert_close(torch.jit.load(str(tmp_path / "both.pt"))(other), both(other))
    with FakeTensorMode():
        assert both(torch.empty(4, 20)).shape == (4, 20)


def test_metadata_for_compilers_is_correct() -> None:
    x = torch.randn(4, 20)
    torch.library.opcheck(torch.ops.lagwise.silu_product, (x, x))
    torch.library.opcheck(torch.ops.lagwise.silu_product_gradients, (x, x, x))
    torch.library.opcheck(torch.ops.lagwise.rms_norm, (x, EPSILON))
    torch.library.opcheck(torch.ops.lagwise.rms_norm_gradient, (x, x, x[:, 0].contiguous()))


@pytest.mark.parametrize("value", [-1e30, -200.0, -1.0, 0.0, 50.0, 1e30])
def test_large_gates_saturate(value: float) -> None:
    gate = torch.full((20,), value)
    torch.testing.assert_close(silu_product(gate, torch.ones(20)), F.silu(gate), rtol=1e-6, atol=1e-25)


def test_nan_is_kept() -> None:
    x = torch.randn(3, 20)
    x[1, 4] = torch.nan
    assert torch.equal(silu_product(x, torch.ones(3, 20)).isnan(), x.isnan())
    assert torch.equal(silu_product(x.bfloat16(), torch.ones(3, 20).bfloat16()).isnan(), x.isnan())
    assert norm(x).isnan()[1].all()
    assert not norm(x).isnan()[[0, 2]].any()


def test_other_tensors_are_left_to_pytorch(calls: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    x = torch.randn(4, 20)
    silu_product(x.double(), x.double())
    silu_product(x, x.double())
    silu_product(x, x[:1])
    rms_norm(x.double(), EPSILON)
    rms_norm(x.bfloat16(), EPSILON)
    monkeypatch.setattr(tokens, "_FEWEST", 1000)
    silu_product(x, x)
    rms_norm(x, EPSILON)
    assert calls == []
