"""Properties of every kernel, and the published options of the relative position encoder."""

from __future__ import annotations

import copy
import math
from operator import attrgetter

import pytest
import torch
from every_mixer import diagonal
from kernel_references import kernel_at, smooth_at
from torch import nn
from torch._dynamo.testing import CompileCounterWithBackend

from lagwise.kernels import (
    KERNELS,
    FreeKernel,
    LagKernel,
    RPEKernel,
)
from lagwise.kernels.base import some_channels
from lagwise.tables import build

VARIANTS = [
    *({"name": name} for name in KERNELS),
    *({"name": "rpe", "inputs": inputs} for inputs in ("normalized", "sincos")),
    *({"name": "rpe", "decay": decay} for decay in (1.0, 0.9, 0.0)),
    *({"name": "rpe", "activation": activation} for activation in ("silu", "gelu", "tanh", "none")),
    {"name": "rpe", "learn_decay": True},
    {"name": "rpe", "layers": 0, "hidden": 4},
    {"name": "free", "decay": 1.0},
    *({"name": "frequency", "inputs": i, "activation": a} for i in ("cos", "omega") for a in ("relu", "silu", "gelu")),
    {"name": "frequency", "grid": 40},
    {"name": "warped", "decay": 0.9, "filter_size": 5, "points": 7},
    {"name": "warped", "filter_size": 0},
    {"name": "ema", "dimension": 3, "truncation": 45},
    {"name": "modal", "modes": 3},
]
# Kernels of state spaces and of filters, with the sizes at which their definitions are quick.
PAPERS = [
    *({"name": "s4d", "modes": 4, "start": s, "rule": r} for s in ("lin", "inv", "legs") for r in ("zoh", "bilinear")),
    *({"name": "cema", "dimension": n} for n in (1, 5)),
    *({"name": "dss", "modes": 4, "normalization": how, "span": 30} for how in ("exp", "softmax")),
    {"name": "s4", "modes": 4, "span": 64},
    {"name": "s4", "modes": 32, "span": 1024},
    {"name": "sgconv", "size": 8, "scales": 5},
    {"name": "sgconv", "size": 1, "scales": 3},
    {"name": "hyena", "span": 40, "hidden": 6, "bands": 3, "frequency": 14.0},
    {"name": "hyena", "span": 40, "hidden": 6, "shift": 0.05},
    {"name": "spectral", "filters": 5, "span": 50},
    {"name": "spectral", "filters": 5, "span": 50, "alternating": False},
]
FORMULAS = [spec for spec in VARIANTS if spec["name"] not in {each["name"] for each in PAPERS}] + PAPERS
every_kernel = diagonal("spec", VARIANTS)
every_direction = diagonal(("spec", "causal"), [(spec, causal) for spec in VARIANTS for causal in (True, False)])


def make(spec: dict, *, causal: bool = True) -> LagKernel:
    return build(KERNELS, spec, 5, what="kernel", causal=causal)


@pytest.mark.parametrize("spec", VARIANTS, ids=str)
def test_shapes_and_lags(spec: dict) -> None:
    causal, both = make(spec), make(spec, causal=False)
    assert both.support == causal.support
    for length in (1, 2, 63, 200):
        reach = min(length, causal.support or length)
        assert causal.taps(length).shape == (5, reach)
        assert both.taps(length).shape == (5, 2 * reach - 1)
        assert causal.lags(length, torch.device("cpu")).tolist() == list(range(reach))


@pytest.mark.parametrize("spec", VARIANTS, ids=str)
def test_some_channels_have_their_taps(spec: dict) -> None:
    kernel = make(spec)
    some = some_channels(kernel, 1, 4)
    assert some.channels == 3
    torch.testing.assert_close(some.taps(60), kernel.taps(60)[1:4])


@every_direction
def test_taps_do_not_depend_on_the_length(spec: dict, causal: bool) -> None:
    kernel = make(spec, causal=causal).double()
    short, long = kernel.taps(20), kernel.taps(300)
    centre = 0 if causal else long.shape[1] // 2 - short.shape[1] // 2
    torch.testing.assert_close(short, long[:, centre : centre + short.shape[1]], rtol=0, atol=1e-13)


@every_kernel
def test_every_parameter_gets_a_gradient(spec: dict) -> None:
    kernel = make(spec)
    kernel.taps(100).square().sum().backward()
    for name, parameter in kernel.named_parameters():
        assert parameter.grad is not None, name
        assert parameter.grad.isfinite().all(), name


@pytest.mark.slow
@diagonal(("name", "causal"), [(name, causal) for name in KERNELS for causal in (True, False)])
def test_one_graph_makes_the_taps_of_every_length(name: str, causal: bool) -> None:
    torch.compiler.reset()
    kernel, backend = make({"name": name}, causal=causal), CompileCounterWithBackend("eager")
    compiled = torch.compile(kernel.taps, backend=backend, fullgraph=True)
    for length in (300, 450, 350):
        torch.testing.assert_close(compiled(length), kernel.taps(length), rtol=1e-4, atol=1e-5)
    assert backend.frame_count <= 2  # for the first length, and for any


STARTS = [
    ("ema", {"dimension": 4}, {"delta": 0.2, "alpha": 0.2, "beta": 0.02, "gamma": 1.0}),
    ("cema", {"dimension": 4}, {"delta": 0.2, "alpha": 0.2, "gamma": 0.5**0.5}),  # gamma has no imaginary part
    ("s4d", {"modes": 4}, {"amplitude": 0.5**0.5, "direct": 1.0, "rate": math.log(2)}),
    ("s4", {"modes": 4, "span": 64}, {"output": 0.5**0.5, "direct": 1.0, "rate": math.log(2)}),
    ("hyena", {"hidden": 16, "frequency": 14.0}, {"last": 0.25 / 3**0.5, "direct": 1.0, "frequency": 14.0}),
    ("warped", {"decay": 0.9, "filter_size": 16}, {"values": 0.19**0.5, "filter": 0.25}),
    ("sgconv", {"size": 8, "scales": 5}, {"decay": 0.5}),
    ("spectral", {"filters": 5, "span": 50}, {}),
    ("rpe", {}, {"network.hidden.0.weight": (3 * 64) ** -0.5}),
]


@pytest.mark.parametrize(("name", "options", "sizes"), STARTS)
@torch.no_grad()
def test_parameters_start_at_the_published_sizes(name: str, options: dict, sizes: dict[str, float]) -> None:
    torch.manual_seed(0)
    kernel = KERNELS[name](5000, **options)
    found = {each: float(attrgetter(each)(kernel).square().mean().sqrt()) for each in sizes}
    assert found == pytest.approx(sizes, rel=0.05)
    if name in ("s4d", "s4"):  # evenly in the logarithm
        steps = kernel.log_step.exp()
        assert 1e-3 <= steps.min() < 1.1e-3
        assert 0.09 < steps.max() <= 0.1
        assert float(kernel.log_step.mean()) == pytest.approx(math.log(0.01), rel=0.05)
    if name in ("sgconv", "spectral"):
        for causal in (True, False):
            energy = KERNELS[name](500, causal=causal, **options).taps(200).square().sum(1)
            assert float(energy.mean()) == pytest.approx(1, rel=0.15)


def test_diagonal_state_spaces_start_at_the_published_frequencies() -> None:
    lin, inv = (KERNELS["s4d"](1, modes=2, start=start).angle[0].tolist() for start in ("lin", "inv"))
    assert lin == pytest.approx([0, math.pi])
    assert inv == pytest.approx([4 / math.pi * 3, 4 / math.pi / 3])


def test_small_weights_give_the_same_kernel_in_float32_and_float64() -> None:
    """Weights may shrink by weight decay, and the epsilon of the norm must not matter."""
    kernel = RPEKernel(5, decay=1.0)
    with torch.no_grad():
        for name, parameter in kernel.named_parameters():
            if "last" not in name:
                parameter.mul_(0.03)
    single = kernel.taps(50).double()
    exact = kernel.double().taps(50)
    assert (single - exact).abs().max() < 2e-6 * exact.abs().max()


@every_kernel
def test_taps_are_float32_under_autocast_and_in_bfloat16(spec: dict, device: torch.device) -> None:
    """bfloat16 cannot represent lag 257, so neighbouring taps of a long kernel would be equal."""
    kernel = make(spec)
    wide = copy.deepcopy(kernel).double()
    exact = kernel.taps(400)
    lags = torch.arange(40)
    values = kernel.at(lags)
    with torch.autocast(device.type, torch.bfloat16):
        assert torch.equal(kernel.taps(400), exact)
        assert torch.equal(kernel.at(lags), values)
    low = kernel.bfloat16().taps(400)
    assert low.dtype == torch.float32
    torch.testing.assert_close(low, exact, rtol=0.1, atol=0.1)
    exact, double = exact.detach(), wide.taps(400)[:, : exact.shape[1]].detach()
    assert float((exact - double).abs().max()) < 1e-4 * float(double.abs().max())


@pytest.mark.covers("TNN §3.3, eq. 5 and table 10", "SKI-TNN §3.2.2 and alg. 1")
@pytest.mark.covers("MEGA §3.1, app. A and eq. 25", "TCNCA eq. 1", "Megalodon §3.1 and eq. 2")
@pytest.mark.parametrize("causal", [True, False])
@pytest.mark.parametrize("spec", FORMULAS, ids=str)
@torch.no_grad()
def test_kernels_equal_their_papers_formulas(spec: dict, causal: bool) -> None:
    """And between tokens, where a kernel has values there."""
    kernel = make(spec, causal=causal).double()
    for name, parameter in kernel.named_parameters():
        if name in ("direct", "gamma", "omega", "filter"):
            nn.init.normal_(parameter)
    taps = kernel.taps(100)
    expected = kernel_at(kernel, kernel.lags(100, taps.device))
    scale = float(expected.abs().max()) + 1e-300
    torch.testing.assert_close(taps / scale, expected / scale, rtol=0, atol=1e-10)
    if kernel.continuous:
        lags = torch.tensor([-9.5, -1.0, 0.0, 0.5, 17.25], dtype=torch.float64)[2 * causal :]
        torch.testing.assert_close(kernel.smooth_at(lags), smooth_at(kernel, lags), rtol=0, atol=1e-10)


@pytest.mark.covers("TNN table 8")
def test_inputs_of_table_8() -> None:
    integer = RPEKernel(2, inputs="integer", decay=1.0)
    normalized = RPEKernel(2, inputs="normalized", scale=1, decay=1.0)
    normalized.load_state_dict(integer.state_dict())
    torch.testing.assert_close(integer.taps(9), normalized.taps(9))
    waves = RPEKernel(2, inputs="sincos", hidden=4)._features(torch.tensor([0.0, 1.0]))
    expected = [[0, 0, 1, 1], [math.sin(1), math.sin(0.01), math.cos(1), math.cos(0.01)]]
    torch.testing.assert_close(waves, torch.tensor(expected))


@pytest.mark.covers("TNN table 10")
def test_learned_decay_starts_at_its_initial_value_and_trains() -> None:
    fixed, learned = RPEKernel(2, decay=0.8), RPEKernel(2, decay=0.8, learn_decay=True)
    learned.load_state_dict(fixed.state_dict(), strict=False)
    torch.testing.assert_close(learned.taps(30), fixed.taps(30), rtol=1e-4, atol=1e-6)
    assert isinstance(learned.decay_logit, nn.Parameter)
    assert learned.support is None


def test_the_horizon_is_where_the_decay_is_below_rounding() -> None:
    assert RPEKernel(2).support == 1833
    assert RPEKernel(2).double().support > 3000  # type: ignore[operator]
    assert RPEKernel(2, decay=1.0).support is None
    assert RPEKernel(2, hidden=1, layers=0).taps(10_000).shape == (2, 1833)
    filtered = make({"name": "warped", "decay": 0.01, "filter_size": 33}, causal=False)
    assert filtered.support == 17
    assert filtered.taps(60)[:, [0, -1]].all()


def test_a_slow_decay_of_a_free_kernel_does_not_depend_on_the_precision() -> None:
    kernel = FreeKernel(2, max_length=5000, decay=0.99999)
    taps, exact = kernel.taps(5000).double(), kernel.double().taps(5000)
    torch.testing.assert_close(taps, exact, rtol=1e-6, atol=0)


@pytest.mark.covers("TNN §3.2 and table 9")
def test_free_kernel_ends_at_its_table() -> None:
    kernel = FreeKernel(2, max_length=10, decay=1.0)
    assert torch.equal(kernel.taps(4), kernel.weight[:, :4])
    with pytest.raises(ValueError, match="10 tokens, got a sequence of 11"):
        kernel.taps(11)
    with pytest.raises(ValueError, match="no values between tokens"):
        kernel.smooth_at(torch.zeros(1))


@pytest.mark.parametrize(
    ("spec", "message"),
    [
        ({"name": "rpee"}, "did you mean 'rpe'"),
        ({"name": "rpe", "layer": 3}, "did you mean 'layers'"),
        ({"name": "rpe", "activation": "rellu"}, "did you mean 'relu'"),
        ({"name": "rpe", "decay": 1.5}, "decay"),
        ({"name": "rpe", "hidden": 3, "inputs": "sincos"}, "even"),
        ({"name": "rpe", "hidden": 0}, "hidden"),
        ({"name": "frequency", "inputs": "sin"}, "known: cos, omega"),
        ({"name": "frequency", "grid": 0}, "grid"),
        *(({"name": "warped", "decay": decay}, "decay") for decay in (0.0, 1.0)),
        ({"name": "warped", "points": 0}, "points"),
        ({"name": "free", "max_length": 0}, "max_length"),
        ({"name": "modal", "modes": 0}, "modes must be an integer of at least 1, got 0"),
        ({"name": "ema", "dimension": 0}, "dimension must be an integer of at least 1, got 0"),
        ({"name": "s4d", "start": "lag"}, "unknown start: 'lag'"),
        ({"name": "s4d", "rule": "foh"}, "unknown rule: 'foh'"),
        ({"name": "dss", "normalization": "max"}, "unknown normalization: 'max'"),
        ({"name": "s4", "span": 7}, "span must be even, got 7"),
        ({"name": "sgconv", "scales": 0}, "scales must be"),
        ({"name": "hyena", "span": 1}, "span must be at least 2, got 1"),
        ({"name": "hyena", "frequency": 0.0}, "frequency must be above 0, got 0.0"),
        ({"name": "hyena", "shift": -0.1}, "shift must be a number of at least 0, got -0.1"),
        ({"name": "spectral", "filters": 9, "span": 8}, "filters must be at most span"),
        ({"name": "spectral", "span": 64, "filters": 40}, "a span of 64 has at most 25 filters"),
        ({"layers": 3}, "'name'"),
    ],
)
def test_wrong_specs_are_named(spec: dict, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        make(spec)


@every_direction
def test_values_at_chosen_lags_equal_the_taps(spec: dict, causal: bool) -> None:
    kernel = make(spec, causal=causal).double()
    taps = kernel.taps(60)
    lags = torch.tensor([7, 0, 39, 40]) if causal else torch.tensor([7, -39, 0, 39])
    lags = lags[lags.abs() < taps.shape[1] // (1 if causal else 2) + causal]
    inside = lags + (0 if causal else taps.shape[1] // 2)
    torch.testing.assert_close(kernel.at(lags), taps[:, inside.clamp(max=taps.shape[1] - 1)], rtol=0, atol=1e-13)
    if causal:
        assert kernel.at(torch.tensor([-1, -5])).count_nonzero() == 0
