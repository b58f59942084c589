"""Models in continuous time at another sampling rate than that of their training."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from every_mixer import CONTINUOUS

from lagwise.kernels import KERNELS
from lagwise.mixers import MIXERS
from lagwise.models import LagwiseConfig, LagwiseForTokenClassification, StreamingClassifier, load_model
from lagwise.tables import build


def make(mixer: dict[str, Any], rate: float = 1.0, *, layers: int = 1, **fields: Any) -> Any:
    torch.manual_seed(0)
    block = {"name": "prenorm", "token_mixer": mixer, "channel_mixer": {"name": "none"}}
    config = {"hidden_size": 6, "num_hidden_layers": layers, "num_labels": 3, "initializer_range": 0.5, **fields}
    return (
        LagwiseForTokenClassification(LagwiseConfig(block=block, inputs="values", rate=rate, **config)).double().eval()
    )


@pytest.mark.sampled(3)
@pytest.mark.parametrize("name", sorted({*CONTINUOUS} - {"bilinear"}))  # which is not exact
@pytest.mark.parametrize("half", [True, False])
def test_a_held_signal_gives_the_same_at_half_the_rate(name: str, half: bool) -> None:
    """Exactly, for one layer, at the end of each longer sample."""
    slow, fast = (make(CONTINUOUS[name], rate) for rate in ((0.5, 1.0) if half else (1.0, 2.0)))
    fast.load_state_dict(slow.state_dict())
    x = torch.randn(2, 60, 1, dtype=torch.float64)
    with torch.no_grad():
        expected = fast(input_values=x.repeat_interleave(2, 1)).logits[:, 1::2]
        actual = slow(input_values=x).logits
    torch.testing.assert_close(actual, expected, rtol=0, atol=1e-6)
    assert expected.std(1).min() > 1e-4


def test_rows_of_several_rates_with_much_padding() -> None:
    model, times = make(CONTINUOUS["gtu"]), torch.tensor([[1.0], [2.0], [1.0]], dtype=torch.float64)
    x, mask = torch.randn(3, 60, 1, dtype=torch.float64), torch.ones(3, 60, dtype=torch.long)
    lengths = (60, 9, 5)
    for row, length in enumerate(lengths):
        mask[row, length:] = 0
    with torch.no_grad():
        actual = model(input_values=x, attention_mask=mask, token_time=times).logits
        for row, length in enumerate(lengths):
            alone = model(input_values=x[row : row + 1, :length], token_time=times[row : row + 1]).logits
            torch.testing.assert_close(actual[row : row + 1, :length], alone, rtol=0, atol=1e-9)


@pytest.mark.parametrize("rate", [0.5, 2.0])
def test_a_model_at_another_rate_is_converted_to_state_spaces_at_that_rate(rate: float) -> None:
    model, x = make(CONTINUOUS["kernel ema"], rate), torch.randn(2, 200, 1, dtype=torch.float64)
    converted = model.to_recurrent(1e-4, progress=False)
    assert converted.config.rate == rate
    with torch.no_grad():
        expected, actual = (each(input_values=x).logits for each in (model, converted))
    assert (actual - expected).abs().max() < 1e-3 * expected.abs().max()


@pytest.mark.sampled(3)
@pytest.mark.parametrize("name", CONTINUOUS)
def test_a_saved_model_is_loaded_for_a_rate_and_streams_there(name: str, tmp_path: Path, device: torch.device) -> None:
    model = make(CONTINUOUS[name], layers=2).float()
    model.save_pretrained(tmp_path)
    loaded, _ = load_model(tmp_path, device=device, rate=0.5)
    assert loaded.config.rate == 0.5
    x = torch.randn(90, 1)
    with torch.no_grad():
        whole = loaded(input_values=x[None]).logits[0].softmax(-1)
        other = model(input_values=x[None]).logits[0].softmax(-1)
    streamed = torch.cat([StreamingClassifier(loaded).push(x[:37]), torch.zeros(0, 3)])
    torch.testing.assert_close(streamed, whole[:37], rtol=0, atol=1e-5)
    assert (whole - other).abs().max() > 1e-4
    loaded.save_pretrained(tmp_path / "half")
    again, _ = load_model(tmp_path / "half", device=device)
    with torch.no_grad():
        torch.testing.assert_close(again(input_values=x[None]).logits[0].softmax(-1), whole, rtol=0, atol=1e-6)


def test_every_part_says_whether_it_takes_another_rate() -> None:
    """A part that counts tokens is refused by its name."""
    continuous = {name for name in KERNELS if build(KERNELS, {"name": name}, 16, what="kernel", causal=True).any_rate}
    assert continuous == {"s4d", "dss", "cema", "modal", "ema"}
    causal = [name for name in MIXERS if True in MIXERS[name].directions]
    named = {name for name in causal if build(MIXERS, {"name": name}, 16, what="mixer", causal=True).any_rate}
    assert named == {"toeplitz", "gtu", "gss", "ema", "lru", "s5"}


@pytest.mark.parametrize(
    ("mixer", "fields", "message"),
    [
        ({"name": "tcn"}, {}, "layers.0.block.token_mixer is a TCNMixer, which counts samples"),
        ({"name": "gtu"}, {}, "token_mixer.* is a RPEKernel, which counts samples"),
        ({"name": "attention", "heads": 2}, {}, "is a AttentionMixer"),
        ({"name": "toeplitz", "kernel": {"name": "dss", "normalization": "softmax"}}, {}, "is a DSSKernel"),
        ({"name": "toeplitz", "kernel": {"name": "ema", "truncation": 9}}, {}, "is a EMAKernel"),
        ({"name": "ema", "truncation": 9}, {}, "is a EMAKernel"),
        ({"name": "lru"}, {"inputs": {"name": "values", "stride": 4}}, "reads 4 samples at once"),
        ({"name": "lru"}, {"inputs": "tokens"}, "rate is that of samples"),
        ({"name": "lru"}, {"position_embedding": "sinusoidal"}, "needs position_embedding 'none'"),
        ({"name": "lru"}, {"norm": {"name": "timestep", "groups": 2}}, "is a TimestepNorm"),
    ],
)
def test_parts_that_count_samples_are_refused_by_name(
    mixer: dict[str, Any], fields: dict[str, Any], message: str
) -> None:
    fields = {"inputs": "values", **fields}
    block = {"name": "prenorm", "token_mixer": mixer}
    options = {"hidden_size": 6, "num_hidden_layers": 1, "block": block, **fields}
    LagwiseForTokenClassification(LagwiseConfig(**options))
    with pytest.raises(ValueError, match=message):
        LagwiseForTokenClassification(LagwiseConfig(**options, rate=0.5))
    with pytest.raises(ValueError, match="rate must be greater than 0"):
        LagwiseConfig(**options, rate=0.0)
