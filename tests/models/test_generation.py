"""Transformers' `generate` with mixer states, against recomputation for every token."""

from __future__ import annotations

import warnings
from typing import Any

import pytest
import torch
import transformers
from packaging.version import Version
from tiny_models import LIMIT, RECIPES, VARIANTS, tiny
from torch import Tensor
from transformers import TextStreamer
from transformers.utils import generic

from lagwise.data import load_tokenizer
from lagwise.models import LagwiseForCausalLM, StreamingCache
from lagwise.models.cache import NAMES

every_recipe = pytest.mark.parametrize("recipe", [*RECIPES, *VARIANTS])
NEW = 8
GREEDY: dict[str, Any] = {"do_sample": False, "max_new_tokens": NEW, "min_new_tokens": NEW, "pad_token_id": 257}
BEAMS = {**GREEDY, "num_beams": 3}


def prompt(rows: int = 2, length: int = 40) -> Tensor:
    return torch.randint(0, 256, (rows, length))


def left_padded(*prompts: Tensor) -> dict[str, Tensor]:
    length = max(p.shape[1] for p in prompts)
    pads = [length - p.shape[1] for p in prompts]
    ids = torch.cat([torch.nn.functional.pad(p, (n, 0), value=257) for p, n in zip(prompts, pads, strict=True)])
    return {"input_ids": ids, "attention_mask": (torch.arange(length) >= torch.tensor(pads)[:, None]).long()}


@pytest.mark.sampled(3)
@every_recipe
def test_sampling_and_beams_equal_recomputation(recipe: str) -> None:
    """Also in single precision."""
    model, ids = tiny(recipe, sharp=True).float(), prompt()
    sampling = {**GREEDY, "do_sample": True, "num_return_sequences": 3, "top_p": 0.9}
    for options in ({**BEAMS, "num_return_sequences": 2}, sampling):
        results = []
        for extra in ({}, {"use_cache": False}, {"prefill_chunk_size": 16}):
            torch.manual_seed(1)
            results.append(model.generate(ids, **options, **extra))
        assert results[0].shape == (2 * options.get("num_return_sequences", 1), 40 + NEW)
        assert all(torch.equal(each, results[0]) for each in results), options


@pytest.mark.sampled(3)
@every_recipe
def test_continuing_from_a_returned_cache(recipe: str) -> None:
    """For a padded batch, with the generated text and further tokens."""
    model, batch, more = tiny(recipe, sharp=True), left_padded(prompt(1, 5), prompt(1, 31)), prompt(2, 9)
    first = model.generate(**batch, return_dict_in_generate=True, **GREEDY)
    assert isinstance(first.past_key_values, StreamingCache)
    ids = torch.cat([first.sequences, more], dim=1)
    mask = torch.nn.functional.pad(batch["attention_mask"], (0, ids.shape[1] - 31), value=1)
    anew = model.generate(ids, attention_mask=mask, **GREEDY)
    # before 5.21, transformers cuts a prompt into chunks as if there were nothing in the cache
    chunks = [{"prefill_chunk_size": 4}] if Version(transformers.__version__) >= Version("5.21") else []
    for extra in ({}, *chunks):
        first = model.generate(**batch, return_dict_in_generate=True, **GREEDY)
        more = model.generate(ids, attention_mask=mask, past_key_values=first.past_key_values, **GREEDY, **extra)
        assert torch.equal(more, anew), extra


@pytest.mark.sampled(3)
@every_recipe
def test_prompts_of_embeddings(recipe: str) -> None:
    model, ids = tiny(recipe, sharp=True), prompt()
    embedded = model.get_input_embeddings()(ids)
    assert torch.equal(model.generate(inputs_embeds=embedded, **GREEDY), model.generate(ids, **GREEDY)[:, 40:])


class TestStopping:
    """Each row ends independently."""

    def test_at_the_end_token(self) -> None:
        model, ids = tiny("tnn-lm", sharp=True), prompt(3)
        whole = model.generate(ids, **GREEDY)
        end = int(whole[0, 45])
        stopped = model.generate(ids, **{**GREEDY, "min_new_tokens": None}, eos_token_id=end)
        for row, full in zip(stopped, whole, strict=True):
            places = (full[40:] == end).nonzero().flatten().tolist()
            length = 40 + (places[0] + 1 if places else NEW)  # pads follow
            assert torch.equal(row[:length], full[:length])
            assert (row[length:] == 257).all()


def test_streamers_get_every_token(capsys: pytest.CaptureFixture[str]) -> None:
    model, tokenizer = tiny("mega-lm", sharp=True), load_tokenizer("bytes")
    ids = tokenizer("a prompt", return_tensors="pt")["input_ids"]
    out = model.generate(ids, streamer=TextStreamer(tokenizer), prefill_chunk_size=3, **GREEDY)
    assert capsys.readouterr().out == tokenizer.decode(out[0]) + "\n"


@pytest.mark.parametrize("name", NAMES)
@torch.no_grad()
def test_a_cache_is_taken_and_returned_by_either_name(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Without the line that transformers prints where an old name is used."""
    model, ids = tiny("mega-lm", sharp=True), prompt()
    printed: list[str] = []
    monkeypatch.setattr(generic.logger, "warning_once", lambda message, *_: printed.append(message))
    expected = model(ids).logits[:, 20:]
    for part in (model, model.model):
        found = part(ids[:, 20:], **{name: getattr(part(ids[:, :20], use_cache=True), name)})
        assert isinstance(getattr(found, name), StreamingCache)
        logits = found.logits if part is model else model.to_logits(found.last_hidden_state)
        torch.testing.assert_close(logits, expected, rtol=0, atol=1e-9)
        with pytest.raises(ValueError, match="two names of one argument"):
            part(ids, cache=StreamingCache(1), past_key_values=StreamingCache(1))
    with warnings.catch_warnings(action="error", category=FutureWarning):
        begun = getattr(model(ids[:, :20], use_cache=True), name)
        assert torch.equal(model.generate(ids, **{name: begun}, **GREEDY), model.generate(ids, **GREEDY))
    assert not any("past_key_values" in line for line in printed)


def test_caches_of_other_kinds_are_refused() -> None:
    for name in ("quantized", "offloaded", "static"):
        with pytest.raises(ValueError, match=f"cache_implementation='{name}' is not supported.*compile_step"):
            tiny("tnn-lm").generate(prompt(1), cache_implementation=name, **GREEDY)


class TestBadInput:
    """Errors that are raised before the first forward pass."""

    @pytest.fixture
    def model(self, monkeypatch: pytest.MonkeyPatch) -> LagwiseForCausalLM:
        model = tiny("transformer-learned-lm")
        monkeypatch.setattr(model.model, "embed_tokens", None)
        return model

    def test_no_prompt(self, model: LagwiseForCausalLM) -> None:
        with pytest.raises(ValueError, match="begin an empty prompt with the end-of-text token"):
            model.generate(prompt(1, 0), **GREEDY)
        ids = torch.tensor([[257, 257], [1, 2]])
        for mask in (torch.tensor([[0, 0], [1, 1]]), None):  # without a mask pads say so
            for extra in ({}, {"use_cache": False}, {"prefill_chunk_size": 1}, BEAMS):
                with pytest.raises(ValueError, match="row 0 of attention_mask is all padding"):
                    model.generate(ids, attention_mask=mask, **{**GREEDY, **extra})

    def test_padding_on_the_right(self, model: LagwiseForCausalLM) -> None:
        """Where the logits of the last token are not those of the last chunk."""
        mask = torch.tensor([[1, 1, 0]])
        for name, message in (("prefill_chunk_size", "read in chunks"), ("prompt_lookup_num_tokens", "with drafts")):
            with pytest.raises(ValueError, match=f"{message}.* must be padded on the left"):
                model.generate(prompt(1, 3), attention_mask=mask, **GREEDY, **{name: 2})

    def test_longer_than_the_limit(self, model: LagwiseForCausalLM) -> None:
        for length, extra, message in (
            (LIMIT, {}, f"at most {LIMIT} tokens; the prompt has {LIMIT}, so at most 0 can be added; shorten it"),
            (LIMIT + 9, {"max_new_tokens": None}, f"the prompt has {LIMIT + 9}, so at most 0 can be added; shorten it"),
            (100, {"max_new_tokens": 29}, "the prompt has 100, so at most 28 can be added; ask for fewer than 29"),
            (100, {"max_new_tokens": None, "max_length": 140}, "at most 28 can be added; ask for fewer than 40"),
        ):
            with pytest.raises(ValueError, match=message):
                model.generate(prompt(1, length), **{**GREEDY, **extra})
        with pytest.raises(ValueError, match="the prompt has 125, so at most 3 can be added"):
            model.generate(inputs_embeds=torch.zeros(1, 125, 16), **GREEDY)

    @pytest.mark.filterwarnings("ignore:Using the model-agnostic default")
    def test_up_to_the_limit(self) -> None:
        model = tiny("transformer-learned-lm")
        options = {"do_sample": False, "pad_token_id": 257}
        assert model.generate(prompt(1, 100), max_new_tokens=28, **options).shape[1] == LIMIT
        assert model.generate(prompt(1, 120), **options).shape[1] == LIMIT  # the 20 that nobody asked for

    def test_caches_of_other_models(self) -> None:
        ids = prompt(2, 5)
        models = {recipe: tiny(recipe) for recipe in RECIPES}
        caches = {recipe: model(ids).past_key_values for recipe, model in models.items()}
        whole = torch.cat([ids, ids], dim=1)
        for recipe in RECIPES:
            for other, cache in caches.items():
                if other != recipe:
                    with pytest.raises(ValueError, match=r"filled by another model|a StreamingCache of \d layers"):
                        models[recipe].generate(whole, past_key_values=cache, **GREEDY)
        with pytest.raises(ValueError, match="filled by another model"):
            tiny("tnn-lm", hidden_size=8).generate(whole, past_key_values=caches["tnn-lm"], **GREEDY)
        with pytest.raises(ValueError, match="filled by another model"):  # alike but for its weights
            tiny("tnn-lm").generate(whole, past_key_values=caches["tnn-lm"], **GREEDY)
        with pytest.raises(ValueError, match="StreamingCache of 3 layers, got one of 2"):
            tiny("tnn-lm", num_hidden_layers=3).generate(whole, past_key_values=caches["tnn-lm"], **GREEDY)
        with pytest.raises(ValueError, match="holds a batch of 2, the input is a batch of 6"):
            models["tnn-lm"].generate(whole, past_key_values=caches["tnn-lm"], **BEAMS)
        assert models["tnn-lm"].generate(whole, past_key_values=caches["tnn-lm"], **GREEDY).shape == (2, 10 + NEW)

    def test_no_new_tokens_for_a_cache(self) -> None:
        """Otherwise the text would silently be processed twice or not at all."""
        model, ids = tiny("tnn-lm"), prompt(1, 8)
        cache = model(ids).past_key_values
        for given in (ids, ids[:, :3]):
            with pytest.raises(ValueError, match="the cache holds 8 tokens already"):
                model.generate(given, past_key_values=cache, **GREEDY)
