"""Scores of masked language models against sums computed by hand."""

from __future__ import annotations

import math

import pytest
import torch
import torch.nn.functional as F

from lagwise import LagwiseConfig, LagwiseForMaskedLM
from lagwise.evaluation import masked_score


@pytest.fixture(scope="module")
def model() -> LagwiseForMaskedLM:
    torch.manual_seed(0)
    config = LagwiseConfig(vocab_size=9, hidden_size=8, num_hidden_layers=1, causal=False, max_position_embeddings=40)
    return LagwiseForMaskedLM(config).double().eval()


def stream(count: int = 30) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    torch.manual_seed(1)
    labels = torch.randint(9, (count,))
    hidden = labels.where(torch.arange(count) % 4 != 2, 8)
    labels[torch.arange(count) % 4 != 2] = -100
    return hidden, labels, (torch.arange(count) >= 13).long()


@pytest.mark.parametrize("sparse", [False, True])
@pytest.mark.parametrize("length", [7, 10, 30, 40])
def test_the_loss_is_the_mean_over_windows_with_separate_documents(model, length: int, sparse: bool) -> None:
    model.config.sparse_prediction = sparse
    hidden, labels, documents = stream()
    score = masked_score(model, hidden, labels, documents, length)
    nats, correct = 0.0, 0
    for start in range(0, 30, length):
        for document in (0, 1):
            mine = documents[start : start + length] == document
            ids, wanted = hidden[start : start + length][mine], labels[start : start + length][mine]
            if (wanted == -100).all():
                continue
            logits = model(ids[None]).logits[0][wanted != -100]
            nats += F.cross_entropy(logits, wanted[wanted != -100], reduction="sum").item()
            correct += int((logits.argmax(-1) == wanted[wanted != -100]).sum())
    assert score["masked"] == int((labels != -100).sum())
    assert score["nats"] == pytest.approx(nats, rel=1e-6)
    assert score["correct"] == correct
    assert score["perplexity"] == pytest.approx(math.exp(nats / score["masked"]))


def test_models_that_cannot_be_scored(model) -> None:
    hidden, labels, documents = stream(60)
    with pytest.raises(ValueError, match="limit of 40"):
        masked_score(model, hidden, labels, documents, 50)
    with pytest.raises(ValueError, match="none of the 60 tokens"):
        masked_score(model, hidden, torch.full_like(labels, -100), documents, 10)
