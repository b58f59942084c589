"""Requests that share a batch get the same texts as alone."""

from __future__ import annotations

import math
import random
from collections import Counter
from typing import Any

import pytest
import torch
from served_model import WORDS, make_model
from transformers import PreTrainedTokenizerBase

from lagwise.models import LagwiseForCausalLM
from lagwise.serving.scheduler import Answer, Sampling, Scheduler, Stopped, draw

GREEDY = {"temperature": 0.0}


def tokens(length: int) -> list[int]:
    return torch.randint(0, len(WORDS), (length,)).tolist()


def words(answer: Answer) -> list[str]:
    return answer.take().split()


def finish(scheduler: Scheduler) -> None:
    while scheduler.turn():
        pass


def generated(model: LagwiseForCausalLM, tokenizer: PreTrainedTokenizerBase, prompt: list[int], count: int) -> str:
    ids: Any = torch.tensor([prompt])
    text = model.generate(
        ids, attention_mask=torch.ones_like(ids), do_sample=False, max_new_tokens=count, pad_token_id=len(WORDS) + 1
    )
    return str(tokenizer.decode(text[0, len(prompt) :], skip_special_tokens=True))


@pytest.fixture
def scheduler(model: LagwiseForCausalLM, tokenizer: PreTrainedTokenizerBase) -> Scheduler:
    return Scheduler(model, tokenizer, rows=4, queue=4, max_tokens=200, prefill_chunk=8)


@pytest.mark.sampled(2)
@pytest.mark.parametrize("recipe", ["mega-lm", "megalodon-lm", "tcnca-lm", "tnn-lm", "ski-tnn-lm"])
def test_texts_equal_generate_while_requests_come_and_go(recipe: str, tokenizer: PreTrainedTokenizerBase) -> None:
    model = make_model(recipe)
    scheduler = Scheduler(model, tokenizer, rows=3, queue=100, prefill_chunk=16)
    plan = random.Random(1)
    answers: list[Answer] = []
    for number in range(12):
        count = plan.randint(1, 30)
        answers.append(scheduler.submit(tokens(plan.randint(1, 60)), Sampling(count, **GREEDY)))
        for _ in range(plan.randint(0, 6)):
            scheduler.turn()
        if number % 4 == 3:
            answers[-2].close()
    finish(scheduler)
    assert len(scheduler.session) == 0
    said: set[str] = set()
    for answer in answers:
        if not answer.closed:
            text = answer.take().strip()
            assert text == generated(model, tokenizer, answer.prompt.ids.tolist(), answer.max_tokens)
            said.update(text.split())
            assert answer.finish == ("length" if answer.tokens == answer.max_tokens else "stop")
            answer.close()
    assert len(said) > 6  # or equal texts would mean little
    assert scheduler.counts == {"open": 0, "waiting": 0, "running": 0}


def test_a_seed_gives_the_same_text_alone_and_in_a_batch(scheduler: Scheduler) -> None:
    prompt = tokens(10)

    def text(seed: int | None, company: int) -> str:
        others = [scheduler.submit(tokens(5 + n), Sampling(40, temperature=1.5, seed=n)) for n in range(company)]
        answer = scheduler.submit(prompt, Sampling(30, temperature=1.2, top_p=0.9, seed=seed))
        finish(scheduler)
        for each in (answer, *others):
            each.close()
        return answer.take()

    assert text(5, 0) == text(5, 3) == text(5, 1)
    assert text(5, 0) != text(6, 0)
    assert text(None, 0) != text(None, 0)


class TestDrawing:
    def rows(self, count: int, **rule: Any) -> list[tuple[Sampling, random.Random]]:
        return [(Sampling(**rule), random.Random(seed)) for seed in range(count)]

    def test_frequencies_equal_the_probabilities(self) -> None:
        probability = torch.tensor([0.1, 0.5, 0.15, 0.25])
        logits = (probability.log() * 2).expand(4000, -1)  # which temperature 2 undoes
        counts = Counter(draw(logits, self.rows(4000, temperature=2.0)))
        for token, expected in enumerate(probability.tolist()):
            assert abs(counts[token] / 4000 - expected) < 0.04
        counts = Counter(draw(logits, self.rows(4000, temperature=2.0, top_p=0.6)))
        assert set(counts) == {1, 3}  # 0.5 is less than 0.6, and 0.75 is enough
        assert abs(counts[1] / 4000 - 2 / 3) < 0.04

    @pytest.mark.parametrize("rule", [{"temperature": 0.0}, {"temperature": 1e-300}, {"top_p": 1e-9}])
    def test_extreme_options_are_greedy(self, rule: dict[str, float]) -> None:
        logits = torch.randn(50, 30) * 3
        assert draw(logits, self.rows(50, **rule)) == logits.argmax(1).tolist()


def test_a_stop_text_ends_one_text_and_frees_its_row(scheduler: Scheduler) -> None:
    prompt = tokens(6)
    whole = scheduler.submit(prompt, Sampling(20, **GREEDY))
    finish(scheduler)
    said = words(whole)
    stop = next(word for place, word in enumerate(said) if place >= 3 and word not in said[:place])
    place = said.index(stop)
    stopped = scheduler.submit(prompt, Sampling(20, stop=("never", stop), **GREEDY))
    other = scheduler.submit(prompt, Sampling(20, **GREEDY))
    for _ in range(place + 3):
        scheduler.turn()
    assert stopped.finish == "stop"
    assert words(stopped) == said[:place]
    assert len(scheduler.session) == 1
    finish(scheduler)
    assert words(other) == said


def test_a_long_prompt_does_not_block_others(scheduler: Scheduler) -> None:
    running = scheduler.submit(tokens(3), Sampling(100, **GREEDY))
    scheduler.turn()
    long = scheduler.submit(tokens(80), Sampling(5, **GREEDY))
    short = scheduler.submit(tokens(3), Sampling(5, **GREEDY))
    before = running.tokens
    for turn in range(1, 4):
        scheduler.turn()
        assert running.tokens == before + turn  # a token in every turn
    assert short.tokens > 0
    assert long.tokens == 0
    finish(scheduler)
    assert long.finish == "length"


def test_closed_requests_are_removed_before_the_next_step(scheduler: Scheduler) -> None:
    answers = [scheduler.submit(tokens(length), Sampling(50, **GREEDY)) for length in (2, 3, 100, 4, 5)]
    for _ in range(2):
        scheduler.turn()
    assert scheduler.counts == {"open": 5, "waiting": 1, "running": 4}
    answers[0].close()  # has a row
    answers[2].close()  # has a prompt that is being processed
    answers[4].close()  # waits
    answers[4].close()  # which may be said again
    steps = answers[1].tokens
    scheduler.turn()
    assert answers[1].tokens == steps + 1
    assert scheduler.counts == {"open": 2, "waiting": 0, "running": 2}
    assert answers[0].finish is None


def test_requests_time_out_in_every_state(model: LagwiseForCausalLM, tokenizer: PreTrainedTokenizerBase) -> None:
    now = [0.0]
    scheduler = Scheduler(
        model, tokenizer, rows=2, queue=4, prefill_chunk=4, timeout=10, max_tokens=50, clock=lambda: now[0]
    )
    answers = [scheduler.submit(tokens(length), Sampling(50, **GREEDY)) for length in (2, 100, 3)]
    for _ in range(3):
        scheduler.turn()
    now[0] = 5.0
    later = scheduler.submit(tokens(2), Sampling(3, **GREEDY))
    now[0] = 10.0
    finish(scheduler)
    for answer in answers:
        assert answer.finish == "error"
        assert isinstance(answer.error, TimeoutError)
        assert "after 10 seconds" in str(answer.error)
    assert answers[0].tokens > 0
    assert later.finish == "length"


def test_a_failure_of_the_model_ends_only_affected_requests(
    scheduler: Scheduler, monkeypatch: pytest.MonkeyPatch
) -> None:
    prompt = tokens(4)
    expected = scheduler.submit(prompt, Sampling(9, **GREEDY))
    finish(scheduler)
    running = scheduler.submit(tokens(4), Sampling(50, **GREEDY))
    scheduler.turn()
    with monkeypatch.context() as patch:
        patch.setattr(scheduler.session, "advance", lambda prompt: (_ for _ in ()).throw(MemoryError))
        met = scheduler.submit(tokens(4), Sampling(9, **GREEDY))
        scheduler.turn()
        assert (met.finish, running.finish) == ("error", None)
        patch.setattr(scheduler.session, "step", lambda tokens: (_ for _ in ()).throw(MemoryError))
        scheduler.turn()
        assert isinstance(running.error, MemoryError)
    again = scheduler.submit(prompt, Sampling(9, **GREEDY))
    finish(scheduler)
    assert again.take() == expected.take()


def test_the_thread_answers_and_stops(scheduler: Scheduler, monkeypatch: pytest.MonkeyPatch) -> None:
    import threading

    woken = threading.Semaphore(0)
    scheduler.start()
    first = scheduler.submit(tokens(4), Sampling(3, **GREEDY), woken.release)
    while first.finish is None:
        assert woken.acquire(timeout=60)
    assert first.finish == "length"
    with monkeypatch.context() as patch:  # a mistake of ours ends the requests, not the thread
        patch.setattr(scheduler, "_prefill_next", lambda: 1 / 0)
        second = scheduler.submit(tokens(4), Sampling(3, **GREEDY), woken.release)
        while second.finish is None:
            assert woken.acquire(timeout=60)
        assert isinstance(second.error, ZeroDivisionError)
    assert scheduler.alive
    third = scheduler.submit(tokens(4), Sampling(200, **GREEDY))
    scheduler.stop()
    assert third.finish is not None
    assert not scheduler.alive
    with pytest.raises(Stopped):
        scheduler.submit(tokens(4), Sampling(3))


def test_requests_beyond_the_models_limit_are_refused(tokenizer: PreTrainedTokenizerBase) -> None:
    limited = Scheduler(make_model("transformer-learned-lm", max_position_embeddings=32), tokenizer)
    with pytest.raises(ValueError, match="at most 32 tokens; the prompt has 30, so at most 2 can be added"):
        limited.submit(tokens(30), Sampling(3))
    with pytest.raises(ValueError, match="at most 32 tokens"):
        limited.submit(tokens(32), Sampling())
    answer = limited.submit(tokens(30), Sampling(**GREEDY))
    assert answer.max_tokens == 2
    finish(limited)
    assert answer.finish is not None


def test_requests_are_taken_up_to_the_capacity(scheduler: Scheduler) -> None:
    scheduler.require_capacity(8)
    with pytest.raises(ValueError, match="at most 8"):
        scheduler.require_capacity(9)


def test_a_token_that_ends_a_text_has_no_probabilities(scheduler: Scheduler) -> None:
    scheduler._ends = set(range(len(WORDS) + 2))
    answer = scheduler.submit(tokens(4), Sampling(9, logprobs=2, **GREEDY))
    finish(scheduler)
    assert (answer.finish, answer.logprobs) == ("stop", [])


@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_logits_that_are_not_numbers_end_only_their_request(scheduler: Scheduler, temperature: float) -> None:
    prompt = tokens(4)
    expected = scheduler.submit(prompt, Sampling(9, **GREEDY))
    finish(scheduler)
    one, other = (scheduler.submit(prompt, Sampling(9, temperature=t, seed=0)) for t in (temperature, 0.0))
    scheduler.turn()
    scheduler.turn()
    logits = scheduler.session.logits.clone()
    logits[0] = math.nan
    scheduler.session.logits = logits
    scheduler.turn()
    assert isinstance(one.error, FloatingPointError)
    finish(scheduler)
    assert other.take() == expected.take()
