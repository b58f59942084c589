"""A static cache, and what transformers' exporters make of `generate` with it: a graph for prompts, one for tokens."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from tiny_models import LIMIT, tiny
from torch.utils import _pytree as pytree
from transformers import GenerationConfig

from lagwise.models import LagwiseForCausalLM
from lagwise.models.fixed_cache import FixedCache

exporters = pytest.importorskip("transformers.exporters")

KINDS = ("tnn-lm", "fd-tnn-lm", "ski-tnn-lm", "mega-lm", "tcnca-lm", "converted")
GREEDY: dict[str, Any] = {"do_sample": False, "pad_token_id": 257}
STATIC = GenerationConfig(cache_implementation="static", **GREEDY)


def model_of(kind: str, **fields: Any) -> LagwiseForCausalLM:
    model = tiny("tnn-lm" if kind == "converted" else kind, sharp=True, **fields)
    return model.to_recurrent() if kind == "converted" else model


@pytest.mark.parametrize("kind", KINDS)
def test_a_static_cache_generates_the_same(kind: str) -> None:
    """Padded prompts of a batch, and beams, which change rows."""
    model, ids = model_of(kind), torch.randint(256, (2, 20))
    mask = torch.ones_like(ids)
    mask[0, :5] = 0
    for options in ({}, {"num_beams": 3}):
        given = {"attention_mask": mask, "max_new_tokens": 15, **GREEDY, **options}
        expected = model.generate(ids, **given)
        assert torch.equal(model.generate(ids, **given, cache_implementation="static"), expected)


@torch.no_grad()
def test_a_static_cache_goes_on_from_any_text() -> None:
    model = model_of("mega-lm", position_embedding="learned", max_position_embeddings=LIMIT)
    ids = torch.randint(256, (2, LIMIT))
    expected, cache = model(ids).logits, FixedCache()
    parts = [model(ids[:, a:b], past_key_values=cache).logits for a, b in ((0, 20), (20, 21), (21, 33))]
    torch.testing.assert_close(torch.cat(parts, 1), expected[:, :33], rtol=0, atol=1e-9)
    again = pytree.tree_map(lambda leaf: leaf, cache)
    parts = [model(ids[:, 33:], past_key_values=each).logits for each in (cache, again)]
    torch.testing.assert_close(parts[0], expected[:, 33:], rtol=0, atol=1e-9)
    torch.testing.assert_close(parts[1], expected[:, 33:], rtol=0, atol=1e-9)
    assert cache.get_seq_length() == LIMIT
    with pytest.raises(ValueError, match="at most"):
        model(ids[:, :1], past_key_values=cache)
    with pytest.raises(ValueError, match="output_hidden_states is not supported"):
        model(ids[:, :1], past_key_values=again, output_hidden_states=True)
    with pytest.raises(ValueError, match="only prompts may be padded"):
        model(ids[:, :1], past_key_values=again, attention_mask=torch.tensor([[1], [0]]))
    with pytest.raises(ValueError, match="rolled back"):
        cache.crop(-1)
    for parameter in model.parameters():
        parameter.mul_(1.1)
    cache.reset()
    changed = [model(ids[:, a:b], past_key_values=cache).logits for a, b in ((0, 20), (20, 21))]
    torch.testing.assert_close(torch.cat(changed, 1), model(ids).logits[:, :21], rtol=0, atol=1e-9)


@pytest.mark.parametrize("recipe", ["transformer-alibi-lm", "learned-decay"])
def test_states_that_grow_have_no_static_cache(recipe: str) -> None:
    with pytest.raises(ValueError, match="grows with"):
        tiny(recipe).generate(torch.zeros(1, 3, dtype=torch.long), generation_config=STATIC, max_new_tokens=2)


def streamed(exporter: Any, config: Any, kind: str) -> None:
    """Export, and compare the texts that the two graphs give with `generate`'s, at another length if it is open."""
    model, ids = model_of(kind).float(), torch.randint(256, (1, 40))
    given = {"input_ids": ids, "attention_mask": torch.ones_like(ids)}
    exported = exporter.export_for_generation(model, given, config, generation_config=STATIC)
    for length in (40, 23) if config.dynamic else (40,):
        prompt = ids[:, -length:]
        expected = model.generate(prompt, max_new_tokens=12, **GREEDY)
        places = torch.arange(length + 12)[None]
        run = exported.runners["prefill"]
        out = run(input_ids=prompt, past_key_values=FixedCache(), position_ids=places[:, :length])
        logits = torch.as_tensor(out.logits)
        torch.testing.assert_close(logits, model(prompt).logits, rtol=0, atol=1e-4)
        for number in range(length, length + 12):
            token = logits[:, -1:].argmax(-1)
            assert token.item() == expected[0, number]
            out = exported.runners["decode"](
                input_ids=token, past_key_values=out.past_key_values, position_ids=places[:, number : number + 1]
            )
            logits = torch.as_tensor(out.logits)


@pytest.mark.parametrize("kind", [pytest.param(kind, marks=pytest.mark.slow) for kind in KINDS])
def test_the_dynamo_exporters_graphs_give_the_models_tokens(kind: str) -> None:
    """SKI's prompts are processed token by token, so its graph is of one length."""
    streamed(exporters.DynamoExporter(), exporters.DynamoConfig(dynamic=kind != "ski-tnn-lm"), kind)


@pytest.mark.slow
@pytest.mark.parametrize("kind", KINDS)
def test_the_onnx_exporters_graphs_give_the_models_tokens(kind: str) -> None:
    pytest.importorskip("onnxscript")
    pytest.importorskip("onnxruntime")
    streamed(exporters.OnnxExporter(), exporters.OnnxConfig(dynamic=kind != "ski-tnn-lm"), kind)


@pytest.mark.parametrize("kind", ["tnn-lm", "mega-lm"])
def test_other_caches_are_refused_with_the_remedy(kind: str) -> None:
    ids = torch.randint(256, (1, 5))
    with pytest.raises(RuntimeError) as caught:
        exporters.DynamoExporter().export_for_generation(
            model_of(kind), {"input_ids": ids}, exporters.DynamoConfig(dynamic=False)
        )
    assert "cache_implementation='static'" in str(caught.value.__cause__)


def test_padded_prompts_are_not_exported() -> None:
    ids, mask = torch.randint(256, (2, 5)), torch.tensor([[0, 1, 1, 1, 1], [1, 1, 1, 1, 1]])
    with pytest.raises(RuntimeError) as caught:
        exporters.DynamoExporter().export_for_generation(
            model_of("converted"),
            {"input_ids": ids, "attention_mask": mask},
            exporters.DynamoConfig(dynamic=False),
            generation_config=STATIC,
        )
    assert "attention_mask" in str(caught.value.__cause__)
