"""Fixed features of a series beside the pooled hidden states of a trained classifier."""

from __future__ import annotations

import copy
import pickle
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from lagwise.models import LagwiseConfig, LagwiseForSequenceClassification, load_model
from lagwise.models.linear.convolutions import Convolutions
from lagwise.models.loading import at_rate
from lagwise.models.shares import Shares

SHARES = {"dilations": [1, 3], "thresholds": [2, 1]}
STRIDE = 3
INPUTS = {"name": "values", "features": 2, "stride": STRIDE, "mean": [0.5, -2.0], "std": [2.0, 0.5]}


def some_series(count: int = 8) -> list[Tensor]:
    return [STRIDE * torch.randn(STRIDE * (10 + i), 2).cumsum(0) for i in range(count)]


def make(**fields: Any) -> LagwiseForSequenceClassification:
    torch.manual_seed(0)
    own = {"hidden_size": 8, "num_hidden_layers": 1, "inputs": INPUTS, "shares": SHARES, "num_labels": 3}
    model = LagwiseForSequenceClassification(LagwiseConfig(**{"causal": False, **own, **fields}))
    assert model.shares is not None
    model.shares.prepare(some_series(), 0)
    return model.eval()


def padded(rows: list[Tensor]) -> tuple[Tensor, Tensor]:
    longest = max(map(len, rows))
    x, mask = torch.full((len(rows), longest, 2), 7.0), torch.zeros(len(rows), longest // STRIDE, dtype=torch.long)
    for i, row in enumerate(rows):
        x[i, : len(row)], mask[i, : len(row) // STRIDE] = row, 1
    return x, mask


def test_they_are_the_features_of_the_first_answer_standardised_over_training_series() -> None:
    shares, rows = Shares(INPUTS, SHARES), some_series()
    shares.prepare(rows, 3)
    features = Convolutions(2, **SHARES, mean=INPUTS["mean"], std=INPUTS["std"])
    features.prepare(rows, 3)
    raw = torch.cat([features(row[None]) for row in rows])
    assert shares.size == raw.shape[1] == 84 * 3
    expected = (raw - raw.mean(0)) / (raw.std(0, correction=0) + 0.01)
    found = torch.cat([shares.eval()(row[None]) for row in rows])
    torch.testing.assert_close(found, expected)
    torch.testing.assert_close(found.mean(0), torch.zeros(shares.size), rtol=0, atol=1e-5)
    assert found.std(0).median() > 0.5


@pytest.mark.cpu
def test_what_training_read_is_neither_saved_nor_copied() -> None:
    model = make().train()
    shares: Any = model.shares
    empty = len(pickle.dumps(shares))
    x, mask = padded(some_series())
    shares(x, mask)
    assert shares._known
    assert len(pickle.dumps(shares)) == empty
    assert not copy.deepcopy(shares)._known


def test_training_in_bfloat16() -> None:
    model = make().bfloat16()
    x = some_series()[0][None].bfloat16()
    shares: Any = model.shares
    torch.testing.assert_close(shares.train()(x), shares.eval()(x))


def test_classifiers_add_them_to_the_pooled_hidden_states() -> None:
    model, x = make(), some_series()[0][None]
    assert model.shares is not None
    pooled = model.model(input_values=x).last_hidden_state.mean(1)
    expected = model.classifier(torch.cat([pooled, model.shares(x)], 1))
    torch.testing.assert_close(model(input_values=x).logits, expected)
    assert model.classifier.in_features == 8 + 84 * 3
    assert make(classifier_hidden_size=5)(input_values=x).logits.shape == (1, 3)


def test_padding_has_no_effect() -> None:
    model, rows = make(), some_series()
    x, mask = padded(rows)
    alone = torch.cat([model(input_values=row[None]).logits for row in rows])
    torch.testing.assert_close(model(input_values=x, attention_mask=mask).logits, alone)


@pytest.mark.cpu
def test_training_reads_a_series_once_and_gives_the_same() -> None:
    model, rows = make(), some_series()
    shares: Any = model.shares
    x, mask = padded(rows)
    expected, calls = shares(x, mask), []
    shares.convolutions.register_forward_hook(lambda *_: calls.append(1))
    shares.train()
    for _ in range(2):
        torch.testing.assert_close(shares(x, mask), expected)
        torch.testing.assert_close(shares(rows[2][None]), expected[2:3])  # without padding it is the same series
    assert len(calls) == 1
    other = rows[2].clone()
    other[-1] += 50
    assert not torch.equal(shares(other[None]), expected[2:3])
    prepared = make().shares
    assert prepared is not None
    prepared.prepare(some_series(4), 1)
    shares.load_state_dict(prepared.state_dict())
    torch.testing.assert_close(shares(x, mask), prepared(x, mask))
    shares.prepare(some_series(4), 2)
    assert not torch.allclose(shares(x, mask), prepared(x, mask))


def test_a_full_memory_of_series_starts_again(monkeypatch: pytest.MonkeyPatch) -> None:
    shares: Any = make().shares
    monkeypatch.setattr("lagwise.models.shares._MOST_KNOWN", 3 * shares.size)
    rows = some_series()
    expected = [shares(row[None]) for row in rows]
    shares.train()
    for row, own in zip(rows, expected, strict=True):
        torch.testing.assert_close(shares(row[None]), own)
        assert len(shares._known) <= 3
    torch.testing.assert_close(shares(*padded(rows)), torch.cat(expected))  # more than it keeps


def test_gradients_reach_the_trained_parts_alone() -> None:
    model, x = make(), some_series()[0][None].requires_grad_()
    model.train()(input_values=x, labels=torch.tensor([1])).loss.backward()
    assert model.classifier.weight.grad is not None
    assert x.grad is not None  # by the hidden states
    shares: Any = model.shares
    assert not list(shares.parameters())


def test_a_saved_model_has_its_thresholds(tmp_path: Path) -> None:
    model, x = make(), some_series()[1][None]
    model.save_pretrained(tmp_path)
    saved, _ = load_model(tmp_path, device=model.device)
    torch.testing.assert_close(saved(input_values=x).logits, model(input_values=x).logits)


def test_other_inputs_are_refused() -> None:
    with pytest.raises(ValueError, match="shares are of the samples of inputs 'values', got 'tokens'"):
        LagwiseConfig(shares=SHARES)
    model = make(inputs={**INPUTS, "stride": 1}, block={"name": "prenorm", "token_mixer": {"name": "ema"}}, causal=True)
    x = some_series()[0][None]
    documents = torch.arange(x.shape[1])[None] // 7
    with pytest.raises(ValueError, match="shares need input_values with one series in each row"):
        model(input_values=x, seq_idx=documents)
    with pytest.raises(ValueError, match="shares need input_values with one series in each row"):
        model(inputs_embeds=torch.randn(1, 5, 8))
    with pytest.raises(ValueError, match=r"rate 0\.5 is not for a model with shares"):
        at_rate(model, 0.5)
