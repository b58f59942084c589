"""A linear map of the n-grams of a text, trained beside the layers of its classifier."""

from __future__ import annotations

import copy
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from needs import needs_onnx
from torch import Tensor

from lagwise.data import load_tokenizer, spellings
from lagwise.models import LagwiseConfig, LagwiseForSequenceClassification
from lagwise.models.export import export_forward
from lagwise.models.linear.ngrams import Ngrams

TEXTS = ["The Cat  sat, the\ncat", "so so good", "x", "МОСКВА is good", "a good cat"]
BYTES = spellings(load_tokenizer("bytes"))


def batch(texts: list[str], *, pairs: bool = False) -> dict[str, Tensor]:
    rows = [torch.tensor(list(text.encode())) for text in texts]
    ids = torch.full((len(rows), max(map(len, rows))), 65)
    mask = torch.zeros_like(ids)
    for i, row in enumerate(rows):
        ids[i, : len(row)], mask[i, : len(row)] = row, 1
    types = {"token_type_ids": (torch.arange(ids.shape[1]) >= 3).long().expand_as(ids)} if pairs else {}
    return {"input_ids": ids, "attention_mask": mask, **types}


def make(rows: Mapping[str, Tensor], *, pairs: bool = False, **fields: Any) -> LagwiseForSequenceClassification:
    options, features = Ngrams.chosen(BYTES, [rows], pairs=pairs)
    own = {
        "hidden_size": 8,
        "num_hidden_layers": 1,
        "wide": {"name": "ngrams", **options},
        "num_labels": 3,
        "causal": False,
    }
    torch.manual_seed(0)
    model = LagwiseForSequenceClassification(LagwiseConfig(**{"vocab_size": 260, **own, **fields}))
    wide: Any = model.wide
    wide.take(features)
    assert not wide.linear.weight.any()
    torch.nn.init.normal_(wide.linear.weight, std=0.02)
    wide.dropout.p = 0.0  # which has a test of its own
    return model.eval()


def dense(model: Any, rows: Mapping[str, Tensor]) -> Tensor:
    found = model.wide.features(rows["input_ids"], rows["attention_mask"].bool(), rows.get("token_type_ids"))
    values = torch.zeros(len(found.values), model.wide.features.size)
    return values.scatter_add(1, found.numbers, found.values)


@pytest.mark.parametrize("pairs", [False, True])
def test_logits_are_those_of_the_layers_and_a_linear_map_of_ngrams(pairs: bool) -> None:
    rows = batch([f"{text} and" for text in TEXTS], pairs=pairs)
    model: Any = make(rows, pairs=pairs, type_vocab_size=2, classifier_dropout=0.25)
    features = dense(model, rows)
    assert (features != 0).any(1).all()
    weight = model.wide.linear.weight.detach().clone().requires_grad_()
    hidden = model.model(**rows).last_hidden_state * rows["attention_mask"][..., None]
    pooled = hidden.sum(1) / rows["attention_mask"].sum(1, keepdim=True)
    expected = 0.75 * model.classifier(pooled) + 20 * features @ weight.t() + model.wide.linear.bias
    found = model(**rows).logits
    torch.testing.assert_close(found, expected)
    (gradient,) = torch.autograd.grad(found.square().sum(), model.wide.linear.weight)
    (theirs,) = torch.autograd.grad(expected.square().sum(), weight)
    torch.testing.assert_close(gradient, theirs, rtol=1e-4, atol=1e-4)


@pytest.mark.cpu
def test_training_reads_a_text_once_and_gives_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    rows = batch(TEXTS, pairs=True)
    model: Any = make(batch([f"{text} and" for text in TEXTS], pairs=True), pairs=True, type_vocab_size=2)
    wide, given = model.wide, (rows["input_ids"], rows["attention_mask"], rows["token_type_ids"])
    expected, calls = wide(*given), []
    wide.features.register_forward_hook(lambda *_: calls.append(1))
    wide.train()
    for _ in range(2):
        torch.testing.assert_close(wide(*given), expected)
        torch.testing.assert_close(wide(*(each[2:3, :1] for each in given)), expected[2:3])  # the same without padding
    assert len(calls) == 1
    other = given[2].roll(2, 1)
    assert not torch.allclose(wide(given[0], given[1], other), expected)  # the same tokens, as other pairs
    monkeypatch.setattr("lagwise.models.wide._MOST_KNOWN", 10)
    for i in range(len(TEXTS)):
        torch.testing.assert_close(wide(*(each[i : i + 1] for each in given)), expected[i : i + 1])
        assert len(wide._known) <= 2
    assert not copy.deepcopy(wide)._known
    wide.load_state_dict(wide.state_dict())
    assert not wide._known


def test_training_answers_a_share_of_the_rows_by_ngrams_alone() -> None:
    rows = batch(TEXTS * 20)
    model: Any = make(rows, classifier_dropout=0.5)
    model.dropout.p = 0.0
    wide = model.wide(rows["input_ids"], rows["attention_mask"])
    layers = 2 * (model(**rows).logits - wide)
    rest = (model.train()(**rows).logits - wide) / layers
    dropped = rest.abs().amax(1) < 1e-3
    torch.testing.assert_close(rest[~dropped], torch.full_like(rest[~dropped], 2), rtol=1e-2, atol=0)
    assert 30 < int(dropped.sum()) < 70


def test_a_saved_model_has_its_ngrams(tmp_path: Path) -> None:
    rows = batch(TEXTS)
    model = make(rows)
    model.save_pretrained(tmp_path)
    again = LagwiseForSequenceClassification.from_pretrained(tmp_path)
    torch.testing.assert_close(again(**rows).logits, model(**rows).logits)


@pytest.mark.slow
@pytest.mark.cpu
@needs_onnx
def test_an_exported_model_has_the_same_logits(tmp_path: Path) -> None:
    import onnxruntime

    model = make(batch(TEXTS))
    with torch.no_grad():
        export_forward(model, tmp_path / "texts.onnx")
    session = onnxruntime.InferenceSession(tmp_path / "texts.onnx")
    for text in (*TEXTS, "the  cat\nsat; unseen words"):
        row = batch([text])
        found = session.run(None, {name: values.numpy() for name, values in row.items()})[0]
        with torch.no_grad():
            np.testing.assert_allclose(found, model(**row).logits.numpy(), atol=1e-4)


def test_other_inputs_are_refused() -> None:
    rows = batch(TEXTS)
    model = make(rows)
    with pytest.raises(ValueError, match="wide must be the features 'convolutions' for inputs 'values', got 'ngrams'"):
        LagwiseConfig(wide=model.config.wide, inputs="values")
    with pytest.raises(ValueError, match="a wide part reads inputs with one row for each answer"):
        model(rows["input_ids"][:1], seq_idx=torch.arange(rows["input_ids"].shape[1])[None] // 7)
    with pytest.raises(ValueError, match="a wide part reads inputs with one row for each answer"):
        model(inputs_embeds=torch.randn(1, 5, 8))
