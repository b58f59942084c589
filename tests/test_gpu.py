"""What differs on a GPU: all channels at once, other libraries' FFTs. Run by `make test-gpu` where there is one."""

from __future__ import annotations

import pytest
import torch

from lagwise.mixers import MIXERS, ToeplitzMixer
from lagwise.models import LagwiseConfig, LagwiseForCausalLM
from lagwise.ops import EXACT_ENGINES, toeplitz_product, toeplitz_reference

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="no GPU"),
]


@pytest.mark.parametrize("engine", EXACT_ENGINES)
@pytest.mark.parametrize("causal", [True, False])
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16])
def test_engines(engine: str, causal: bool, dtype: torch.dtype) -> None:
    x = torch.randn(2, 1021, 5, device="cuda", dtype=dtype, requires_grad=True)
    taps = torch.randn(5, 257, device="cuda", dtype=torch.float64 if dtype == torch.float64 else torch.float32)
    taps.requires_grad_()
    y = toeplitz_product(x, taps, causal=causal, engine=engine)
    exact = toeplitz_reference(x.double(), taps.double(), causal=causal)
    tolerance = {torch.float64: 1e-12, torch.float32: 1e-5, torch.bfloat16: 2e-2}[dtype]
    for ours, theirs in zip(
        (y, *torch.autograd.grad(y.float().sum(), (x, taps))),
        (exact, *torch.autograd.grad(exact.sum(), (x, taps))),
        strict=True,
    ):
        assert (ours.double() - theirs.double()).norm() <= tolerance * theirs.double().norm()


@pytest.mark.parametrize(
    "options",
    [
        {"kernel": {"name": "frequency"}},
        {"kernel": {"name": "frequency", "inputs": "omega"}, "causal": False},
        {"kernel": {"name": "warped"}, "engine": "ski"},
        {"kernel": {"name": "warped"}, "engine": "ski", "causal": False},
    ],
    ids=str,
)
def test_operators_equal_the_cpus(options: dict) -> None:
    layer = ToeplitzMixer(16, **options)
    x = torch.randn(2, 700, 16)
    torch.testing.assert_close(layer.cuda()(x.cuda()).cpu(), layer.cpu()(x), rtol=1e-3, atol=1e-4)


@pytest.mark.parametrize("name", [name for name, mixer in MIXERS.items() if mixer.streams and True in mixer.directions])
def test_mixers_stream(name: str) -> None:
    mixer = MIXERS[name](16).double().cuda()
    x = torch.randn(2, 200, 16, dtype=torch.float64, device="cuda")
    first, state = mixer.prefill(x[:, :150], mixer.init_state(2))
    rest, _ = mixer.prefill(x[:, 150:], state)
    torch.testing.assert_close(torch.cat([first, rest], 1), mixer(x), rtol=0, atol=1e-9)


def test_generation_equals_recomputing() -> None:
    model = LagwiseForCausalLM(LagwiseConfig(hidden_size=32, num_hidden_layers=2)).cuda().eval()
    ids = torch.randint(0, 256, (2, 40), device="cuda")
    results = [
        model.generate(ids, do_sample=False, max_new_tokens=20, min_new_tokens=20, use_cache=use)
        for use in (True, False)
    ]
    assert torch.equal(*results)
