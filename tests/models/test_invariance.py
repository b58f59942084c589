"""With LAGWISE_INVARIANT=1 the logits of a row have the same bits in every batch as alone."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from tiny_models import CAUSAL, tiny
from torch import Tensor

from lagwise.models import LagwiseForCausalLM, StreamingSession

LENGTH = 26
MODELS = (*CAUSAL, "megalodon-lm", "transformer-learned-lm")


@pytest.fixture(autouse=True)
def apart(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LAGWISE_INVARIANT", "1")


def streamed(model: LagwiseForCausalLM, ids: Tensor, mask: Tensor | None, ends: list[int]) -> Tensor:
    """The logits of texts that are read in chunks with these ends."""
    cache, parts, start = None, [], 0
    for end in ends:
        seen = None if mask is None else mask[:, :end]
        out = model(ids[:, start:end], attention_mask=seen, cache=cache, use_cache=True)
        cache, start = out.cache, end
        parts.append(out.logits)
    return torch.cat(parts, 1)


@pytest.mark.sampled(2)
@pytest.mark.parametrize("name", MODELS)
@settings(max_examples=4, deadline=None, database=None)
@given(seed=st.integers(0, 99), rows=st.integers(2, 9), cut=st.integers(1, LENGTH - 2))
@torch.no_grad()
def test_bits_of_a_row_do_not_depend_on_the_batch(name: str, seed: int, rows: int, cut: int) -> None:
    """Whatever the batch size, order and padding, whole and in chunks."""
    model = _model(name)
    random = torch.Generator().manual_seed(seed)
    ids = torch.randint(1, 50, (rows, LENGTH), generator=random)
    mask = torch.rand(rows, LENGTH, generator=random) < torch.rand(rows, 1, generator=random) + 0.3
    mask[:, cut - 1], mask[-1] = True, True
    ends = [cut, LENGTH - 1, LENGTH]
    whole, parts = model(ids, attention_mask=mask.long()).logits, streamed(model, ids, mask.long(), ends)
    for row in torch.randperm(rows, generator=random)[:2].tolist():
        alone, real = ids[row : row + 1, mask[row]], mask[row]
        assert torch.equal(whole[row, real], model(alone).logits[0])
        own = sorted({int(real[:end].sum()) for end in ends})
        assert torch.equal(parts[row, real], streamed(model, alone, None, own)[0])
    order = torch.randperm(rows, generator=random)
    assert torch.equal(model(ids[order], attention_mask=mask[order].long()).logits, whole[order])


_models: dict[str, LagwiseForCausalLM] = {}


def _model(name: str) -> LagwiseForCausalLM:
    if name not in _models:
        _models[name] = tiny(name, sharp=True).float()
        _models[name].generation_config.eos_token_id = None
    return _models[name]


@pytest.mark.sampled(2)
@pytest.mark.parametrize("name", MODELS)
@torch.no_grad()
def test_generation_and_sessions(name: str) -> None:
    model = _model(name)
    ids, mask = torch.randint(1, 50, (3, 12)), torch.ones(3, 12, dtype=torch.long)
    mask[1, :5] = 0
    rows = [row[real.bool()][None] for row, real in zip(ids, mask, strict=True)]
    options: dict[str, Any] = {"max_new_tokens": 4, "return_dict_in_generate": True, "pad_token_id": 0}
    for beams in (1, 2):
        ways = {**options, "num_beams": beams, "do_sample": False, "output_logits": True}
        together = model.generate(ids, attention_mask=mask, **ways)
        for i, row in enumerate(rows):
            alone = model.generate(row, **ways)
            assert torch.equal(together.sequences[i, -4:], alone.sequences[0, -4:])
            for ours, own in zip(together.logits, alone.logits, strict=True):
                assert torch.equal(ours[i * beams : (i + 1) * beams], own)
    session, single = StreamingSession(model), StreamingSession(model)
    handles = [session.add(row[0]) for row in rows]
    session.step(dict.fromkeys(handles, 5))
    session.drop(handles[0])
    session.step(dict.fromkeys(handles[1:], 7))
    own = single.add(rows[2][0])
    single.step({own: 5})
    assert torch.equal(session.logits[1], single.step({own: 7})[0])


def test_what_cannot_be_computed_apart_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    model, ids = tiny("mega-lm"), torch.ones(2, 3, dtype=torch.long)
    with pytest.raises(torch._dynamo.exc.Unsupported, match="LAGWISE_INVARIANT=1 is not for compiled models"):
        torch.compile(model, backend="eager", fullgraph=True)(ids)
    with pytest.raises(ValueError, match="needs a number as logits_to_keep"):
        model(ids, logits_to_keep=torch.tensor([0]))
    monkeypatch.setenv("LAGWISE_INVARIANT", "0")
    cache = model(ids, use_cache=True).cache
    monkeypatch.setenv("LAGWISE_INVARIANT", "1")
    with pytest.raises(ValueError, match="begun without LAGWISE_INVARIANT=1"):
        model(ids, cache=cache)
