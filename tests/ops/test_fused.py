"""Fused kernels against the operations that they replace, in Triton's interpreter."""

from __future__ import annotations

import copy
import os
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from gated_layer import GatedLayer
from graph_code import recording
from torch import Tensor, nn
from torch.testing import assert_close

from lagwise.blocks import MegaBlock
from lagwise.blocks.prenorm import LayerNorm, RMSNorm, residual_normed
from lagwise.kernels import KernelNetwork
from lagwise.mixers import ShortConvMixer, TCNMixer, TimestepNorm
from lagwise.mixers.ema import EMAMixer
from lagwise.mixers.toeplitz import GTU, ToeplitzMixer
from lagwise.ops import dilated_convolution, fused, native, toeplitz_product
from lagwise.ops.fused import average, network
from lagwise.ops.fused.convolution import residual_convolutions
from lagwise.ops.recurrence.timestep_norm import affine_timestep_norm
from lagwise.ops.toeplitz.convolution import _gated
from lagwise.ops.toeplitz.direct import is_direct
from lagwise.ops.tokens import apply_linear, linears, silu_product
from lagwise_papers.family.hyena import HyenaMixer

HALF = torch.bfloat16


@pytest.fixture(autouse=True)
def interpreted(monkeypatch: pytest.MonkeyPatch, device: torch.device) -> None:
    """Have fused kernels serve tensors on the CPU, if Triton has been told to interpret before anything imported it,
    unless the tests run on a GPU."""
    pytest.importorskip("triton", reason="Triton comes with PyTorch for GPUs")
    if device.type == "cuda":
        return
    if os.environ.get("TRITON_INTERPRET") != "1":
        pytest.skip("needs TRITON_INTERPRET=1, as in `make test-triton`")
    monkeypatch.setattr(fused, "_devices", ["cpu"])
    monkeypatch.setattr(native, "serves", lambda *_, **__: False)  # as for tensors on a card


def compare(
    function: Callable[..., Any], module: nn.Module, *inputs: Tensor, half: bool = False, tolerance: float = 2e-5
) -> list[Tensor]:
    """Compare ``function(module, *inputs)`` and all gradients with those in float64, which fused kernels do not serve;
    half: under bfloat16 autocast. No saved tensor may be read twice, which gradient checkpointing refuses. Returns what
    was compared."""

    def read_once(saved: list[Tensor]) -> Tensor:
        assert saved, "a backward pass reads ctx.saved_tensors twice"
        return saved.pop()

    found = []
    for exact in (False, True):
        kind = torch.float64 if exact else None
        made = copy.deepcopy(module).to(inputs[0].device, kind)
        given = [t.detach().to(kind).requires_grad_() for t in inputs]
        with (
            torch.autocast(inputs[0].device.type, HALF, enabled=half and not exact),
            torch.autograd.graph.saved_tensors_hooks(lambda t: [t], read_once),
        ):
            results = function(made, *given)
        results = [results] if isinstance(results, Tensor) else list(results)
        generator = torch.Generator().manual_seed(1)
        weights = [
            torch.randn(r.shape, generator=generator, device="cpu").to(r.device, HALF).to(r.dtype) for r in results
        ]
        torch.autograd.backward(results, weights)
        grads = [t.grad for t in [*given, *made.parameters()]]
        assert all(g is not None for g in grads)
        found.append([*results, *(g for g in grads if g is not None)])
    for number, (a, b) in enumerate(zip(*found, strict=True)):
        assert a.shape == b.shape
        error = float((a.double() - b).abs().max() / b.abs().max())
        assert error <= tolerance, f"tensor {number} is off by {error:.1e}"
    return found[0]


def numbers(*shape: int, seed: int = 0, dtype: torch.dtype = torch.float32) -> Tensor:
    random = torch.Generator().manual_seed(seed)
    return torch.randn(shape, generator=random, device="cpu").to(torch.get_default_device(), dtype)


@pytest.mark.parametrize("half", [False, True])
@pytest.mark.parametrize("branch", [False, True])
@pytest.mark.parametrize(
    "norm", [RMSNorm(37), RMSNorm(37, affine=True), LayerNorm(37), LayerNorm(37, affine=False)], ids=str
)
def test_residual_norm(norm: nn.Module, branch: bool, half: bool) -> None:
    norm = copy.deepcopy(norm).to(torch.get_default_device())
    for seed, parameter in enumerate(norm.parameters()):
        parameter.data += 0.3 * numbers(37, seed=seed)
    more = [numbers(2, 5, 37, seed=1, dtype=HALF if half else torch.float32)] if branch else []
    inputs = (1 + numbers(2, 5, 37), *more)
    total, y, *_ = compare(
        lambda norm, x, *rest: residual_normed(norm, x, None, *rest), norm, *inputs, half=half,
        tolerance=1e-2 if half else 2e-5,
    )  # fmt: skip
    assert (total.dtype, y.dtype) == (torch.float32, HALF if half else torch.float32)


def test_the_gradient_of_a_norm_may_leave_out_one_of_its_results() -> None:
    x = numbers(2, 5, 16).requires_grad_()
    total, y = residual_normed(RMSNorm(16), x, None, numbers(2, 5, 16, seed=1))
    assert torch.equal(torch.autograd.grad(total.sum(), x, retain_graph=True)[0], torch.ones_like(x))
    assert torch.autograd.grad(y.square().sum(), x)[0].abs().max() < 1e-4  # of constant length


@pytest.mark.parametrize("bias", [False, True])
@pytest.mark.parametrize("half", [False, True])
def test_joint_layers_and_gates(half: bool, bias: bool) -> None:
    layers = nn.ModuleList([nn.Linear(24, 20, bias), nn.Linear(24, 20, bias), nn.Linear(20, 24, bias)])

    def run(layers: Any, x: Tensor) -> Tensor:
        (gate, value), biases = apply_linear(x, *layers[:2])
        if x.dtype == torch.float32:
            assert fused.joined([gate, value]).untyped_storage().data_ptr() == gate.untyped_storage().data_ptr()
        return linears(silu_product(gate, value, biases), layers[2])[0]

    found = compare(run, layers, numbers(3, 7, 24), half=half, tolerance=3e-2 if half else 2e-5)
    assert all(gradient.dtype == torch.float32 for gradient in found[1:])


PRODUCTS = [(100, 100, True, "auto"), (100, 17, True, "overlap_save"), (2100, 40, True, "overlap_save")]
PRODUCTS += [(65, 129, False, "fft")]


@pytest.mark.parametrize(("length", "count", "causal", "engine"), PRODUCTS)
@pytest.mark.parametrize("dtype", [torch.float32, HALF])
def test_products_by_fft(length: int, count: int, causal: bool, engine: str, dtype: torch.dtype) -> None:
    product = lambda _, x, taps: toeplitz_product(x, taps, causal=causal, engine=engine)  # noqa: E731
    channels = 35 if length <= 100 else 3
    x, taps = numbers(2, length, channels, dtype=dtype), numbers(channels, count, seed=1)
    compare(product, nn.Identity(), x, taps, tolerance=2e-5 if dtype == torch.float32 else 1e-2)


@pytest.mark.parametrize("causal", [False, True])
def test_few_lags_need_no_fft(causal: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """Neither in a product nor in a gated unit, whose product by FFT is fused with its gates."""
    product = lambda _, x, taps: toeplitz_product(x, taps, causal=causal)  # noqa: E731
    x, taps = numbers(2, 100, 35), numbers(35, 23, seed=1)
    compare(product, nn.Identity(), x, taps)
    assert is_direct(x, taps, "auto")
    assert not is_direct(x, numbers(35, 25), "auto")
    mixer = GTU(24, causal=causal, kernel={"name": "free", "max_length": 12})
    compare(lambda mixer, x: mixer(x), mixer, numbers(2, 12, 24))
    monkeypatch.delattr(torch.fft, "rfft")
    product(None, x, taps)
    mixer(numbers(2, 12, 24))


KERNELS = [{"name": "rpe", "hidden": 8, "layers": 1}, {"name": "frequency", "hidden": 8, "layers": 1, "grid": 64}]


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("kernel", KERNELS, ids=lambda kernel: kernel["name"])
@pytest.mark.parametrize("half", [False, True])
def test_gated_toeplitz_units(kernel: dict[str, Any], causal: bool, half: bool) -> None:
    torch.manual_seed(0)
    mixer = GTU(24, causal=causal, expansion=2, kernel=kernel)
    compare(lambda mixer, x: mixer(x), mixer, numbers(2, 63, 24), half=half, tolerance=5e-2 if half else 5e-5)
    taps, (gate, value) = mixer.toeplitz.taps(63), numbers(2, 2, 63, 48)
    assert _gated.chosen(gate, value, taps, None, 0 if causal else 62, "auto") == "triton"


@pytest.mark.parametrize(
    ("module", "kernels"),
    [
        (
            GatedLayer(),
            {"cast_weights", "column_sums", "norm", "norm_gradients", "silu_product_kernel"},
        ),
        (
            KernelNetwork(2, 5, hidden=20, layers=1, activation="relu"),
            {"normed_relu_layers", "normed_relu_layers_gradients"},
        ),
        (EMAMixer(16, dimension=4), {"average_outputs", "average_gradients", "average_adjoint"}),
        (TCNMixer(16, depth=2), {"convolve", "convolution_gradients"}),
        (ShortConvMixer(16, kernel_size=3), {"convolve_gated", "gated_convolution_gradients"}),
        (
            MegaBlock(16, memory={"name": "ema", "dimension": 4}, query_size=8, value_size=16, chunk=16),
            {"average_outputs", "gated_update_kernel", "gated_update_gradients"},
        ),
    ],
    ids=lambda given: type(given).__name__,
)
def test_kernels_in_graphs(module: nn.Module, kernels: set[str], device: torch.device) -> None:
    """`torch.compile` calls the kernels that eager steps call, and does not look into them."""
    torch._dynamo.reset()
    code: list[str] = []
    module = copy.deepcopy(module).to(device)
    compiled = torch.compile(module, backend=recording(code), fullgraph=True)
    for length in (80, 100, 90):
        x = numbers(*((length, 2) if isinstance(module, KernelNetwork) else (2, length, 16))).requires_grad_()
        inputs = [x, *module.parameters()]
        found, expected = compiled(x), module(x)
        assert_close(found, expected, rtol=0, atol=2e-5)
        ours, eager = (torch.autograd.grad(y.square().sum(), inputs) for y in (found, expected))
        assert_close(ours, eager, rtol=1e-3, atol=1e-4)
    assert len(code) == 4  # for the first length, and for all others
    assert {name for name in kernels if f".{name}." in "".join(code)} == kernels


@pytest.mark.parametrize(
    "module",
    [
        GTU(16, expansion=2),
        GTU(16, causal=False, kernel={"name": "frequency"}),
        ToeplitzMixer(16, kernel={"name": "warped"}, engine="ski"),
        ToeplitzMixer(16, causal=False, kernel={"name": "warped"}, engine="ski"),
        MegaBlock(16, memory={"name": "tcn", "depth": 2}, query_size=8, value_size=16, chunk=16),
        HyenaMixer(16),
    ],
    ids=lambda module: type(module).__name__,
)
@pytest.mark.parametrize("masked", [False, True])
def test_operators_give_graphs_what_is_expected_under_autocast(
    module: nn.Module, masked: bool, device: torch.device
) -> None:
    torch._dynamo.reset()
    module, x = copy.deepcopy(module).to(device), numbers(2, 80, 16)
    mask = (torch.arange(80, device=device) < torch.tensor([[80], [70]], device=device)) if masked else None
    with torch.autocast(x.device.type, HALF), torch._functorch.config.patch(backward_pass_autocast="off"):
        given = x.to(HALF).requires_grad_()
        found = torch.compile(module, backend=recording([]), fullgraph=True)(given, mask=mask)
        expected = module(given, mask=mask)
    inputs = [given, *module.parameters()]
    ours, eager = (torch.autograd.grad(y.float().square().sum(), inputs) for y in (found, expected))
    for a, b in zip([found, *ours], [expected, *eager], strict=True):
        assert_close(a, b, rtol=0.05, atol=0.05 * float(b.detach().abs().max()))


@pytest.mark.parametrize(("causal", "dilation", "length"), [(True, 1, 70), (False, 3, 70), (True, 80, 70)])
@pytest.mark.parametrize("residual", [False, True])
@pytest.mark.parametrize("activate", [False, True])
def test_short_convolutions(causal: bool, dilation: int, length: int, residual: bool, activate: bool) -> None:
    origin = 0 if causal else 2

    def run(_: Any, x: Tensor, taps: Tensor) -> Tensor:
        if x.dtype == torch.float32:
            return residual_convolutions(x, taps[None], origin, (dilation,), residual, activate)
        y = dilated_convolution(x, taps, dilation, causal=causal)
        y = F.silu(y) if activate else y
        return x + y if residual else y

    compare(run, nn.Identity(), numbers(2, length, 70), numbers(70, 5, seed=1))


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("half", [False, True])
def test_gated_short_convolutions(causal: bool, half: bool) -> None:
    torch.manual_seed(0)
    mixer = ShortConvMixer(20, causal=causal, kernel_size=3)
    compare(lambda mixer, x: mixer(x), mixer, numbers(2, 70, 20), half=half, tolerance=5e-2 if half else 1e-4)


@pytest.mark.parametrize("half", [False, True])
@pytest.mark.parametrize("dimension", [1, 3])
@pytest.mark.parametrize("complex_poles", [False, True])
def test_moving_averages(complex_poles: bool, dimension: int, half: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    served, compute = [], average.average_outputs
    monkeypatch.setattr(average, "average_outputs", lambda *args: served.append(args[0].dtype) or compute(*args))
    monkeypatch.setattr(average, "_CHUNK", 16)
    torch.manual_seed(0)
    kernel = {"name": "cema", "dimension": dimension}
    mixer = ToeplitzMixer(33, kernel=kernel) if complex_poles else EMAMixer(33, dimension=dimension)
    if isinstance(mixer, ToeplitzMixer):
        nn.init.normal_(mixer.kernel.gamma)
    x = numbers(2, 37, 33, dtype=HALF if half else torch.float32)
    compare(lambda mixer, x: mixer(x), mixer, x, tolerance=2e-2 if half else 5e-5)
    assert served == [x.dtype]  # not in float64


@pytest.mark.parametrize("half", [False, True])
@pytest.mark.parametrize("groups", [1, 3])
def test_timestep_norms(groups: int, half: bool) -> None:
    torch.manual_seed(0)
    norm = TimestepNorm(33, groups=groups)
    nn.init.normal_(norm.weight)
    x = 3 + 2 * numbers(2, 37, 33, dtype=HALF if half else torch.float32)
    compare(lambda norm, x: norm(x), norm, x, tolerance=2e-2 if half else 5e-5)
    assert affine_timestep_norm.chosen(x, norm.weight, norm.bias, groups, 1e-5) == "triton"


@pytest.mark.parametrize("module", [TimestepNorm(12, groups=3), ToeplitzMixer(12, kernel={"name": "cema"})], ids=str)
def test_second_derivatives(module: nn.Module, device: torch.device) -> None:
    def curvature(x: Tensor, kind: torch.dtype) -> Tensor:
        made, x = copy.deepcopy(module).to(device, kind), x.to(kind).requires_grad_()
        (slope,) = torch.autograd.grad(made(x).pow(3).sum(), x, create_graph=True)
        return torch.autograd.grad(slope.square().sum(), x)[0]

    found, exact = (curvature(numbers(2, 20, 12), kind) for kind in (torch.float32, torch.float64))
    assert_close(found.double(), exact, rtol=1e-3, atol=1e-4 * float(exact.abs().max()))


@pytest.mark.parametrize("layers", [0, 3])
def test_kernel_networks_as_one_node(layers: int, monkeypatch: pytest.MonkeyPatch) -> None:
    served, compute = [], network.network_layers
    monkeypatch.setattr(network, "network_layers", lambda *args: served.append(args[2]) or compute(*args))
    torch.manual_seed(0)
    module = KernelNetwork(2, 5, hidden=20, layers=layers, activation="relu")
    compare(lambda module, x: module(x), module, numbers(9, 2))
    assert served == [layers + 1]  # once: not in float64


@pytest.mark.parametrize(("precision", "expected"), [("none", "ieee"), ("ieee", "ieee"), ("tf32", "tf32")])
def test_kernel_networks_are_rounded_as_other_products(precision: str, expected: str) -> None:
    before = torch.backends.cuda.matmul.fp32_precision
    try:
        torch.backends.cuda.matmul.fp32_precision = precision
        assert network._sizes(numbers(9, 2), 20, 1)["PRECISION"] == expected
    finally:
        torch.backends.cuda.matmul.fp32_precision = before


@pytest.mark.parametrize("dtype", [torch.float32, HALF])
def test_causal_ski(dtype: torch.dtype) -> None:
    torch.manual_seed(0)
    mixer = ToeplitzMixer(20, kernel={"name": "warped", "filter_size": 8}, engine="ski")
    x = numbers(2, 150, 20, dtype=dtype)
    compare(lambda mixer, x: mixer(x), mixer, x, tolerance=1e-4 if dtype == torch.float32 else 2e-2)
