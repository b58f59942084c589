"""Arguments from other programs are supported or refused, never silently ignored."""

from __future__ import annotations

import sys

import pytest
import torch
from tiny_models import tiny
from transformers import GenerationConfig, pipeline
from transformers.tokenization_utils_base import VERY_LARGE_INTEGER

from lagwise import LagwiseConfig, LagwiseForSequenceClassification, StreamingCache
from lagwise.data import load_tokenizer
from lagwise.models.loading import save_tokenizer

IDS = torch.tensor([[1, 2, 3, 4], [5, 6, 7, 8]])


@pytest.fixture(autouse=True)
def _ids_are_on_the_device(monkeypatch: pytest.MonkeyPatch, device: torch.device) -> None:
    monkeypatch.setattr(sys.modules[__name__], "IDS", IDS.to(device))


def classifier(**fields: object) -> LagwiseForSequenceClassification:
    own = {"vocab_size": 258, "hidden_size": 8, "num_hidden_layers": 1, "causal": False, "pad_token_id": 257}
    return LagwiseForSequenceClassification(LagwiseConfig(**{**own, **fields})).eval()


@pytest.mark.parametrize("fields", [{}, {"type_vocab_size": 2}, {"causal": True}])
def test_classifiers_accept_arguments_of_pipelines_and_reward_trainers(fields: dict) -> None:
    model = classifier(**fields)
    expected = model(IDS).logits
    for extra in ({"use_cache": False}, {"use_cache": True}, {"token_type_ids": torch.zeros_like(IDS)}):
        assert torch.equal(model(IDS, **extra).logits, expected), extra
    tokenizer = load_tokenizer("bytes")
    tokenizer.model_input_names = ["input_ids", "token_type_ids", "attention_mask"]
    classify = pipeline("text-classification", model=model, tokenizer=tokenizer)
    assert len(classify(["a text", "another"], truncation=True)) == 2


def test_tuples_instead_of_outputs() -> None:
    model = tiny("mega-lm")
    out = model(IDS, use_cache=False)
    (logits,) = model(IDS, use_cache=False, return_dict=False)
    assert torch.equal(logits, out.logits)
    states, cache = model.model(IDS, return_dict=False)
    assert isinstance(cache, StreamingCache)
    model.config.return_dict = False
    assert torch.equal(model(IDS, use_cache=False)[0], out.logits)
    assert torch.equal(model.model(IDS)[0], states)
    options = {"max_new_tokens": 2, "do_sample": False, "pad_token_id": 257}
    assert model.generate(IDS, **options).shape == (2, 6)
    config = GenerationConfig(cache_implementation="dynamic", **options)  # transformers' name of the default
    assert model.generate(IDS, generation_config=config).shape == (2, 6)
    with pytest.raises((TypeError, ValueError), match="return_dict"):
        model.generate(IDS, return_dict=False, **options)


def test_attention_weights_are_refused() -> None:
    model = tiny("mega-lm")
    with pytest.raises(ValueError, match="output_attentions=True is not supported"):
        model(IDS, output_attentions=True)
    model.config.output_attentions = True
    with pytest.raises(ValueError, match="output_attentions=True is not supported"):
        model(IDS)
    assert model(IDS, output_attentions=False).logits.isfinite().all()


def test_positional_arguments() -> None:
    for model in (tiny("mega-lm"), classifier()):
        mask = torch.ones_like(IDS)
        assert torch.equal(model(IDS, mask).logits, model(IDS, attention_mask=mask).logits)
        with pytest.raises(TypeError, match="positional arguments"):
            model(IDS, mask, *[None] * 18)
        with pytest.raises(TypeError, match="multiple values for argument 'input_ids'"):
            model(IDS, input_ids=IDS)


def test_the_tokenizer_has_the_models_length_limit(tmp_path) -> None:
    """Programs compare the limit with one number that stands for no limit."""
    tokenizer = load_tokenizer("bytes")
    assert tokenizer.model_max_length == VERY_LARGE_INTEGER
    for limit, expected in ((None, VERY_LARGE_INTEGER), (128, 128), (None, VERY_LARGE_INTEGER)):
        save_tokenizer(tokenizer, tmp_path, limit)
        assert load_tokenizer(str(tmp_path)).model_max_length == expected


def test_an_exported_graph_returns_no_cache() -> None:
    model = tiny("mega-lm")
    out = torch.export.export(model, (IDS,), strict=False).module()(IDS)
    torch.testing.assert_close(out.logits, model(IDS).logits)
    assert out.past_key_values is None


@pytest.mark.parametrize("token", [-1, 20])
@pytest.mark.parametrize("name", ["bos_token_id", "eos_token_id", "pad_token_id"])
def test_special_tokens_are_in_the_vocabulary(name: str, token: int) -> None:
    assert getattr(LagwiseConfig(vocab_size=20, **{name: 19}), name) == 19
    with pytest.raises(ValueError, match=rf"{name} must be in \[0, vocab_size = 20\), got {token}"):
        LagwiseConfig(vocab_size=20, **{name: token})
