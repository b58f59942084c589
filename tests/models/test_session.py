"""Sessions: sequences that come and go get the same logits as alone."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from tiny_models import LIMIT, tiny
from torch import Tensor

from lagwise.models import (
    LagwiseConfig,
    LagwiseForCausalLM,
    LagwiseForSequenceClassification,
    StreamingCache,
    StreamingSession,
)

VOCABULARY = 30
RECIPES = ("tnn-lm", "fd-tnn-lm", "ski-tnn-lm", "mega-lm", "megalodon-lm", "tcnca-lm")
RECIPES += ("transformer-learned-lm", "transformer-alibi-lm")
GTU: dict[str, Any] = {"name": "gtu", "expansion": 1}
CHAIN: dict[str, Any] = {
    "name": "chain",
    "blocks": [{"name": "prenorm", "token_mixer": {"name": "tcn"}}, {"name": "mega", "chunk": 9, "query_size": 8}],
}
every_model = pytest.mark.parametrize("kind", [*RECIPES, "chain"])


def make(kind: str, **fields: Any) -> LagwiseForCausalLM:
    if kind not in RECIPES:
        kind, fields = "tnn-lm", {"block": CHAIN, **fields}
    return tiny(kind, sharp=True, vocab_size=VOCABULARY, **fields)


def tokens(length: int) -> Tensor:
    return torch.randint(0, VOCABULARY, (length,))


class Texts:
    """A session and the whole texts of its sequences."""

    def __init__(self, model: LagwiseForCausalLM, **options: Any):
        self.model = model
        self.session = StreamingSession(model, **options)
        self.texts: dict[int, Tensor] = {}

    def add(self, length: int) -> int:
        prompt = tokens(length)
        handle = self.session.add(prompt)
        self.texts[handle] = prompt
        return handle

    def step(self, times: int = 1) -> None:
        for _ in range(times):
            chosen = {handle: int(tokens(1)) for handle in self.session.handles}
            returned = self.session.step(dict(reversed(chosen.items())))
            assert torch.equal(returned, self.session.logits)
            for handle, token in chosen.items():
                self.texts[handle] = torch.cat([self.texts[handle], torch.tensor([token])])

    @torch.no_grad()
    def check(self) -> None:
        session = self.session
        assert session.logits.shape == (len(session), VOCABULARY)
        for handle, logits in zip(session.handles, session.logits, strict=True):
            alone = self.model(self.texts[handle][None], use_cache=False).logits[0, -1]
            torch.testing.assert_close(logits, alone, rtol=0, atol=1e-9)


@pytest.mark.sampled(2)
@every_model
def test_sequences_that_come_and_go_get_the_same_logits_as_alone(kind: str) -> None:
    texts = Texts(make(kind), prefill_chunk=50)
    session = texts.session
    long, short = texts.add(100), texts.add(1)
    texts.step(3)
    texts.check()
    third, fourth = texts.add(31), texts.add(64)
    texts.step(10)
    texts.check()
    session.drop(long, third)
    assert session.handles == (short, fourth)
    texts.check()  # before a step too
    texts.step(2)
    fifth = texts.add(90)
    texts.step(9)
    session.drop(fourth)
    texts.step(4)
    texts.check()
    assert session.handles == (short, fifth)
    assert fifth == 4
    session.drop(short, fifth)
    assert len(session) == 0
    assert session.step({}).shape == (0, VOCABULARY)
    texts.add(5)
    texts.step(2)
    texts.check()


@pytest.mark.parametrize("kind", ["transformer-learned-lm", "gtu-free"])
def test_the_limit_applies_to_each_sequence(kind: str) -> None:
    """It does not depend on the batch's oldest sequence, nor on the tokens of all sequences so far."""
    limit = 40 if kind == "gtu-free" else LIMIT
    mixer = {**GTU, "kernel": {"name": "free", "max_length": limit}}
    fields = {"block": {"name": "prenorm", "token_mixer": mixer}} if kind == "gtu-free" else {}
    texts = Texts(make(kind, **fields))
    session = texts.session
    with pytest.raises(ValueError, match=f"at most {limit} tokens, the prompt has {limit + 1}"):
        session.add(tokens(limit + 1))
    old = texts.add(limit - 2)
    young = texts.add(2)
    texts.step(2)
    with pytest.raises(ValueError, match=rf"sequence {old} has as many tokens as this model takes, {limit}; drop it"):
        session.step({old: 1, young: 1})
    texts.check()
    session.drop(old)
    full = texts.add(limit)
    texts.check()
    session.drop(full)
    texts.step(limit - 4)
    texts.check()
    with pytest.raises(ValueError, match=f"sequence {young} has"):
        texts.step()


def test_a_failed_step_does_not_change_the_session(monkeypatch: pytest.MonkeyPatch) -> None:
    texts = Texts(make("tcnca-lm"))
    texts.add(20)
    texts.add(3)
    last = texts.model.model.layers[1]
    with monkeypatch.context() as patch:
        patch.setattr(last, "forward", lambda *_: (_ for _ in ()).throw(MemoryError))
        for attempt in (lambda: texts.session.step({0: 1, 1: 1}), lambda: texts.session.add([1, 2])):
            with pytest.raises(MemoryError):
                attempt()
    assert texts.session.handles == (0, 1)
    texts.step(3)
    texts.check()


class TestBadInput:
    @pytest.fixture
    def session(self) -> StreamingSession:
        session = StreamingSession(make("tcnca-lm"))
        session.add([1, 2, 3])
        session.add([4])
        return session

    @pytest.mark.parametrize(
        ("prompt", "message"),
        [
            ([], r"length >= 1.*end-of-text"),
            (torch.zeros(1, 4, dtype=torch.long), r"length >= 1.*\(1, 1, 4\)"),
            ([1, 30], r"in \[0, 30\), got 1 to 30"),
            ([-1], "got -1"),
            ([0.5], "integers, got torch.float32"),
        ],
    )
    def test_prompts(self, session: StreamingSession, prompt: Any, message: str) -> None:
        with pytest.raises(ValueError, match=message):
            session.add(prompt)
        assert session.handles == (0, 1)

    @pytest.mark.parametrize(
        ("chosen", "message"),
        [
            ({0: 1}, "sequence 1 has none"),
            ({}, r"sequence 0 \(and 1 more\) has none"),
            ({0: 1, 1: 1, 7: 1}, "sequence 7 is not in this session"),
            ({0: 1, 1: 30}, r"token of sequence 1 must be in \[0, 30\), got 30"),
            ({0: -1, 1: 0}, "token of sequence 0 .* got -1"),
            ({0: 1.5, 1: 0}, r"token of sequence 0 .* got 1\.5"),
        ],
    )
    def test_steps(self, session: StreamingSession, chosen: dict, message: str) -> None:
        before = session.logits
        with pytest.raises(ValueError, match=message):
            session.step(chosen)
        assert session.logits is before

    def test_handles(self, session: StreamingSession) -> None:
        assert 1 in session
        session.drop(1)
        assert 1 not in session
        with pytest.raises(ValueError, match="sequence 1 is not in this session"):
            session.drop(0, 1)
        assert session.handles == (0,)
        session.drop()
        assert session.add([5]) == 2

    def test_models(self, session: StreamingSession) -> None:
        classifier = LagwiseForSequenceClassification(LagwiseConfig(hidden_size=8, num_hidden_layers=1, causal=False))
        with pytest.raises(ValueError, match="LagwiseForCausalLM, which is causal, got LagwiseForSequenceClass"):
            StreamingSession(classifier)  # type: ignore[arg-type]
        session.model.train()
        for attempt in (lambda: session.add([1]), lambda: session.step({}), lambda: StreamingSession(session.model)):
            with pytest.raises(ValueError, match="training mode"):
                attempt()
        with pytest.raises(ValueError, match="prefill_chunk"):
            StreamingSession(session.model, prefill_chunk=0)


def test_caches_that_cannot_be_joined() -> None:
    model, ids = make("tcnca-lm"), tokens(8)[None]
    cache = model(ids).past_key_values
    with pytest.raises(ValueError, match="at least one"):
        StreamingCache.join([])
    with pytest.raises(ValueError, match="at least one token in each"):
        StreamingCache.join([cache, StreamingCache(2)])
    with pytest.raises(ValueError, match="one model"):
        StreamingCache.join([cache, make("mega-lm")(ids).past_key_values])
