"""Gates and norms in one pass equal PyTorch's, for values and gradients."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from functools import partial
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

from lagwise.blocks.norm import LayerNorm, RMSNorm, residual_normed
from lagwise.ops import native
from lagwise.ops.tokens import apply_linear, rms_norm, silu_product

pytestmark = pytest.mark.cpu
EPSILON = 1e-6


@pytest.fixture(autouse=True)
def _small_tensors_too(monkeypatch: pytest.MonkeyPatch) -> None:
    if not native.available():
        pytest.skip("no C compiler here")
    monkeypatch.setattr(native, "MIN_ELEMENTS", 0)


@pytest.fixture
def calls(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The names of the loops that were called."""
    made: list[str] = []
    for name in ("silu_product", "silu_product_gradients", "residual_norm", "residual_norm_gradients"):

        def recorded(*arguments: Tensor, name: str = name, loop: Callable = getattr(native, name)) -> Tensor:
            made.append(name)
            return loop(*arguments)

        monkeypatch.setattr(native, name, recorded)
    return made


def plain_product(gate: Tensor, value: Tensor, biases: Tensor | None = None) -> Tensor:
    if biases is not None:
        gate, value = gate + biases[0], value + biases[1]
    return F.silu(gate) * value


def plain_norm(x: Tensor) -> Tensor:
    return x / (x.square().mean(-1, keepdim=True) + EPSILON).sqrt()


def norm(x: Tensor) -> Tensor:
    return rms_norm(x, EPSILON)


def check(ours: Callable, plain: Callable, inputs: list[Tensor], tolerance: float) -> None:
    """Compare values and gradients with those in float64."""
    exact = [t.detach().double().requires_grad_() for t in inputs]
    y, wanted = ours(*inputs), plain(*exact)
    weight = torch.randn_like(wanted)
    assert y.dtype == inputs[0].dtype
    found = (y, *torch.autograd.grad((y * weight).sum(), inputs))
    for got, expected in zip(found, (wanted, *torch.autograd.grad((wanted * weight).sum(), exact)), strict=True):
        torch.testing.assert_close(got.double(), expected, rtol=tolerance, atol=tolerance)


SHAPES = [(1,), (5,), (16,), (3, 37), (2, 7, 192)]


@pytest.mark.parametrize("biased", [False, True])
@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize(("dtype", "tolerance"), [(torch.float32, 2e-5), (torch.bfloat16, 0.2)])  # for sums of rows
def test_silu_product(
    shape: tuple[int, ...], dtype: torch.dtype, tolerance: float, biased: bool, calls: list[str]
) -> None:
    shapes = [shape, shape, *[(2, shape[-1])] * biased]
    inputs = [(3 * torch.randn(size)).to(dtype).requires_grad_() for size in shapes]
    check(silu_product, plain_product, inputs, tolerance if biased else tolerance / 2)
    assert calls == ["silu_product", "silu_product_gradients"]


def test_wrong_biases() -> None:
    for biases in (torch.randn(8), torch.randn(2, 8, device="meta")):
        with pytest.raises(ValueError, match=r"biases must be \(2, channels=8\) on cpu, got \("):
            silu_product(torch.randn(3, 8), torch.randn(3, 8), biases)


class _Doubled(nn.Linear):
    """A layer as other libraries put in place of a linear one."""

    def forward(self, x: Tensor) -> Tensor:
        return 2 * super().forward(x)


class _Doubling(TorchFunctionMode):
    def __torch_function__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        y = function(*args, **(kwargs or {}))
        return 2 * y if function is F.linear else y


MODES = ("global hook", "patched class", "function mode")


@pytest.mark.parametrize(
    "kind", ["plain", "default device", "no bias", "subclass", "hook", "early hook", "forward", *MODES]
)
def test_only_plain_linear_layers_are_taken_apart(kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    layers, x = [nn.Linear(6, 8) for _ in range(2)], torch.randn(3, 6)
    if kind == "no bias":
        layers[0] = nn.Linear(6, 8, bias=False)
    if kind == "subclass":
        layers[1] = _Doubled(6, 8)
    if kind == "hook":
        layers[0].register_forward_hook(lambda layer, inputs, y: y + 1)
    if kind == "early hook":
        layers[0].register_forward_pre_hook(lambda layer, inputs: inputs[0] + 1)
    if kind == "forward":
        whole = layers[1].forward
        layers[1].forward = lambda x: whole(x) + 1  # type: ignore[method-assign]
    if kind == "patched class":
        monkeypatch.setattr(nn.Linear, "forward", lambda layer, x: F.linear(x, layer.weight))
    with contextlib.ExitStack() as stack:
        if kind == "global hook":
            handle = nn.modules.module.register_module_forward_hook(lambda layer, inputs, y: y + 1)
            stack.callback(handle.remove)
        if kind == "default device":
            stack.enter_context(torch.device("cpu"))
        if kind == "function mode":
            stack.enter_context(_Doubling())
        (gate, value), biases = apply_linear(x, *layers)
        expected = layers[0](x), layers[1](x)
    assert (biases is not None) == (kind in ("plain", "default device"))
    torch.testing.assert_close(silu_product(gate, value, biases), plain_product(*expected))


def test_weights_that_are_swapped_in_are_used() -> None:
    class Gate(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layers = nn.ModuleList(nn.Linear(6, 8) for _ in range(2))

        def forward(self, x: Tensor) -> Tensor:
            (gate, value), biases = apply_linear(x, *self.layers)
            return silu_product(gate, value, biases)

    module, x = Gate(), torch.randn(3, 6)
    others = {name: torch.randn_like(p) for name, p in module.named_parameters()}
    found = torch.func.functional_call(module, others, (x,))
    module.load_state_dict(others)
    torch.testing.assert_close(found, module(x))


@pytest.mark.parametrize("shape", SHAPES)
def test_rms_norm(shape: tuple[int, ...], calls: list[str]) -> None:
    scales = torch.logspace(-4, 4, shape[0])[(..., *(None,) * (len(shape) - 1))]  # small rows feel the epsilon
    check(norm, plain_norm, [(scales * torch.randn(shape)).requires_grad_()], 1e-5 if len(shape) > 1 else 1e-3)
    assert calls == ["residual_norm", "residual_norm_gradients"]


@pytest.mark.parametrize("channels", [5, 16, 70])
@pytest.mark.parametrize("branch", [None, torch.float32, torch.bfloat16])
@pytest.mark.parametrize("half", [False, True])
@pytest.mark.parametrize("kind", [RMSNorm, partial(RMSNorm, affine=True), LayerNorm, partial(LayerNorm, affine=False)])
def test_residual_norms(
    kind: Callable[..., nn.Module], channels: int, branch: torch.dtype | None, half: bool, calls: list[str]
) -> None:
    module, x = kind(channels), torch.randn(2, 9, channels, requires_grad=True)
    for parameter in module.parameters():
        nn.init.normal_(parameter)
    added = None if branch is None else torch.randn(2, 9, channels).to(branch).requires_grad_()
    inputs = [t for t in (x, added, *module.parameters()) if t is not None]
    weights = torch.randn(2, 2, 9, channels)

    def gradients(total: Tensor, y: Tensor) -> tuple[Tensor, ...]:
        return torch.autograd.grad((total * weights[0] + y.float() * weights[1]).sum(), inputs)

    with torch.autocast("cpu", torch.bfloat16, enabled=half):
        total, y = residual_normed(module, x, None, added)
    assert y.dtype == (torch.bfloat16 if half else torch.float32)
    plain = x if added is None else x + added
    if isinstance(module, LayerNorm):
        expected = F.layer_norm(plain, (channels,), module.weight, module.bias, module.eps)
    else:
        expected = F.rms_norm(plain, (channels,), module.weight, module.eps)
    torch.testing.assert_close(total, plain)
    torch.testing.assert_close(y.float(), expected, rtol=1e-2 if half else 1e-5, atol=1e-2 if half else 1e-5)
    tolerance = 3e-2 if half or branch == torch.bfloat16 else 1e-4
    for ours, exact in zip(gradients(total, y), gradients(plain, expected), strict=True):
        torch.testing.assert_close(ours, exact, rtol=tolerance, atol=tolerance)
    assert calls[0] == "residual_norm"
    assert "residual_norm_gradients" in calls


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
    monkeypatch.setattr(native, "MIN_ELEMENTS", 1000)
    silu_product(x, x)
    rms_norm(x, EPSILON)
    assert calls == []
