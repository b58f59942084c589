"""Special properties of the mixers of other long-sequence models; tests/fuzz compares them with their formulas."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from every_mixer import CHANNELS, make, noise
from family_references import FAMILY

from lagwise.mixers import MIXERS
from lagwise.models import LagwiseConfig, LagwiseForCausalLM, LagwiseForMaskedLM
from lagwise.ops import Layout
from lagwise_papers.family import GFNetMixer
from lagwise_papers.family.diagonal_scan import diagonal_scan


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
def test_a_scan_has_exact_phases_over_long_texts(dtype: torch.dtype) -> None:
    """Phases up to twelve thousand radians, against powers in float64."""
    log_decay, angle = torch.tensor([-1e-5, -0.5, -3.0], dtype=dtype), torch.tensor([3.1, 0.01, 2.0], dtype=dtype)
    x = torch.zeros(1, 4000, 3, dtype=dtype.to_complex())
    x[:, 0] = 1
    y, last = diagonal_scan(x, log_decay, angle)
    powers = (torch.complex(log_decay.double(), angle.double()) * torch.arange(4000)[:, None]).exp()
    tolerance = 1e-10 if dtype == torch.float64 else 1e-5
    torch.testing.assert_close(y[0].to(powers.dtype), powers, rtol=0, atol=tolerance)
    assert torch.equal(last, y[:, -1])


def test_gradients_of_a_scan_keep_their_digits_over_long_texts() -> None:
    """Those of the poles are sums over tokens; with a frame that rotates, terms would grow with the text and cancel."""
    torch.manual_seed(0)
    length = 20_000
    found = {}
    for dtype in (torch.float64, torch.float32):
        torch.manual_seed(1)
        x, weight = (torch.randn(1, length, 2, dtype=torch.complex64).to(dtype.to_complex()) for _ in range(2))
        log_decay, angle = torch.tensor([-0.5, -0.01]), torch.tensor([0.3, 2.0])
        poles = [each.to(dtype).requires_grad_() for each in (log_decay, angle)]
        y, last = diagonal_scan(x, *poles)
        loss = (y * weight.conj()).real.sum() + last.abs().sum()
        found[dtype] = torch.autograd.grad(loss, poles)
    for ours, exact in zip(found[torch.float32], found[torch.float64], strict=True):
        torch.testing.assert_close(ours.double(), exact, rtol=3e-5, atol=0)


def test_favor_approximates_softmax_attention() -> None:
    """With many features. Mixers with equal seeds have equal features, which are never redrawn."""
    mixer, other = (make("linear_attention", {"feature_map": "favor", "heads": 2, "count": 4096}) for _ in range(2))
    assert torch.equal(mixer.random, other.random)
    softmax = make("attention", {"heads": 2, "position": "none"})
    softmax.load_state_dict({k: v for k, v in mixer.state_dict().items() if k != "random"})
    x = 0.5 * noise(1, 50)
    assert (mixer(x) - softmax(x)).norm() < 0.02 * softmax(x).norm()


@pytest.mark.parametrize("name", ["gmlp", "synthesizer"])
def test_mixers_of_fixed_length_refuse_longer_texts(name: str) -> None:
    """Padding does not count."""
    mixer = make(name, {"max_length": 20})
    mask = torch.arange(25)[None] >= 5
    torch.testing.assert_close(mixer(noise(1, 25), mask=mask).shape, (1, 25, 16))
    with pytest.raises(ValueError, match=r"20 .*got 21.*set option max_length"):
        mixer(noise(1, 21))
    with pytest.raises(ValueError, match="does not stream: it has no state; run it on whole sequences"):
        mixer.init_state(1)
    with pytest.raises(ValueError, match="grid is 6 x 8, got 7 x 2; set options height and width"):
        GFNetMixer(CHANNELS, height=6, width=8)(noise(1, 14, torch.float32), layout=Layout(grid=(7, 2)))


@pytest.mark.parametrize(
    ("name", "options"),
    [
        *(("hyena", {"order": 0}), ("hyena", {"short": 0}), ("s5", {"modes": 0})),
        *(("short_conv", {"kernel_size": 4, "causal": False}), ("linear_attention", {"heads": 3})),
        *(("linear_attention", {"feature_map": "relu"}), ("lru", {"least_radius": 1.0}), ("lru", {"most_angle": 7.0})),
        *(("gss", {"contraction": 0.01}), ("flash", {"query_size": 3}), ("flash", {"chunk": 0})),
        *(("gmlp", {"matrix": "circulant"}), ("gmlp", {"expansion": 0.01}), ("synthesizer", {"form": "factored"})),
        *(("long_short", {"rank": 0}), ("relative_attention", {"memory": 0}), ("afno", {"heads": 3})),
        *(("afno", {"threshold": -1.0}), ("afno2d", {"activation": "sine"}), ("caracal", {"short": 0})),
        *(("caracal", {"heads": 3}), ("toeplitz_heads", {"heads": 3})),
    ],
    ids=str,
)
def test_wrong_options_are_named(name: str, options: dict[str, Any]) -> None:
    option = next(iter(options))
    with pytest.raises(ValueError, match=option.replace("_", "[_ ]")):
        MIXERS[name](16, **options)


OPTIONS: dict[str, dict[str, Any]] = {"linear_attention": {"heads": 2, "feature_map": "favor"}}
SEQUENCES = [name for name in FAMILY if not MIXERS[name].needs_grid]


@pytest.mark.parametrize("name", SEQUENCES)
def test_a_model_trains_is_saved_and_generates(name: str, tmp_path: Path) -> None:
    mixer = {"name": name, **OPTIONS.get(name, {})}
    causal = True in MIXERS[name].directions
    kind = LagwiseForCausalLM if causal else LagwiseForMaskedLM
    fields = {"vocab_size": 11, "hidden_size": 8, "num_hidden_layers": 1, "pad_token_id": 1, "causal": causal}
    model = kind(LagwiseConfig(block={"name": "prenorm", "token_mixer": mixer}, **fields))
    ids = torch.randint(2, 11, (2, 20))
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    losses = []
    for _ in range(3):
        loss = model(ids, labels=ids).loss
        loss.backward()
        assert all(p.grad is not None and p.grad.isfinite().all() for p in model.parameters())
        optimizer.step()
        optimizer.zero_grad()
        losses.append(loss.item())
    assert losses[2] < losses[0]
    model.eval().save_pretrained(tmp_path)
    again = kind.from_pretrained(tmp_path).eval()
    with torch.no_grad():
        assert torch.equal(again(ids).logits, model(ids).logits)
    if not causal:
        return
    options = {"do_sample": False, "max_new_tokens": 6, "attention_mask": torch.ones_like(ids)}
    again = again.double()
    said = again.generate(ids, use_cache=False, **options)
    assert said.shape == (2, 26)
    assert torch.equal(again.generate(ids, **options), said)
    if not MIXERS[name].streams:
        with pytest.raises(ValueError, match=r"does not stream.* whole sequences"):
            again(ids, use_cache=True)
