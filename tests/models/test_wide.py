"""Classifiers in which a first answer's map of fixed features adds to the layers' logits."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from needs import needs_onnx
from torch import Tensor

from lagwise.data import load_tokenizer, spellings
from lagwise.models import (
    LagwiseConfig,
    LagwiseForImageClassification,
    LagwiseForSequenceClassification,
    LagwiseLinearForImageClassification,
    LagwiseLinearForSequenceClassification,
)
from lagwise.models.classification import joined
from lagwise.models.configuration import LagwiseLinearConfig
from lagwise.models.export import export_forward
from lagwise.models.linear.ngrams import Ngrams
from lagwise.models.loading import at_rate

KINDS = ("texts", "pairs", "series", "images")
TEXTS = ["The Cat  sat, the\ncat", "so so good", "x and so", "МОСКВА is good", "a good cat"]
BYTES = spellings(load_tokenizer("bytes"))
WIDE = {"name": "convolutions", "dilations": [1, 3], "thresholds": [2, 1]}
PATCHES = {"name": "patches", "side": 3, "filters": 5, "regions": 2}
STRIDE = 3
INPUTS = {"name": "values", "features": 2, "stride": STRIDE, "mean": [0.5, -2.0], "std": [2.0, 0.5]}
SHARE = 0.4


def texts_as_tokens(texts: list[str], *, pairs: bool = False) -> dict[str, Tensor]:
    rows = [torch.tensor(list(text.encode())) for text in texts]
    ids = torch.full((len(rows), max(map(len, rows))), 65)
    mask = torch.zeros_like(ids)
    for i, row in enumerate(rows):
        ids[i, : len(row)], mask[i, : len(row)] = row, 1
    types = {"token_type_ids": (torch.arange(ids.shape[1]) >= 3).long().expand_as(ids)} if pairs else {}
    return {"input_ids": ids, "attention_mask": mask, **types}


def some_series() -> list[Tensor]:
    return [STRIDE * torch.randn(STRIDE * (10 + i), 2).cumsum(0) for i in range(8)]


def padded(rows: list[Tensor]) -> dict[str, Tensor]:
    longest = max(map(len, rows))
    x, mask = torch.full((len(rows), longest, 2), 7.0), torch.zeros(len(rows), longest // STRIDE, dtype=torch.long)
    for i, row in enumerate(rows):
        x[i, : len(row)], mask[i, : len(row) // STRIDE] = row, 1
    return {"input_values": x, "attention_mask": mask}


def rows_of(kind: str) -> dict[str, Tensor]:
    if kind == "series":
        return padded(some_series())
    if kind == "images":
        return {"pixel_values": torch.randn(6, 3, 8, 8)}
    return texts_as_tokens(TEXTS, pairs=kind == "pairs")


def of_samples(given: dict[str, Tensor]) -> dict[str, Tensor]:
    """Inputs of a first answer, which reads every sample."""
    mask = given.get("attention_mask")
    if "input_values" not in given or mask is None:
        return given
    return {**given, "attention_mask": mask.repeat_interleave(STRIDE, 1)}


def models(kind: str, **fields: Any) -> tuple[Any, Any]:
    """A model of layers and a first answer, with random weights."""
    torch.manual_seed(0)
    own: dict[str, Any] = {"hidden_size": 8, "num_hidden_layers": 1, "num_labels": 3, "causal": False}
    first: dict[str, Any] = {"num_labels": fields.get("num_labels", 3)}
    classes: tuple[Any, Any] = LagwiseForSequenceClassification, LagwiseLinearForSequenceClassification
    features: Any = None
    if kind == "series":
        own["inputs"], first["inputs"], first["features"] = INPUTS, {**INPUTS, "stride": 1}, WIDE
    elif kind == "images":
        classes = LagwiseForImageClassification, LagwiseLinearForImageClassification
        own["inputs"] = {"name": "patches", "channels": 3, "size": 4}
        first["inputs"] = {"name": "patches", "size": 1, "channels": 3, "image": [8, 8]}
        first["features"] = PATCHES
    else:
        options, features = Ngrams.chosen(BYTES, [rows_of(kind)], pairs=kind == "pairs")
        own |= {"vocab_size": 300, "type_vocab_size": 2 * (kind == "pairs")}
        first |= {"vocab_size": len(BYTES), "inputs": {"name": "tokens"}, "features": {"name": "ngrams", **options}}
    model = classes[0](LagwiseConfig(**{**own, **fields}))
    linear = classes[1](LagwiseLinearConfig(**first))
    if features is None:
        linear.features.prepare(some_series() if kind == "series" else torch.randn(6, 3, 8, 8), 0)
    else:
        linear.features.load_state_dict(features.state_dict())
    torch.nn.init.normal_(linear.classifier.weight, std=0.1)
    torch.nn.init.normal_(linear.classifier.bias)
    return model.eval(), linear.eval()


def make(kind: str = "series", **fields: Any) -> Any:
    return joined(*models(kind, **fields), SHARE)


@pytest.mark.parametrize("kind", KINDS)
def test_logits_are_those_of_the_first_answer_and_a_share_of_the_layers(kind: str) -> None:
    (model, linear), rows = models(kind), rows_of(kind)
    before = {name: values.clone() for name, values in model.state_dict().items()}
    layers, first = model(**rows).logits, linear(**of_samples(rows)).logits
    assert layers.std() > 1e-3
    assert first.std() > 1e-3
    torch.testing.assert_close(joined(model, linear, SHARE)(**rows).logits, first + SHARE * layers)
    assert model.config.wide is None
    for name, values in model.state_dict().items():
        assert torch.equal(values, before[name])


def test_numbers_are_a_mean_of_both() -> None:
    model, linear = models("series", num_labels=1, problem_type="regression", label_mean=300.0, label_std=20.0)
    rows = rows_of("series")
    expected = 0.6 * linear(**of_samples(rows)).logits + 0.4 * model(**rows).logits
    torch.testing.assert_close(joined(model, linear, SHARE)(**rows).logits, expected, rtol=1e-4, atol=1e-3)


@pytest.mark.parametrize("kind", KINDS)
def test_a_joined_model_keeps_its_dtype(kind: str) -> None:
    model, linear = models(kind)
    rows = {name: v.bfloat16() if v.is_floating_point() else v for name, v in rows_of(kind).items()}
    made = joined(model.bfloat16(), linear, SHARE)
    assert {p.dtype for p in made.parameters()} == {torch.bfloat16}
    found = made(**rows)
    assert found.logits.dtype == torch.bfloat16
    assert found.logits.isfinite().all()


def test_padding_has_no_effect() -> None:
    model, rows = make(), some_series()
    alone = torch.cat([model(input_values=row[None]).logits for row in rows])
    torch.testing.assert_close(model(**padded(rows)).logits, alone)


@pytest.mark.parametrize("short", [1, 2])
def test_what_fills_the_last_step_is_no_sample(short: int) -> None:
    """Of STRIDE samples, which a collator fills with zeros."""
    (model, linear), row = models("series"), some_series()[0] + 9
    row[-short:] = 0
    expected = linear(input_values=row[None, :-short]).logits
    torch.testing.assert_close(joined(model, linear, SHARE).wide(row[None]), expected)


def test_gradients_reach_the_layers_and_the_map() -> None:
    model, x = make(), some_series()[0][None].requires_grad_()
    model.train()(input_values=x, labels=torch.tensor([1])).loss.backward()
    assert model.classifier.weight.grad is not None
    assert model.wide.linear.weight.grad is not None
    assert x.grad is not None  # by the hidden states
    assert not list(model.wide.features.parameters())


@pytest.mark.slow
@pytest.mark.cpu
@needs_onnx
@pytest.mark.parametrize("kind", ["images", "texts"])
@torch.no_grad()
def test_an_exported_model_has_the_same_logits(kind: str, tmp_path: Path) -> None:
    import onnxruntime

    model, images = make(kind), kind == "images"
    export_forward(model, tmp_path / "model.onnx", **({"sides": (8, 8)} if images else {}))
    session = onnxruntime.InferenceSession(tmp_path / "model.onnx")
    texts = [texts_as_tokens([text]) for text in (*TEXTS, "the  cat\nsat; unseen words")]
    for rows in [rows_of(kind)] if images else texts:
        found = session.run(None, {name: values.numpy() for name, values in rows.items()})[0]
        np.testing.assert_allclose(found, model(**rows).logits.numpy(), atol=1e-4)


def test_other_inputs_are_refused() -> None:
    model = make(inputs={**INPUTS, "stride": 1}, block={"name": "prenorm", "token_mixer": {"name": "ema"}}, causal=True)
    x, images = some_series()[0][None], make("images")
    one = torch.zeros(1, x.shape[1], dtype=torch.long)  # one document in each row
    times = {"name": "values", "features": 2, "time": 1.0}
    attempts: list[tuple[Callable[[], Any], str]] = [
        (
            lambda: LagwiseConfig(wide=WIDE),
            "wide must be the features 'ngrams' for inputs 'tokens', got 'convolutions'",
        ),
        (lambda: model(input_values=x, seq_idx=one), "one text or series in each row"),
        (lambda: model(inputs_embeds=torch.randn(1, 5, 8)), "a wide part reads inputs themselves"),
        (lambda: at_rate(model, 0.5), r"rate 0\.5 is not for a model with a map of convolutions"),
        (
            lambda: model(input_values=x, token_time=torch.ones(x.shape[:2])),
            "a time for every token is not for a model with a map",
        ),
        (lambda: LagwiseConfig(inputs=times, wide=WIDE), r"\(inputs.time\) go with no wide part"),
        (lambda: LagwiseForSequenceClassification(images.config), "needs LagwiseForImageClassification"),
        (
            lambda: images(**rows_of("images"), attention_mask=torch.tensor([[1, 1, 0, 1]] * 6)),
            "reads whole images, got an attention_mask with padding",
        ),
    ]
    for attempt, message in attempts:
        with pytest.raises(ValueError, match=message):
            attempt()
