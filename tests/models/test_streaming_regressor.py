"""Models that give a signal for a signal: their filters, and streams that equal the whole."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from torch import Tensor

from lagwise.models import LagwiseConfig, LagwiseForSignalRegression, StreamingRegressor
from lagwise.models.signal_stream import whole_output

MIXERS: dict[str, dict[str, Any]] = {
    "tcn": {"name": "tcn", "kernel_size": 3, "depth": 3, "norm": "rms"},
    "ema": {"name": "ema", "dimension": 4},
    "s4d": {"name": "toeplitz", "kernel": {"name": "s4d", "modes": 4}},
}
SCALE = {"mean": [0.5, -2.0], "std": [2.0, 0.5]}
SHAPES = {  # features in and out, stride, delay, window
    "two channels": (2, 2, 3, 7, 24),
    "two to one": (2, 1, 3, 7, 24),
    "virtual sensors": (2, 3, 4, 5, 12),
    "no filters": (2, 3, 4, 5, 0),
    "no delay": (1, 1, 4, 0, 9),
    "a delay of more than the chunks": (1, 1, 2, 30, 32),
}


def make(mixer: str = "tcn", shape: str = "two channels", *, fresh: bool = False, **fields: Any) -> Any:
    given, made, stride, delay, window = SHAPES[shape]
    scale = [{name: values[:count] * (count <= 2) or None for name, values in SCALE.items()} for count in (given, made)]
    config = {
        "hidden_size": 8,
        "num_hidden_layers": 2,
        "block": {"name": "prenorm", "token_mixer": MIXERS[mixer]},
        "inputs": {"name": "values", "features": given, "stride": stride, **scale[0]},
        "outputs": {"features": made, "delay": delay, "window": window, **scale[1]},
        **fields,
    }
    torch.manual_seed(0)
    model = LagwiseForSignalRegression(LagwiseConfig(**config)).double().eval()
    with torch.no_grad():
        for part in () if fresh else model.modules():
            if isinstance(part, torch.nn.Linear):
                part.weight.normal_(std=0.4)
    return model


def signal(model: Any, length: int = 203, *, gaps: bool = False) -> Tensor:
    size, random = (length, model.config.inputs["features"]), torch.Generator().manual_seed(1)
    x = torch.randn(size, dtype=torch.float64, generator=random, device="cpu").to(model.device)
    if gaps:
        x[50:63, 0] = math.nan
        x[100] = math.nan
        x[-1, -1] = math.nan
    return x


def streamed(model: Any, x: Tensor, *, most: int = 13, **options: Any) -> Tensor:
    stream, parts, start = StreamingRegressor(model, **options), [], 0
    while start < len(x):
        size = int(torch.randint(0, most, ()))
        parts.append(stream.push(x[start : start + size]))
        start += size
        pushed = min(start, len(x))
        assert stream.samples == pushed
        assert sum(map(len, parts)) >= pushed - stream.latency
    return torch.cat([*parts, stream.finish()])


@pytest.mark.sampled(3)
@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("mixer", MIXERS)
def test_any_chunks_give_the_output_for_the_whole_signal(mixer: str, shape: str) -> None:
    model = make(mixer, shape)
    for gaps in (False, True):
        x = signal(model, gaps=gaps)
        whole = whole_output(model, x)
        assert whole.shape == (203, SHAPES[shape][1])
        assert whole.isfinite().all()
        assert whole.std(0).min() > 1e-3
        for options in ({}, {"most": 2}, {"most": 150, "chunk": 5}):
            torch.testing.assert_close(streamed(model, x, **options), whole, rtol=0, atol=1e-9)
    single = model.float()
    scale = float(whole.std())
    torch.testing.assert_close(streamed(single, x), whole.float(), rtol=0, atol=1e-5 * max(1, scale))


def test_the_output_of_a_sample_depends_on_the_delay_and_no_later_sample() -> None:
    model = make()
    x = signal(model, 120)
    other = x.clone()
    other[80:] += 1
    y, z = whole_output(model, x), whole_output(model, other)
    same = (y == z).all(1)
    outputs = model.outputs
    assert same[: 80 - outputs.delay - outputs.stride + 1].all()
    assert not same[80 - outputs.delay + outputs.stride :].any()


@pytest.mark.parametrize(
    ("shape", "causal"), [("two channels", True), ("two to one", True), ("no delay", True), ("no delay", False)]
)
def test_filters_of_a_new_model_give_its_input(shape: str, causal: bool) -> None:
    """With gains of 1, from which a new model differs little."""
    model = make(shape=shape, fresh=True, causal=causal)
    with torch.no_grad():
        model.outputs.gain.weight.zero_()
    x = signal(model)
    torch.testing.assert_close(whole_output(model, x), x[:, : SHAPES[shape][1]], rtol=0, atol=1e-6)


def test_a_missing_sample_is_the_mean_beside_what_its_mask_adds() -> None:
    model = make()
    x = signal(model, gaps=True)
    with torch.no_grad():
        model.missing.weight.zero_()
    filled = torch.where(x.isnan(), torch.tensor(SCALE["mean"], dtype=x.dtype), x)
    torch.testing.assert_close(whole_output(model, x), whole_output(model, filled), rtol=0, atol=1e-12)
    with torch.no_grad():
        model.missing.weight.normal_()
    assert (whole_output(model, x) - whole_output(model, filled)).abs().max() > 1e-3


@pytest.mark.parametrize("causal", [True, False])
def test_padding_has_no_effect(causal: bool) -> None:
    model = make(shape="no delay", causal=causal)
    x = signal(model, 40)[None]
    padded = torch.cat([x, torch.full((1, 16, 1), 7.0, dtype=x.dtype)], 1)
    mask = torch.tensor([[1] * 10 + [0] * 4])
    with torch.no_grad():
        alone, beside = model(x).regression_outputs, model(padded, attention_mask=mask).regression_outputs
    torch.testing.assert_close(beside[:, :40], alone, rtol=0, atol=1e-12)


def test_the_loss_counts_the_targets_that_are_known() -> None:
    model = make()
    x = signal(model, 30)[None]
    labels = torch.randn(1, 30, 2, dtype=x.dtype)
    labels[0, ::3, 1] = math.nan
    out = model(x, labels=labels)
    errors = ((out.regression_outputs - labels) / torch.tensor(SCALE["std"], dtype=x.dtype))[~labels.isnan()]
    torch.testing.assert_close(out.loss, errors.square().mean())
    with pytest.raises(ValueError, match=r"labels must be \(1, 30, 2\), got \(1, 30\)"):
        model(x, labels=labels[..., 0])


def test_a_signal_ends_and_another_begins() -> None:
    model = make("ema")
    x, stream = signal(model), StreamingRegressor(model)
    with pytest.raises(ValueError, match="infinite values; push NaN where"):
        stream.push(torch.tensor([[0.0, math.inf]]))
    both = torch.cat([stream.push(x), stream.finish()])
    torch.testing.assert_close(both, whole_output(model, x), rtol=0, atol=1e-9)
    assert stream.samples == 0
    assert stream.finish().shape == (0, 2)
    torch.testing.assert_close(torch.cat([stream.push(x[:5]), stream.finish()]), whole_output(model, x[:5]))


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"inputs": "tokens"}, "signals need inputs 'values'"),
        ({"outputs": {"windows": 8}}, "unknown option of outputs .*: 'windows'; did you mean 'window'"),
        ({"outputs": {"delay": -1}}, "delay must be an integer of at least 0"),
        ({"outputs": {"window": 2}}, r"outputs.window must be 0 or at least stride \+ delay = 3, got 2"),
        ({"outputs": {"delay": 2}, "causal": False}, "a two-sided model reads later samples without a delay"),
        ({"outputs": {"std": [0.0]}}, "outputs.std must be greater than 0"),
        ({"outputs": {"mean": [0.0, 1.0]}}, "outputs.mean must have a number for each of 1 outputs"),
    ],
)
def test_wrong_options_are_named(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        make(**changes)
