"""Models whose lag kernels are converted to state spaces."""

from __future__ import annotations

from inspect import signature
from pathlib import Path
from typing import Any

import pytest
import torch

from lagwise.kernels import KERNELS, ModalKernel
from lagwise.mixers import MIXERS, ToeplitzMixer
from lagwise.models import LagwiseConfig, LagwiseForCausalLM, LagwiseModel, recurrent_form
from lagwise.models.conversion import KERNEL_MIXERS

_RPE = {"name": "rpe", "layers": 1, "hidden": 8, "decay": 0.9}
_GTU = {"name": "gtu", "expansion": 1}
_GSS = {"name": "gss", "expansion": 1, "contraction": 1}


def _prenorm(**token_mixer: Any) -> dict[str, Any]:
    return {"name": "prenorm", "token_mixer": token_mixer}


BLOCKS: dict[str, dict[str, Any]] = {
    "gtu": _prenorm(**_GTU, kernel=_RPE),
    "direct engine": _prenorm(name="toeplitz", kernel=_RPE, engine="direct"),
    "ski": _prenorm(**_GTU, kernel={"name": "warped", "decay": 0.9}, engine="ski"),
    "mega": {"name": "mega", "memory": {"name": "toeplitz", "kernel": _RPE}, "chunk": 16},
    "hyena": _prenorm(name="hyena", kernel=_RPE),
    "gss": _prenorm(**_GSS, kernel=_RPE),
    "chain": {
        "name": "chain",
        "blocks": [
            _prenorm(**_GTU, kernel=_RPE),
            _prenorm(**_GSS),
            _prenorm(name="toeplitz", kernel={"name": "s4d", "modes": 3}),
            _prenorm(name="ema"),
        ],
    },
}


def model(block: dict[str, Any] | None, **fields: Any) -> LagwiseForCausalLM:
    torch.manual_seed(3)
    config = LagwiseConfig(vocab_size=30, hidden_size=8, num_hidden_layers=2, block=block, **fields)
    return LagwiseForCausalLM(config).double().eval()


@pytest.mark.sampled(3)
@pytest.mark.parametrize("name", BLOCKS)
def test_a_converted_model_has_close_logits_and_streams_exactly(name: str) -> None:
    original = model(BLOCKS[name])
    ids = torch.randint(30, (2, 200))
    tolerance = {"ski": 1e-2, "hyena": 1e-4, "gss": 1e-4}.get(name, 1e-5)
    converted, reductions = recurrent_form(original, tolerance)
    with torch.no_grad():
        before, after = original(ids).logits, converted(ids).logits
        error = (before - after).abs().max() / before.abs().max()
        assert 0 < error < 5 * tolerance
        out = converted(ids[:, :77], use_cache=True)
        streamed = [out.logits]
        for token in ids[:, 77:].split(1, 1):
            out = converted(token, past_key_values=out.past_key_values, use_cache=True)
            streamed.append(out.logits)
    torch.testing.assert_close(torch.cat(streamed, 1), after, rtol=0, atol=1e-9)
    assert len(reductions) == (4 if name == "hyena" else 2)  # a layer has two filters
    assert all((r.error <= r.bound).all() for r in reductions.values())
    assert not any(isinstance(m, ToeplitzMixer) and not m.kernel.recurrent for m in converted.modules())
    assert original.config.block == BLOCKS[name]  # the old one is as it was


def test_every_mixer_with_a_kernel_is_converted() -> None:
    """Mixers are found by their kernel."""
    causal = {name: mixer for name, mixer in MIXERS.items() if True in mixer.directions}
    with_kernel = {
        name: mixer(8, causal=True) for name, mixer in causal.items() if "kernel" in signature(mixer).parameters
    }
    found = {}
    for name, mixer in with_kernel.items():
        part = next(m for m in mixer.modules() if isinstance(m, ToeplitzMixer))
        own = getattr(part.kernel, "kernel", part.kernel)  # of several channels
        found[name] = next(key for key, kernel in KERNELS.items() if type(own) is kernel)
    assert found == KERNEL_MIXERS


def test_a_kernel_of_infinite_support_is_truncated() -> None:
    original = model(_prenorm(**_GTU, kernel={**_RPE, "decay": 1}))
    converted, _ = recurrent_form(original, 0.3, lags=60, max_order=60)
    assert converted.model.length_limit is None


def test_models_that_cannot_be_converted_are_refused() -> None:
    noise = _prenorm(name="toeplitz", kernel={"name": "free", "max_length": 300})
    with pytest.raises(ValueError, match=r"layers.0.*channel \d+ needs .* states for tolerance 0.001"):
        model(noise).to_recurrent()
    with pytest.raises(ValueError, match="no lag kernel to convert"):
        model(_prenorm(name="ema")).to_recurrent()
    with pytest.raises(ValueError, match="no lag kernel to convert"):
        model(BLOCKS["gtu"]).to_recurrent().to_recurrent()
    with pytest.raises(ValueError, match="tolerance must be"):
        model(BLOCKS["gtu"]).to_recurrent(2.0)


def test_kernels_stay_in_float32_in_a_bfloat16_model(tmp_path: Path) -> None:
    """Rounding a pole to bfloat16 would change the kernel."""
    original = model(BLOCKS["gtu"]).float()
    exact = [m.taps(100).detach() for m in original.to_recurrent(1e-4).modules() if isinstance(m, ModalKernel)]
    original.to_recurrent(1e-4).save_pretrained(tmp_path)
    for halved in (
        original.to(torch.bfloat16).to_recurrent(1e-4),
        LagwiseForCausalLM.from_pretrained(tmp_path, dtype=torch.bfloat16),
        LagwiseForCausalLM.from_pretrained(tmp_path).to(torch.bfloat16),
    ):
        kernels = [m for m in halved.modules() if isinstance(m, ModalKernel)]
        assert all(p.dtype == torch.float32 for kernel in kernels for p in kernel.parameters())
        assert halved.model.embed_tokens.weight.dtype == torch.bfloat16
        tolerance = 2e-2 if halved.dtype == torch.bfloat16 and halved.name_or_path == "" else 1e-6
        for kernel, wanted in zip(kernels, exact, strict=True):
            torch.testing.assert_close(kernel.taps(100), wanted, rtol=tolerance, atol=tolerance * 5)
        halved(torch.randint(30, (1, 20)))


@pytest.mark.slow
def test_encoders_and_defaults_are_converted_too() -> None:
    torch.manual_seed(0)
    decoder = LagwiseModel(LagwiseConfig(hidden_size=8, num_hidden_layers=1, block=BLOCKS["gtu"]))
    assert isinstance(decoder.to_recurrent(1e-1), LagwiseModel)
    spec = {"name": "prenorm", "token_mixer": None}
    assert model(spec).to_recurrent(1e-1).config.block["token_mixer"]["kernel"]["name"] == "modal"
    with pytest.raises(ValueError, match="lags must be an integer"):
        recurrent_form(model(BLOCKS["gtu"]), lags=0)


@pytest.mark.parametrize(
    "mixer",
    [
        {"name": "lru"},
        {"name": "s5"},
        *({"name": "gtu", "kernel": {"name": name}} for name in ("modal", "cema", "s4d", "dss", "s4")),
    ],
    ids=lambda mixer: mixer.get("kernel", mixer)["name"],
)
def test_poles_stay_in_float32_in_a_model_loaded_in_lower_precision(mixer: dict[str, Any], tmp_path: Path) -> None:
    config = LagwiseConfig(hidden_size=8, num_hidden_layers=1, block=_prenorm(**mixer))
    LagwiseForCausalLM(config).save_pretrained(tmp_path)
    model = LagwiseForCausalLM.from_pretrained(tmp_path, dtype=torch.bfloat16)
    kept = [(part, name) for part in model.modules() for name in getattr(part, "kept_in_float32", ())]
    assert len(kept) >= 3
    assert all(getattr(part, name).dtype == torch.float32 for part, name in kept)
    assert sum(p.dtype == torch.bfloat16 for p in model.parameters()) > 5
