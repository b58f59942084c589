"""Gates and norms in one pass equal PyTorch's, for values and gradients."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

from lagwise.ops import native
from lagwise.ops.fused.layers import residual_norm
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


def norm(x: Tensor) -> Tensor:
    return rms_norm(x, EPSILON)


@pytest.mark.parametrize("shape", [(1,), (5,), (16,), (3, 37), (2, 7, 192)])
@pytest.mark.parametrize("name", ["silu product", "silu product with biases", "residual norm", "norm"])
def test_any_number_of_channels(shape: tuple[int, ...], name: str, calls: list[str]) -> None:
    """Vectors and what is left of them, in the loops, against the definitions in float64."""
    scales = torch.logspace(-4, 4, shape[0])[(..., *(None,) * (len(shape) - 1))]  # small rows feel the epsilon
    x, y, channels = scales * torch.randn(shape), 3 * torch.randn(shape), torch.randn(2, shape[-1])
    operation, *args = {
        "silu product": (silu_product, x, y, None),
        "silu product with biases": (silu_product, x, y, channels),
        "residual norm": (residual_norm, x, y, *channels, 1e-5, True, torch.float32),
        "norm": (residual_norm, x, None, channels[0], None, 1e-5, False, torch.float32),
    }[name]
    found, weight = [], torch.randn(shape)
    for function, dtype in ((operation, torch.float32), (operation.plain, torch.float64)):
        given = [each.detach().to(dtype).requires_grad_() if isinstance(each, Tensor) else each for each in args]
        sources = [each for each in given if isinstance(each, Tensor)]
        results = function(*(dtype if each is torch.float32 else each for each in given))
        results = [results] if isinstance(results, Tensor) else [each for each in results if each is not None]
        found.append([*results, *torch.autograd.grad(sum((y * weight).sum() for y in results), sources)])
    for ours, exact in zip(*found, strict=True):
        assert (ours - exact).abs().max() <= (1e-3 if len(shape) == 1 else 2e-5) * exact.abs().max() + 1e-6
    assert calls


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
    monkeypatch.setattr(native, "MIN_ELEMENTS", 1000)
    silu_product(x, x)
    rms_norm(x, EPSILON)
    assert calls == []


def test_layers_are_exported_for_any_number_of_rows(monkeypatch: pytest.MonkeyPatch) -> None:
    """Not only for as few as the loops in C do not serve."""
    monkeypatch.setattr(native, "MIN_ELEMENTS", 1000)

    class Layers(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.gate, self.value = nn.Linear(8, 8), nn.Linear(8, 8)

        def forward(self, x: Tensor) -> Tensor:
            (gate, value), biases = apply_linear(x, self.gate, self.value)
            return silu_product(gate, value, biases)

    layers, rows = Layers(), torch.export.Dim("rows")
    graph = torch.export.export(layers, (torch.randn(3, 1, 8),), dynamic_shapes=({0: rows},), strict=False).module()
    x = torch.randn(200, 1, 8)
    torch.testing.assert_close(graph(x), layers(x))
