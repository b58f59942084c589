"""What every kernel promises, and the published options of the relative position encoder."""

from __future__ import annotations

import math

import pytest
import torch
from torch import nn

from lagwise.kernels import KERNELS, FreeKernel, LagKernel, RPEKernel
from lagwise.tables import build

VARIANTS = [
    *({"name": name} for name in KERNELS),
    *({"name": "rpe", "inputs": inputs} for inputs in ("normalized", "sincos")),
    *({"name": "rpe", "decay": decay} for decay in (1.0, 0.9, 0.0)),
    *({"name": "rpe", "activation": activation} for activation in ("silu", "gelu", "tanh", "none")),
    {"name": "rpe", "learn_decay": True},
    {"name": "rpe", "layers": 0, "hidden": 4},
    {"name": "free", "decay": 1.0},
]
every_kernel = pytest.mark.parametrize("spec", VARIANTS, ids=str)


def make(spec: dict, *, causal: bool = True) -> LagKernel:
    return build(KERNELS, spec, 5, what="kernel", causal=causal)


@every_kernel
@pytest.mark.parametrize("length", [1, 2, 63, 200])
def test_shapes_and_sides(spec: dict, length: int) -> None:
    causal, both = make(spec), make(spec, causal=False)
    reach = min(length, causal.horizon() or length)
    assert causal.taps(length).shape == (5, reach)
    assert both.taps(length).shape == (5, 2 * reach - 1)
    assert causal.lags(length, torch.device("cpu")).tolist() == list(range(reach))


@every_kernel
@pytest.mark.parametrize("causal", [True, False])
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


@every_kernel
def test_taps_are_float32_under_autocast_and_in_bfloat16(spec: dict) -> None:
    """Lag 257 does not exist in bfloat16; neighbouring taps of a long kernel would come out equal."""
    kernel = make(spec)
    exact = kernel.taps(400)
    with torch.autocast("cpu", torch.bfloat16):
        assert torch.equal(kernel.taps(400), exact)
    low = kernel.bfloat16().taps(400)
    assert low.dtype == torch.float32
    torch.testing.assert_close(low, exact, rtol=0.1, atol=0.1)


def test_rpe_is_the_published_formula() -> None:
    """TNN §3.3 and eq. 5, written out lag by lag."""
    kernel = RPEKernel(3, hidden=4, layers=2, decay=0.9).double()

    def tap(lag: int) -> torch.Tensor:
        h = kernel.first.weight[:, 0] * lag + kernel.first.bias
        for layer in (*kernel.hidden, kernel.last):
            h = torch.relu(h / (h.square().mean() + torch.finfo(h.dtype).eps).sqrt())
            h = layer.weight @ h + layer.bias
        return 0.9**lag * h

    expected = torch.stack([tap(lag) for lag in range(30)], dim=1)
    torch.testing.assert_close(kernel.taps(30), expected, rtol=0, atol=1e-12)


def test_inputs_of_table_8() -> None:
    integer = RPEKernel(2, inputs="integer", decay=1.0)
    normalized = RPEKernel(2, inputs="normalized", scale=1, decay=1.0)
    normalized.load_state_dict(integer.state_dict())
    torch.testing.assert_close(integer.taps(9), normalized.taps(9))
    waves = RPEKernel(2, inputs="sincos", hidden=4)._features(torch.tensor([0.0, 1.0]))
    expected = [[0, 0, 1, 1], [math.sin(1), math.sin(0.01), math.cos(1), math.cos(0.01)]]
    torch.testing.assert_close(waves, torch.tensor(expected))


def test_learned_decay_starts_where_told_and_moves() -> None:
    fixed, learned = RPEKernel(2, decay=0.8), RPEKernel(2, decay=0.8, learn_decay=True)
    learned.load_state_dict(fixed.state_dict(), strict=False)
    torch.testing.assert_close(learned.taps(30), fixed.taps(30), rtol=1e-4, atol=1e-6)
    assert isinstance(learned.decay_logit, nn.Parameter)
    assert learned.horizon() is None


def test_horizon_is_where_the_decay_meets_rounding() -> None:
    assert RPEKernel(2).horizon() == 1833
    assert RPEKernel(2).double().horizon() > 3000  # type: ignore[operator]
    assert RPEKernel(2, decay=1.0).horizon() is None
    assert RPEKernel(2).taps(10_000).shape == (2, 1833)


def test_free_kernel_ends_at_its_table() -> None:
    kernel = FreeKernel(2, max_length=10, decay=1.0)
    assert torch.equal(kernel.taps(4), kernel.weight[:, :4])
    with pytest.raises(ValueError, match="10 tokens, got a sequence of 11"):
        kernel.taps(11)


@pytest.mark.parametrize(
    ("spec", "message"),
    [
        ({"name": "rpee"}, "did you mean 'rpe'"),
        ({"name": "rpe", "layer": 3}, "did you mean 'layers'"),
        ({"name": "rpe", "activation": "rellu"}, "did you mean 'relu'"),
        ({"name": "rpe", "decay": 1.5}, "decay"),
        ({"name": "rpe", "hidden": 3}, "even"),
        ({"name": "free", "max_length": 0}, "max_length"),
        ({"layers": 3}, "'name'"),
    ],
)
def test_wrong_specs_are_named(spec: dict, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        make(spec)
