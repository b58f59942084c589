"""The streaming step as a function of tensors."""

from __future__ import annotations

import pytest
import torch
from tiny_models import tiny

from lagwise.models import LagwiseForCausalLM, StreamingCache
from lagwise.models.step import StreamingStep

_POSITIONS = {"position_embedding": "sinusoidal"}
CASES: dict[str, LagwiseForCausalLM] = {}


def case(name: str) -> LagwiseForCausalLM:
    """A model of each kind that streams by a fixed step."""
    if name not in CASES:
        recipe, _, variant = name.partition("+")
        fields = {"positions": {"position_embedding": "sinusoidal"}}.get(variant, {})
        model = tiny(recipe, sharp=True, **fields)
        CASES[name] = model.to_recurrent() if variant == "converted" else model
    return CASES[name]


KINDS = ("tnn-lm", "fd-tnn-lm", "ski-tnn-lm", "mega-lm", "tcnca-lm", "tnn-lm+converted", "mega-lm+positions")
kinds = pytest.mark.parametrize("kind", KINDS)


@kinds
@torch.no_grad()
def test_the_step_equals_the_model(kind: str) -> None:
    model, ids = case(kind), torch.randint(258, (2, 60))
    step = StreamingStep(model)
    expected, state = model(ids).logits, step.start(2)
    shapes = {name: tensor.shape for name, tensor in state.items()}
    for number, tokens in enumerate(ids.unbind(1)):
        logits, state = step(tokens, state)
        torch.testing.assert_close(logits, expected[:, number], rtol=0, atol=1e-10 * float(expected.abs().max()))
    assert {name: tensor.shape for name, tensor in state.items()} == shapes
    assert not any(tensor.is_complex() for tensor in state.values())


@kinds
@torch.no_grad()
def test_a_cache_passes_to_the_step_and_back(kind: str) -> None:
    """After padded prompts, which put rows out of step."""
    model, ids = case(kind), torch.randint(258, (2, 60))
    mask = torch.ones_like(ids)
    mask[1, :9] = 0
    expected = model(ids, attention_mask=mask).logits
    cache = StreamingCache(len(model.model.layers))
    model(ids[:, :30], attention_mask=mask[:, :30], past_key_values=cache)
    step = StreamingStep(model)
    state = step.take(cache)
    for number in range(30, 45):
        logits, state = step(ids[:, number], state)
        torch.testing.assert_close(logits, expected[:, number], rtol=0, atol=1e-9)
    step.give(state, cache)
    after = model(ids[:, 45:], past_key_values=cache).logits
    torch.testing.assert_close(after, expected[:, 45:], rtol=0, atol=1e-9)


@pytest.mark.parametrize("recipe", ["transformer-alibi-lm", "learned-decay"])
def test_a_model_whose_state_grows_is_refused(recipe: str) -> None:
    with pytest.raises(ValueError, match="grows with"):
        StreamingStep(tiny(recipe))
