"""Drafts, by a smaller model or by prompt lookup, change the speed of generation but not the text."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from tiny_models import RECIPES, tiny
from torch import Tensor

from lagwise.models import LagwiseForCausalLM, StreamingCache

NEW = 24
GREEDY: dict[str, Any] = {"do_sample": False, "max_new_tokens": NEW, "min_new_tokens": NEW, "pad_token_id": 257}
GREEDY["eos_token_id"] = 256  # which prompt lookup of earlier versions of transformers cannot do without
every_recipe = pytest.mark.parametrize("recipe", RECIPES)


def prompt(length: int = 30) -> Tensor:
    return torch.randint(0, 256, (1, 6)).repeat(1, length // 6)


def tokens_read(model: LagwiseForCausalLM) -> list[int]:
    """A list that collects the length of each input."""
    seen: list[int] = []
    model.model.layers[0].register_forward_pre_hook(lambda _, args: seen.append(args[0].shape[1]))
    return seen


def noisy(model: LagwiseForCausalLM, recipe: str) -> LagwiseForCausalLM:
    """A draft model that is often right: the same weights with noise."""
    draft = tiny(recipe, sharp=True)
    draft.load_state_dict(model.state_dict())
    with torch.no_grad():
        for parameter in draft.model.layers.parameters():
            parameter.add_(0.02 * parameter.abs().mean() * torch.randn_like(parameter))
    return draft


@pytest.mark.sampled(4)
@every_recipe
def test_the_text_equals_greedy_decoding(recipe: str) -> None:
    model, ids = tiny(recipe, sharp=True), prompt()
    expected = model.generate(ids, **GREEDY)
    for draft in (model, noisy(model, recipe), tiny("mega-lm", sharp=True, num_hidden_layers=1)):
        assert torch.equal(model.generate(ids, assistant_model=draft, **GREEDY), expected)
    found = model.generate(ids, prompt_lookup_num_tokens=5, **GREEDY)
    assert torch.equal(found[:, : expected.shape[1]], expected)  # earlier versions of transformers go beyond the length


def test_a_good_draft_saves_forwards_and_tokens_are_not_reprocessed() -> None:
    model, ids = tiny("mega-lm", sharp=True), prompt(300)
    draft, seen = noisy(model, "mega-lm"), tokens_read(model)
    model.generate(ids, assistant_model=draft, **GREEDY)
    assert seen[0] == 299  # the prompt is read once, whatever is rejected
    assert max(seen[1:]) < 80  # bounded by what is read again, and a draft of 20
    assert len(seen) < NEW
    seen.clear()
    model.generate(ids, assistant_model=tiny("mega-lm", sharp=True, num_hidden_layers=1), **GREEDY)  # always wrong
    assert len(seen) < 1.2 * NEW + 2


def test_the_cache_continues_as_without_drafts() -> None:
    model, ids, more = tiny("tnn-lm", sharp=True), prompt(), prompt(12)
    options = {**GREEDY, "return_dict_in_generate": True}
    out = model.generate(ids, assistant_model=noisy(model, "tnn-lm"), **options)
    assert isinstance(out.past_key_values, StreamingCache)
    assert out.past_key_values.past is None  # or it would remember every state from here on
    text = torch.cat([out.sequences, more], dim=1)
    expected = model.generate(text, **GREEDY)
    assert torch.equal(model.generate(text, past_key_values=out.past_key_values, **GREEDY), expected)


def test_sampling_draws_from_the_models_own_distribution() -> None:
    """The distribution of the second token given the first, over many draws, for any proposals of the draft model."""
    model, ids = tiny("mega-lm", vocab_size=4, sharp=True), torch.tensor([[0, 1, 2]])
    draft = tiny("mega-lm", vocab_size=4, sharp=True, num_hidden_layers=1)
    options: dict[str, Any] = {"do_sample": True, "max_new_tokens": 2, "pad_token_id": 3, "top_k": 0}
    drawn = torch.cat([model.generate(ids, assistant_model=draft, **options)[:, 3:] for _ in range(60)])
    first = model(ids).logits[0, -1].softmax(-1)
    found = torch.bincount(drawn[:, 0], minlength=4) / len(drawn)
    torch.testing.assert_close(found.double(), first, rtol=0, atol=0.2)


@pytest.mark.sampled(2)
@every_recipe
def test_crop_goes_back_to_a_recorded_state(recipe: str) -> None:
    model, ids = tiny(recipe), torch.randint(0, 256, (2, 50))
    cache = StreamingCache(len(model.model.layers))
    model(ids[:, :20], past_key_values=cache)
    cache.activate_past_recording()
    for start in (20, 21, 22, 30):
        model(ids[:, start : {22: 30, 30: 40}.get(start, start + 1)], past_key_values=cache)
    cache.crop(-13)  # to 27, which lies inside a chunk
    assert cache.get_seq_length() == 22
    out = model(ids[:, 22:], past_key_values=cache).logits
    torch.testing.assert_close(out, model(ids).logits[:, 22:], rtol=1e-7, atol=1e-7)
    cache.crop(45)
    assert cache.get_seq_length() == 22
    cache.crop(0)
    with pytest.raises(ValueError, match="unless it was recorded"):
        cache.crop(-1)
    with pytest.raises(ValueError, match="unless it was recorded"):
        model(ids).past_key_values.crop(-1)


def test_unsupported_options_are_refused() -> None:
    model, ids = tiny("mega-lm"), prompt()
    with pytest.raises(ValueError, match="output_hidden_states=True is not supported by assisted decoding"):
        model.generate(
            ids, prompt_lookup_num_tokens=3, return_dict_in_generate=True, output_hidden_states=True, **GREEDY
        )
    embedded = model.get_input_embeddings()(ids)
    with pytest.raises(ValueError, match="inputs_embeds is not supported by assisted decoding"):
        model.generate(inputs_embeds=embedded, prompt_lookup_num_tokens=3, **GREEDY)
