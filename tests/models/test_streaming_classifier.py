"""Streaming of signals gives the outputs for the whole signal."""

from __future__ import annotations

from typing import Any

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
    "tcn": {"name": "tcn", "kernel_size": 3, "depth": 3, "norm": "rms"},
    "ema": {"name": "ema", "dimension": 4},
    "toeplitz that ends": {"name": "gtu", "expansion": 1, "kernel": {"name": "ema", "dimension": 2, "truncation": 9}},
    "toeplitz": {"name": "gtu", "expansion": 1, "kernel": {"name": "rpe", "hidden": 8, "layers": 1}},
}


def make(mixer: str, head: Any = LagwiseForTokenClassification, **fields: Any) -> Any:
    block = {"name": "prenorm", "token_mixer": MIXERS[mixer]}
    inputs = {"name": "values", "features": 2, "stride": 3, "mean": [0.5, -2.0], "std": [2.0, 0.5]}
    config = {"hidden_size": 8, "num_hidden_layers": 2, "block": block, "inputs": inputs, "num_labels": 3, **fields}
    torch.manual_seed(0)
    return head(LagwiseConfig(**{"initializer_range": 0.5, **config})).double().eval()


def streamed(model: Any, x: Tensor, *, most: int = 11, **options: Any) -> Tensor:
    """Probabilities from pushes of random sizes, including 0."""
    stream, parts, start = StreamingClassifier(model, **options), [], 0
    while start < len(x):
        size = int(torch.randint(0, most, ()))
        parts.append(stream.push(x[start : start + size]))
        start += size
    assert stream.samples == len(x)
    return torch.cat(parts)


@pytest.mark.parametrize("mixer", MIXERS)
def test_any_chunks_give_the_output_for_the_whole_signal(mixer: str) -> None:
    model, x = make(mixer), torch.randn(200, 2, dtype=torch.float64)
    with torch.no_grad():
        whole = model(input_values=x[None, :198]).logits[0].softmax(-1)
    for options in ({}, {"most": 2}, {"most": 150, "chunk": 5}):
        torch.testing.assert_close(streamed(model, x, **options), whole, rtol=0, atol=1e-9)
    assert whole.std(0).min() > 1e-3


@pytest.mark.parametrize(("pooling", "width"), [("mean", 6), ("first", 0), ("last", 0), ("ends", 6)])
def test_a_sequence_classifier_reports_the_class_so_far(pooling: str, width: int) -> None:
    model = make("tcn", LagwiseForSequenceClassification, pooling=pooling, classifier_hidden_size=width)
    x = torch.randn(60, 2, dtype=torch.float64)
    with torch.no_grad():
        whole = [model(input_values=x[None, : 3 * (t + 1)]).logits[0].softmax(-1) for t in range(20)]
    torch.testing.assert_close(streamed(model, x), torch.stack(whole), rtol=0, atol=1e-9)


def test_a_map_of_the_signal_so_far_is_reported() -> None:
    wide = {"name": "convolutions", "dilations": [1, 5], "thresholds": [2, 1]}
    model = make("tcn", LagwiseForSequenceClassification, wide=wide, initializer_range=0.05, classifier_dropout=0.5)
    torch.nn.init.normal_(model.wide.linear.weight, std=0.05)
    model.wide.float().features.prepare(torch.randn(4, 50, 2), 0)
    model.double()
    x = torch.randn(60, 2, dtype=torch.float64)
    with torch.no_grad():
        whole = torch.stack([model(input_values=x[None, : 3 * (t + 1)]).logits[0].softmax(-1) for t in range(20)])
        other = LagwiseForSequenceClassification(model.config).double()
        other.load_state_dict(model.state_dict())
        other.wide.linear.weight *= 0.5
        other = other.eval()(input_values=x[None]).logits[0].softmax(-1)
    for options in ({}, {"most": 2}, {"most": 60, "chunk": 4}):
        torch.testing.assert_close(streamed(model, x, **options), whole, rtol=0, atol=1e-9)
    assert (whole[-1] - other).abs().max() > 1e-3  # they count


def test_a_mean_of_many_steps_does_not_drift() -> None:
    """A sum of a million steps in float32 would be off by thousandths."""
    model = make("tcn", LagwiseForSequenceClassification, pooling="mean").float()
    stream = StreamingClassifier(model)
    hidden = torch.full((1000, 8), 0.1)
    carried = stream.first()
    for _ in range(1000):
        pooled = stream._pool(hidden, carried)
    torch.testing.assert_close(pooled, hidden, rtol=1e-6, atol=0)


@pytest.mark.parametrize("head", [LagwiseForTokenClassification, LagwiseForSequenceClassification])
def test_missing_samples_are_not_zeros(head: Any) -> None:
    inputs = {"name": "values", "features": 2, "stride": 3, "mean": [0.5, -2.0], "std": [2.0, 0.5], "gaps": True}
    model, x = make("ema", head, inputs=inputs), torch.randn(60, 2, dtype=torch.float64)
    x[7:30, 1] = x[40] = torch.nan
    gaps = x.isnan()
    with torch.no_grad():
        found, mean, other = (
            model(input_values=each[None]).logits[0].softmax(-1)
            for each in (x, torch.where(gaps, x.new_tensor(inputs["mean"]), x), torch.where(gaps, 9.0, x))
        )
    assert min((found - mean).abs().max(), (found - other).abs().max()) > 1e-4
    whole = streamed(model, x) if head is LagwiseForTokenClassification else streamed(model, x)[-1]
    torch.testing.assert_close(whole, found, rtol=0, atol=1e-9)
    model.model.embed_tokens.missing.weight.data.zero_()  # without the vector, they count as the mean
    with torch.no_grad():
        torch.testing.assert_close(model(input_values=x[None]).logits[0].softmax(-1), mean)


def test_invalid_samples_do_not_change_the_stream() -> None:
    model, x = make("ema"), torch.randn(60, 2, dtype=torch.float64)
    stream = StreamingClassifier(model)
    first = stream.push(x[:31])
    for wrong, message in (
        (torch.zeros(4, 3), r"samples must be \(n, features=2\), got \(4, 3\)"),
        (torch.zeros(3), r"got \(3,\)"),
        (torch.tensor([[0.0, float("nan")]]), "NaN or infinite"),
    ):
        with pytest.raises(ValueError, match=message):
            stream.push(wrong)
    assert stream.samples == 31
    both = torch.cat([first, stream.push(x[31:])])
    stream.reset()
    torch.testing.assert_close(stream.push(x), both, rtol=0, atol=1e-9)


def test_one_feature_needs_no_axis() -> None:
    model = make("ema", inputs={"name": "values", "stride": 2})
    stream, x = StreamingClassifier(model), torch.randn(10, dtype=torch.float64)
    parts = [stream.push(float(value)) for value in x[:4]] + [stream.push(x[4:])]
    stream.reset()
    torch.testing.assert_close(torch.cat(parts), stream.push(x[:, None]), rtol=0, atol=1e-12)


@pytest.mark.parametrize(
    ("make_model", "message"),
    [
        (lambda: make("tcn", causal=False), "causal=False"),
        (lambda: make("tcn").train(), "training mode"),
        (lambda: make("tcn", inputs="tokens"), "real values"),
        (lambda: make("tcn", max_position_embeddings=9), "at most 9 steps"),
        (lambda: make("tcn", LagwiseForSequenceClassification, problem_type="regression"), "regression"),
        (lambda: make("tcn", LagwiseModel), "got LagwiseModel"),
        (lambda: make("tcn", LagwiseForSignalRegression), "got LagwiseForSignalRegression"),
    ],
)
def test_models_that_cannot_stream_are_refused(make_model: Any, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        StreamingClassifier(make_model())
    with pytest.raises(ValueError, match="must be a LagwiseForSignalRegression, got LagwiseForTokenClassification"):
        StreamingRegressor(make("tcn"))


def test_a_step_is_a_linear_map_of_its_standardized_samples() -> None:
    embed = make("tcn").model.embed_tokens
    x = torch.randn(2, 12, 2, dtype=torch.float64)
    z = (x - torch.tensor([0.5, -2.0])) / torch.tensor([2.0, 0.5])
    steps = [z[:, 3 * t : 3 * t + 3].reshape(2, -1) @ embed.weight.t() + embed.bias for t in range(4)]
    torch.testing.assert_close(embed(x), torch.stack(steps, dim=1))
    model = make("tcn")
    with pytest.raises(ValueError, match="multiple of the stride 3, got 10"):
        model(input_values=x[:, :10])
    with pytest.raises(ValueError, match="std must be greater than 0"):
        make("tcn", inputs={"name": "values", "features": 1, "std": [0.0]})
    with pytest.raises(ValueError, match="mean must have a number for each of 2 features"):
        make("tcn", inputs={"name": "values", "features": 2, "mean": [0.0]})
