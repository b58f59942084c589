"""Models of samples with times of their own."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from lagwise.models import (
    LagwiseConfig,
    LagwiseForSequenceClassification,
    LagwiseForSignalRegression,
    LagwiseForTokenClassification,
    LagwiseModel,
    StreamingClassifier,
    StreamingRegressor,
)

MIXERS: dict[str, dict[str, Any]] = {
    "s4d": {"name": "gtu", "expansion": 1, "kernel": {"name": "s4d", "modes": 4}},
    "lru": {"name": "lru"},
    "ema": {"name": "ema", "dimension": 4},
}
HEADS: dict[str, tuple[Any, Any]] = {
    "regression": (LagwiseForSignalRegression, StreamingRegressor),
    "classes": (LagwiseForSequenceClassification, StreamingClassifier),
    "steps": (LagwiseForTokenClassification, StreamingClassifier),
}


def make(mixer: str = "s4d", head: str = "steps", **inputs: Any) -> Any:
    torch.manual_seed(0)
    scale = {"mean": [0.5, 1.0, -2.0], "std": [1.0, 2.0, 3.0]}
    config = LagwiseConfig(
        hidden_size=6,
        num_hidden_layers=2,
        num_labels=3,
        inputs={"name": "values", "features": 3, "time": 0.5, "gaps": True, **scale, **inputs},
        block={"name": "prenorm", "token_mixer": MIXERS[mixer]},
        outputs={"features": 2} if head == "regression" else None,
        initializer_range=0.5,
    )
    model = HEADS[head][0](config).double().eval()
    if head == "regression":
        torch.nn.init.normal_(model.outputs.direct.weight)  # a fresh one is zero
    return model


def series(length: int = 60) -> tuple[np.ndarray, np.ndarray, Tensor]:
    """Times, values with a gap, and both as a model reads them."""
    random = np.random.default_rng(0)
    times, values = random.uniform(0.05, 2, length).cumsum(), random.standard_normal((length, 2))
    values[5, 1] = np.nan
    since = np.diff(times, prepend=times[0])
    return times, values, torch.tensor(np.concatenate([since[:, None], values], 1))[None]


@torch.inference_mode()
def outputs(model: Any, x: Tensor, **options: Any) -> Tensor:
    output = model(input_values=x, **options)
    return output.regression_outputs if hasattr(output, "regression_outputs") else output.logits.softmax(-1)


@pytest.mark.real_device  # a stream has inference tensors
@pytest.mark.parametrize("mixer", MIXERS)
@pytest.mark.parametrize("head", HEADS)
def test_a_stream_equals_the_whole(mixer: str, head: str) -> None:
    model = make(mixer, head)
    times, values, x = series()
    whole, stream, at, streamed = outputs(model, x)[0], HEADS[head][1](model), 0, []
    for size in (1, 7, 0, 20, 32):
        streamed.append(stream.push(values[at : at + size], times[at : at + size]))
        at += size
    made = torch.cat(streamed)
    torch.testing.assert_close(made if whole.dim() == 2 else made[-1], whole, rtol=0, atol=1e-9)
    stream.reset()
    again = stream.push(values, times + 1e6)  # only differences count
    torch.testing.assert_close(again if whole.dim() == 2 else again[-1], whole, rtol=0, atol=1e-6)


@pytest.mark.parametrize("head", HEADS)
def test_padding_has_no_effect(head: str) -> None:
    """Also where it is much, so that layers only process real tokens."""
    model = make(head=head)
    x = series()[2]
    whole = outputs(model, x)[0]
    for padding in (3, 90):
        mask = torch.ones(2, 60 + padding)
        mask[0, 60:] = 0
        both = torch.cat([x, torch.zeros(1, padding, 3)], 1).repeat(2, 1, 1)
        actual = outputs(model, both, attention_mask=mask)[0]
        torch.testing.assert_close(actual[:60] if whole.dim() == 2 else actual, whole, rtol=0, atol=1e-9)


def test_packed_series_are_those_alone() -> None:
    model, x = make(), series()[2]
    actual = outputs(model, torch.cat([x, x[:, :20]], 1), seq_idx=torch.tensor([[0] * 60 + [1] * 20]))[0]
    torch.testing.assert_close(actual[:60], outputs(model, x)[0], rtol=0, atol=1e-9)
    torch.testing.assert_close(actual[60:], outputs(model, x[:, :20])[0], rtol=0, atol=1e-9)


def test_equal_times_are_those_of_samples_without() -> None:
    model, x = make(), series()[2]
    plain = make(time=None, features=2, mean=[1.0, -2.0], std=[2.0, 3.0])
    plain.load_state_dict(model.state_dict())
    equal = x.clone()
    equal[..., 0] = 0.5
    torch.testing.assert_close(outputs(model, equal), outputs(plain, x[..., 1:]), rtol=0, atol=1e-9)
    assert not torch.allclose(outputs(model, x), outputs(plain, x[..., 1:]))


def test_the_time_of_tokens_is_an_argument_of_the_backbone() -> None:
    model, x = make().model, series()[2]
    h, time = torch.randn(1, 60, 6, dtype=torch.float64), x[..., 0].clamp(min=0.01)
    with torch.no_grad():
        actual = model(inputs_embeds=h, token_time=time).last_hidden_state
        assert not torch.allclose(actual, model(inputs_embeds=h).last_hidden_state)
        cut = torch.cat([h, h], 1), torch.cat([time, time], 1)
        twice = model(inputs_embeds=cut[0], token_time=cut[1]).last_hidden_state
    torch.testing.assert_close(twice[:, :60], actual, rtol=0, atol=1e-9)


@pytest.mark.cpu  # values on a GPU are not read for it
def test_what_is_wrong_with_times_is_named() -> None:
    model = make()
    x = series()[2]
    stream = StreamingClassifier(model)
    for push, message in (
        (lambda: stream.push(x[0, :1, 1:]), "give those of these samples"),
        (lambda: stream.push(x[0, :2, 1:], [0.0]), "times must be those of 2 samples, got 1"),
        (lambda: stream.push(x[0, :2, 1:], [1.0, 1.0]), "increase"),
        (lambda: stream.push(x[0, :2, 1:], [1.0, np.nan]), "finite and increase"),
    ):
        with pytest.raises(ValueError, match=message):
            push()
    stream.push(x[0, :2, 1:], [1.0, 2.0])
    with pytest.raises(ValueError, match="increase"):
        stream.push(x[0, :1, 1:], 2.0)
    for place, value, message in (
        (3, -1.0, "must not be negative"),
        (3, float("nan"), "times in input_values has NaN"),
    ):
        wrong = x.clone()
        wrong[0, place, 0] = value
        with pytest.raises(ValueError, match=message):
            model(input_values=wrong)
    plain = StreamingClassifier(make(time=None))
    with pytest.raises(ValueError, match="times are for a model of samples with times"):
        plain.push(x[0, :1], [1.0])


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"block": {"name": "mega"}}, "ChunkedAttention, which counts samples"),
        ({"block": {"name": "prenorm"}}, "RPEKernel counts tokens"),
        ({"norm": "timestep"}, "TimestepNorm counts tokens"),
        ({"position_embedding": "sinusoidal"}, "position_embedding 'none'"),
        ({"inputs": {"stride": 2}}, "need a stride of 1"),
        ({"inputs": {"features": 1}}, "the time of a sample and its values"),
        ({"inputs": {"time": 0.0}}, "time must be a number greater than 0"),
        ({"rate": 0.5}, "which tell their rate"),
    ],
)
def test_models_that_count_samples_are_refused(fields: dict[str, Any], message: str) -> None:
    inputs = {"name": "values", "features": 2, "time": 1.0, **fields.get("inputs", {})}
    block = {"name": "prenorm", "token_mixer": {"name": "lru"}}
    with pytest.raises(ValueError, match=message):
        LagwiseModel(LagwiseConfig(**{"block": block, "hidden_size": 8, **fields, "inputs": inputs}))
