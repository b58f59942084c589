"""Dynamic evaluation: what is scored before it is learned."""

from __future__ import annotations

import copy
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F

from lagwise.evaluation import evaluate
from lagwise.models import LagwiseConfig, LagwiseForCausalLM
from lagwise.training import dynamic
from lagwise.training.dynamic import dynamic_score
from lagwise.training.recipe import load_recipe

SIZES = np.ones(20)


def made(recipe: str) -> LagwiseForCausalLM:
    config = {**load_recipe(recipe).model, "hidden_size": 24, "num_hidden_layers": 1, "vocab_size": 20}
    torch.manual_seed(0)
    return LagwiseForCausalLM(LagwiseConfig(**config, **({"ngram_buckets": 50} if recipe == "best-lm" else {}))).eval()


def by_definition(model: Any, tokens: np.ndarray, length: int, segment: int, rate: float) -> float:
    """Score each segment with its window so far, and only then change the weights."""
    model, stream = copy.deepcopy(model), torch.from_numpy(tokens)
    squares = [torch.zeros_like(p) for p in model.parameters()]
    total, step = 0.0, 0
    for start in range(0, len(stream) - 1, length):
        window, targets = (stream[:-1][start : start + length], stream[1:][start : start + length])
        for first in range(0, len(window), segment):
            logits = model(window[None, : first + segment]).logits[0, first:]
            nats = F.cross_entropy(logits, targets[first : first + segment], reduction="sum")
            total, step = total + nats.item(), step + 1
            for p, g, v in zip(
                model.parameters(), torch.autograd.grad(nats / segment, [*model.parameters()]), squares, strict=True
            ):
                v.mul_(0.999).addcmul_(g, g, value=0.001)
                with torch.no_grad():
                    p -= rate * g / ((v / (1 - 0.999**step)).sqrt() + 1e-8)
    return total


def test_every_token_is_scored_before_it_is_learned(monkeypatch: pytest.MonkeyPatch) -> None:
    """A window of one segment at a time, where no gradient is cut off."""
    monkeypatch.setattr(dynamic, "SEGMENT", 16)
    model, tokens = made("mega-lm"), np.random.default_rng(0).integers(0, 20, 16 * 9 + 6)
    before = {name: value.clone() for name, value in model.state_dict().items()}
    found = dynamic_score(model, tokens, 16, SIZES, rate=1e-3)
    assert found.nats == pytest.approx(by_definition(model, tokens, 16, 16, 1e-3), rel=1e-4)
    assert found.nats != pytest.approx(evaluate(model, tokens, 16, SIZES).nats, rel=1e-4)
    for name, value in model.state_dict().items():
        assert torch.equal(value, before[name]), name
    first = evaluate(model, tokens[:17], 16, SIZES).nats  # of the first segment
    assert dynamic_score(model, tokens[:17], 16, SIZES, rate=0.1).nats == pytest.approx(first, rel=1e-5)


@pytest.mark.parametrize("recipe", ["best-lm", "mega-lm", "transformer-alibi-lm"])
def test_contexts_are_those_of_evaluation(recipe: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Without learning the scores are equal; with it, a text of few tokens costs less."""
    monkeypatch.setattr(dynamic, "SEGMENT", 16)
    model = made(recipe)
    tokens = np.random.default_rng(0).geometric(0.4, 240).clip(max=19)
    usual = evaluate(model, tokens, 100, SIZES)
    still = dynamic_score(model, tokens, 100, SIZES, rate=1e-30)
    assert still.nats == pytest.approx(usual.nats, rel=1e-5)
    assert (still.tokens, still.text_bytes) == (usual.tokens, usual.text_bytes)
    assert dynamic_score(model, tokens, 100, SIZES, rate=1e-2).nats < 0.95 * usual.nats
