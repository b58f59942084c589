"""A linear map of fixed features of series and images, trained beside the layers of their classifier."""

from __future__ import annotations

import copy
import pickle
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from needs import needs_onnx
from torch import Tensor

from lagwise.models import (
    LagwiseConfig,
    LagwiseForImageClassification,
    LagwiseForSequenceClassification,
    load_model,
)
from lagwise.models.export import export_forward
from lagwise.models.linear.convolutions import Convolutions
from lagwise.models.linear.patches import Patches
from lagwise.models.loading import at_rate

WIDE = {"name": "convolutions", "dilations": [1, 3], "thresholds": [2, 1]}
PATCHES = {"name": "patches", "side": 3, "filters": 5, "regions": 2}
STRIDE = 3
INPUTS = {"name": "values", "features": 2, "stride": STRIDE, "mean": [0.5, -2.0], "std": [2.0, 0.5]}


def some_series(count: int = 8) -> list[Tensor]:
    return [STRIDE * torch.randn(STRIDE * (10 + i), 2).cumsum(0) for i in range(count)]


def some_images(count: int = 6) -> Tensor:
    return torch.randn(count, 3, 8, 8)


def make(kind: str = "series", **fields: Any) -> Any:
    torch.manual_seed(0)
    own: dict[str, Any] = {"hidden_size": 8, "num_hidden_layers": 1, "num_labels": 3, "causal": False}
    if kind == "series":
        model: Any = LagwiseForSequenceClassification(
            LagwiseConfig(**{**own, "inputs": INPUTS, "wide": WIDE, **fields})
        )
        model.wide.prepare(some_series(), 0)
    else:
        own["inputs"] = {"name": "patches", "channels": 3, "size": 4}
        model = LagwiseForImageClassification(LagwiseConfig(**{**own, "wide": PATCHES, **fields}))
        model.wide.prepare(some_images(), 0)
    assert not model.wide.linear.weight.any()
    torch.nn.init.normal_(model.wide.linear.weight, std=0.1)
    model.wide.dropout.p = 0.0  # which has a test of its own
    return model.eval()


def padded(rows: list[Tensor]) -> tuple[Tensor, Tensor]:
    longest = max(map(len, rows))
    x, mask = torch.full((len(rows), longest, 2), 7.0), torch.zeros(len(rows), longest // STRIDE, dtype=torch.long)
    for i, row in enumerate(rows):
        x[i, : len(row)], mask[i, : len(row) // STRIDE] = row, 1
    return x, mask


def standardised(raw: Tensor, found: Tensor) -> Tensor:
    """By the mean and the deviation of other rows."""
    return (found - raw.mean(0)) / (raw.std(0, correction=0) + 0.01)


def test_series_have_the_standardised_features_of_the_first_answer_beside_the_layers() -> None:
    model, x = make(classifier_dropout=0.25), some_series()[0][None]
    torch.manual_seed(5)
    rows = some_series()
    model.wide.prepare(rows, 3)
    features = Convolutions(2, dilations=[1, 3], thresholds=[2, 1], mean=INPUTS["mean"], std=INPUTS["std"])
    features.prepare(rows, 3)
    raw = torch.cat([features(row[None]) for row in rows])
    assert model.wide.linear.in_features == raw.shape[1] == 84 * 3
    pooled = model.model(input_values=x).last_hidden_state.mean(1)
    expected = 0.75 * model.classifier(pooled) + model.wide.linear(standardised(raw, features(x)))
    torch.testing.assert_close(model(input_values=x).logits, expected)


def test_images_have_those_of_their_patches() -> None:
    model, images = make("images"), some_images()
    model.wide.prepare(images, 3)
    features = Patches(3, side=3, filters=5, regions=2)
    features.prepare(images, 3)
    x = some_images(2)
    pooled = model.model(pixel_values=x).last_hidden_state.mean(1)
    expected = model.classifier(pooled) + model.wide.linear(standardised(features(images), features(x)))
    torch.testing.assert_close(model(pixel_values=x).logits, expected)


@pytest.mark.cpu
@pytest.mark.parametrize("kind", ["series", "images"])
def test_what_training_read_is_neither_saved_nor_copied(kind: str) -> None:
    wide: Any = make(kind).wide.train()
    empty = len(pickle.dumps(wide))
    wide(*padded(some_series())) if kind == "series" else wide(some_images())
    assert {len(key) for key in wide._known} == {16}  # however long a row is
    assert len(pickle.dumps(wide)) == empty
    assert not copy.deepcopy(wide)._known


@pytest.mark.parametrize("kind", ["series", "images"])
def test_training_drops_features(kind: str) -> None:
    wide: Any = make(kind).wide
    assert type(wide)(make(kind).config).dropout.p == 0
    wide.dropout.p = rate = type(wide)(make(kind, classifier_dropout=0.1).config).dropout.p
    x = some_images(1) if kind == "images" else some_series(1)[0][None]
    used = torch.autograd.grad(wide(x).sum(), wide.linear.weight)[0][0] != 0
    kept = torch.autograd.grad(wide.train()(x).sum(), wide.linear.weight)[0][0, used] != 0
    assert 0 < rate < 1
    assert float(kept.float().mean()) == pytest.approx(1 - rate, abs=0.2)


def test_training_in_bfloat16() -> None:
    wide: Any = make().bfloat16().wide
    x = some_series()[0][None].bfloat16()
    torch.testing.assert_close(wide.train()(x), wide.eval()(x))


def test_padding_has_no_effect() -> None:
    model, rows = make(), some_series()
    x, mask = padded(rows)
    alone = torch.cat([model(input_values=row[None]).logits for row in rows])
    torch.testing.assert_close(model(input_values=x, attention_mask=mask).logits, alone)


@pytest.mark.parametrize("short", [1, 2])
def test_what_fills_the_last_step_is_no_sample(short: int) -> None:
    """Of STRIDE samples, which a collator fills with zeros."""
    wide, row = make().wide, some_series()[0] + 9
    row[-short:] = 0
    whole = Convolutions(2, dilations=[1, 3], thresholds=[2, 1], mean=INPUTS["mean"], std=INPUTS["std"])
    whole.load_state_dict(wide.features.state_dict())
    expected = wide.linear((whole(row[None, :-short]) - wide.mean) / (wide.std + 0.01))
    torch.testing.assert_close(wide(row[None]), expected)


@pytest.mark.cpu
def test_training_reads_a_series_once_and_gives_the_same() -> None:
    wide, rows = make().wide, some_series()
    x, mask = padded(rows)
    expected, calls = wide(x, mask), []
    wide.features.register_forward_hook(lambda *_: calls.append(1))
    wide.train()
    for _ in range(2):
        torch.testing.assert_close(wide(x, mask), expected)
        torch.testing.assert_close(wide(rows[2][None]), expected[2:3])  # without padding it is the same series
    assert len(calls) == 1
    other = rows[2].clone()
    other[-1] += 50
    assert not torch.equal(wide(other[None]), expected[2:3])
    prepared: Any = make().wide
    prepared.prepare(some_series(4), 1)
    wide.load_state_dict(prepared.state_dict())
    torch.testing.assert_close(wide(x, mask), prepared(x, mask))
    wide.prepare(some_series(4), 2)
    assert not torch.allclose(wide(x, mask), prepared(x, mask))


@pytest.mark.cpu
def test_a_full_memory_of_rows_starts_again(monkeypatch: pytest.MonkeyPatch) -> None:
    wide: Any = make().wide
    monkeypatch.setattr("lagwise.models.wide._MOST_KNOWN", 2 * wide.features.size)
    rows = some_series()
    expected = [wide(row[None]) for row in rows]
    wide.train()
    for row, own in zip(rows, expected, strict=True):
        torch.testing.assert_close(wide(row[None]), own)
        assert len(wide._known) <= 3
    torch.testing.assert_close(wide(*padded(rows)), torch.cat(expected))  # more than it keeps


def test_gradients_reach_the_trained_parts_alone() -> None:
    model, x = make(), some_series()[0][None].requires_grad_()
    model.train()(input_values=x, labels=torch.tensor([1])).loss.backward()
    assert model.classifier.weight.grad is not None
    assert model.wide.linear.weight.grad is not None
    assert x.grad is not None  # by the hidden states
    assert not list(model.wide.features.parameters())


@pytest.mark.parametrize("kind", ["series", "images"])
def test_a_saved_model_has_its_features(kind: str, tmp_path: Path) -> None:
    model = make(kind)
    given = {"input_values": some_series()[1][None]} if kind == "series" else {"pixel_values": some_images()}
    model.save_pretrained(tmp_path)
    saved, _ = load_model(tmp_path, device=model.device)
    torch.testing.assert_close(saved(**given).logits, model(**given).logits)


@pytest.mark.slow
@pytest.mark.cpu
@needs_onnx
def test_an_exported_model_of_images_has_the_same_logits(tmp_path: Path) -> None:
    import onnxruntime

    model, images = make("images"), some_images(3)
    with torch.no_grad():
        export_forward(model, tmp_path / "images.onnx", sides=(8, 8))
        expected = model(pixel_values=images).logits.numpy()
    found = onnxruntime.InferenceSession(tmp_path / "images.onnx").run(None, {"pixel_values": images.numpy()})[0]
    np.testing.assert_allclose(found, expected, atol=1e-4)


def test_other_inputs_are_refused() -> None:
    with pytest.raises(ValueError, match="wide must be the features 'ngrams' for inputs 'tokens', got 'convolutions'"):
        LagwiseConfig(wide=WIDE)
    model = make(inputs={**INPUTS, "stride": 1}, block={"name": "prenorm", "token_mixer": {"name": "ema"}}, causal=True)
    x = some_series()[0][None]
    documents = torch.arange(x.shape[1])[None] // 7
    with pytest.raises(ValueError, match="a wide part reads inputs with one row for each answer"):
        model(input_values=x, seq_idx=documents)
    with pytest.raises(ValueError, match="a wide part reads inputs with one row for each answer"):
        model(input_values=x, seq_idx=torch.zeros(1, x.shape[1], dtype=torch.long))  # one document in each row
    with pytest.raises(ValueError, match="a wide part reads inputs with one row for each answer"):
        model(inputs_embeds=torch.randn(1, 5, 8))
    with pytest.raises(ValueError, match=r"rate 0\.5 is not for a model with a map of convolutions"):
        at_rate(model, 0.5)
    with pytest.raises(ValueError, match="tokens with times of their own need a model without a map"):
        model(input_values=x, token_time=torch.ones(x.shape[:2]))
    with pytest.raises(ValueError, match=r"\(inputs.time\) go with no wide part"):
        LagwiseConfig(inputs={"name": "values", "features": 2, "time": 1.0}, wide=WIDE)
    with pytest.raises(ValueError, match="needs LagwiseForImageClassification"):
        LagwiseForSequenceClassification(make("images").config)
    with pytest.raises(ValueError, match="reads whole images, got an attention_mask with padding"):
        make("images")(pixel_values=some_images(), attention_mask=torch.tensor([[1, 1, 0, 1]] * 6))
