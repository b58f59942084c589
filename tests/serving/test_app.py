"""The HTTP application, without a network."""

from __future__ import annotations

import json
import random
import time
from collections.abc import Iterator
from typing import Any

import pytest
import torch
from served_model import PROMPT, WORDS
from transformers import PreTrainedTokenizerBase

from lagwise.models import LagwiseConfig, LagwiseForCausalLM
from lagwise.serving.scheduler import Sampling, Scheduler

pytest.importorskip("fastapi")
pytest.importorskip("uvicorn")
from fastapi.testclient import TestClient

from lagwise.models.generation import PLAIN_TEMPLATE
from lagwise.serving.app import make_app

JSON = {"content-type": "application/json"}
ASK: dict[str, Any] = {"model": "small", "prompt": PROMPT, "max_tokens": 6, "temperature": 0}
CHAT: dict[str, Any] = {"model": "small", "messages": [{"role": "user", "content": "w1"}], "max_tokens": 4}


@pytest.fixture(scope="module")
def scheduler(model: LagwiseForCausalLM, tokenizer: PreTrainedTokenizerBase) -> Scheduler:
    return Scheduler(model, tokenizer, rows=4, queue=4, max_tokens=500)


@pytest.fixture(scope="module")
def client(scheduler: Scheduler) -> Iterator[TestClient]:
    with TestClient(make_app(scheduler, "small", max_body=10_000), raise_server_exceptions=False) as client:
        yield client


@pytest.fixture
def talkative(tokenizer: PreTrainedTokenizerBase, monkeypatch: pytest.MonkeyPatch) -> PreTrainedTokenizerBase:
    """A tokenizer whose chat template has only words of its vocabulary."""
    template = "{% for m in messages %}{{ m.content }} {% endfor %}"
    monkeypatch.setattr(tokenizer, "chat_template", template)
    return tokenizer


def events(response: Any) -> list[Any]:
    lines = [line for line in response.text.split("\n\n") if line]
    assert all(line.startswith("data: ") for line in lines)
    assert lines.pop() == "data: [DONE]"
    return [json.loads(line.removeprefix("data: ")) for line in lines]


def error(response: Any) -> str:
    assert set(response.json()["error"]) == {"message", "type", "param", "code"}
    return response.json()["error"]["message"]


def test_a_completion_whole_and_streamed(client: TestClient, scheduler: Scheduler) -> None:
    whole = client.post("/v1/completions", json=ASK).json()
    choice = whole["choices"][0]
    assert whole["object"] == "text_completion"
    assert choice["finish_reason"] == "length"
    assert len(choice["text"].split()) == 6
    assert whole["usage"] == {"prompt_tokens": 3, "completion_tokens": 6, "total_tokens": 9}
    response = client.post("/v1/completions", json={**ASK, "stream": True, "stream_options": {"include_usage": True}})
    assert response.headers["content-type"].startswith("text/event-stream")
    *chunks, last = events(response)
    assert "".join(chunk["choices"][0]["text"] for chunk in chunks) == choice["text"]
    assert [chunk["choices"][0]["finish_reason"] for chunk in chunks][-1] == "length"
    assert last["usage"] == whole["usage"]
    assert last["choices"] == []
    ids = [WORDS.index(word) for word in PROMPT.split()]
    for prompt in (ids, [PROMPT]):
        assert client.post("/v1/completions", json={**ASK, "prompt": prompt}).json()["choices"] == [choice]
    assert scheduler.counts["open"] == 0


def test_stop_seed_and_defaults(client: TestClient) -> None:
    text = client.post("/v1/completions", json=ASK).json()["choices"][0]["text"]
    stop = text.split()[3]
    choice = client.post("/v1/completions", json={**ASK, "stop": stop}).json()["choices"][0]
    assert choice["finish_reason"] == "stop"
    assert choice["text"] == text[: text.index(stop)]
    sampled = {"model": "small", "prompt": PROMPT, "temperature": 2, "seed": 4}
    texts = {client.post("/v1/completions", json=sampled).json()["choices"][0]["text"] for _ in range(3)}
    assert len(texts) == 1
    assert len(texts.pop().split()) <= 16
    neutral = {"n": 1, "echo": False, "logprobs": None, "presence_penalty": 0.0, "user": "me", "seed": None}
    neutral |= {"top_logprobs": 0, "parallel_tool_calls": True}
    assert client.post("/v1/completions", json={**ASK, **neutral}).json()["choices"][0]["text"] == text


def test_a_conversation(client: TestClient, talkative: PreTrainedTokenizerBase) -> None:
    parts = [{"type": "text", "text": "w1 "}, {"type": "text", "text": "w2"}]
    messages = [{"role": "system", "content": "w3"}, {"role": "user", "content": parts}]
    ask = {"model": "small", "messages": messages, "max_completion_tokens": 5, "temperature": 0}
    whole = client.post("/v1/chat/completions", json=ask).json()
    message = whole["choices"][0]["message"]
    assert whole["object"] == "chat.completion"
    assert message["role"] == "assistant"
    assert whole["usage"]["prompt_tokens"] == 3
    same = client.post("/v1/completions", json={**ASK, "prompt": "w3 w1 w2", "max_tokens": 5}).json()
    assert message["content"] == same["choices"][0]["text"]
    chunks = events(client.post("/v1/chat/completions", json={**ask, "stream": True}))
    deltas = [chunk["choices"][0]["delta"] for chunk in chunks]
    assert deltas[0]["role"] == "assistant"
    assert "".join(delta.get("content", "") for delta in deltas) == message["content"]


def test_the_plain_template(client: TestClient, model: LagwiseForCausalLM) -> None:
    """Used for a tokenizer without a template. If the tokenizer does not know its words, an error says so."""
    from lagwise.data import load_tokenizer
    from lagwise.serving.protocol import ChatRequest

    request = ChatRequest(**{**CHAT, "messages": [*CHAT["messages"], {"role": "assistant", "content": "w2"}]})
    tokenizer = load_tokenizer("bytes")
    assert tokenizer.decode(request.prompt(tokenizer)) == "user: w1\nassistant: w2\nassistant:"
    assert request.rule(tokenizer).stop == ("\nuser:",)
    assert "assistant:" in PLAIN_TEMPLATE
    response = client.post("/v1/chat/completions", json=CHAT)
    assert response.status_code == 400
    assert "cannot be encoded" in error(response)


def test_a_template_that_raises_an_error(
    client: TestClient, tokenizer: PreTrainedTokenizerBase, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tokenizer, "chat_template", "{{ raise_exception('the first must be of the system') }}")
    response = client.post("/v1/chat/completions", json=CHAT)
    assert response.status_code == 400
    assert "refuses these messages: the first must be of the system" in error(response)


@pytest.mark.parametrize(
    ("change", "status", "message"),
    [
        ({"model": "other"}, 404, "no model 'other'; this server has 'small'"),
        ({"prompt": "unknown"}, 400, "cannot be encoded"),
        ({"prompt": "w1\ud800"}, 400, "half of a UTF-16 pair at character 2 ('\\ud800')"),
        ({"prompt": []}, 400, "input_ids must be"),
        ({"prompt": [1, 999]}, 400, "input_ids must be in"),
        ({"prompt": ["w1", [2]]}, 400, "prompt must be a text or a list of token ids, or a list of these"),
        ({"prompt": ["w1"] * 5, "n": 2}, 400, "the request asks for 10 texts; this server takes at most 8"),
        ({"n": 0}, 400, "n: Input should be greater than or equal to 1"),
        ({"n": 2, "best_of": 3}, 400, "best_of must be n, 2"),
        ({"logprobs": 2, "echo": True}, 400, "logprobs is not supported with echo"),
        ({"logprobs": 21}, 400, "logprobs"),
        ({"max_tokens": 501}, 400, "exceeds this server's limit of 500"),
        ({"max_tokens": 0}, 400, "max_tokens: Input should be greater than or equal to 1"),
        ({"temperature": 2.1}, 400, "temperature: Input should be less than or equal to 2"),
        ({"top_p": 0}, 400, "top_p: Input should be greater than 0"),
        ({"stop": ""}, 400, "stop"),
        ({"stop": ["a"] * 17}, 400, "stop must be a text of 1 to 256 characters, or at most 16 of them"),
        ({"reasoning_effort": "low"}, 400, "reasoning_effort is not supported by this server"),
        ({"top_logprobs": 2}, 400, "top_logprobs is not supported by this server"),
        ({"response_format": {"type": "json_object"}}, 400, "response_format is not supported"),
        ({"temprature": 1}, 400, "'temprature' is not a known parameter"),
    ],
)
def test_refused_requests(client: TestClient, change: dict[str, Any], status: int, message: str) -> None:
    response = client.post("/v1/completions", content=json.dumps({**ASK, **change}), headers=JSON)
    assert response.status_code == status
    assert message in error(response)


@pytest.mark.parametrize("content", [None, 3, [{"type": "image_url", "image_url": {"url": "x"}}], [{"type": "text"}]])
def test_messages_without_a_text_are_refused(client: TestClient, content: Any) -> None:
    messages = [*CHAT["messages"], {"role": "user", "content": content}]
    response = client.post("/v1/chat/completions", json={**CHAT, "messages": messages})
    assert response.status_code == 400
    assert error(response).startswith("the content of message 1 must be a text or a list of parts of type text")


OBJECT = "the body must be a JSON object, sent with Content-Type: application/json"


@pytest.mark.parametrize(
    ("method", "path", "content", "headers", "status", "message"),
    [
        ("POST", "/v1/completions", b"{", JSON, 400, OBJECT),
        ("POST", "/v1/completions", b"[1]", JSON, 400, OBJECT),
        ("POST", "/v1/completions", b"", JSON, 400, OBJECT),
        ("POST", "/v1/completions", json.dumps(ASK).encode(), {"content-type": "text/plain"}, 400, OBJECT),
        ("POST", "/v1/completions", json.dumps(ASK).encode(), {}, 400, OBJECT),  # as a page of another site can send
        ("POST", "/v1/completions", b"[" * 9_000, JSON, 400, "the body"),  # Python 3.13 reads it: an array
        ("POST", "/v1/completions", b'{"seed": ' + b"9" * 9_000 + b"}", JSON, 400, "error parsing the body"),
        ("POST", "/v1/completions", b'"\xff"', JSON, 400, "error parsing the body"),
        ("POST", "/v1/completions", b"x" * 10_001, JSON, 413, "at most 10000 bytes"),
        ("GET", "/v1/completions", b"", {}, 405, "Method Not Allowed"),
        ("GET", "/v2", b"", {}, 404, "Not Found"),
    ],
)
def test_bodies_that_are_not_requests(
    client: TestClient, method: str, path: str, content: bytes, headers: dict[str, str], status: int, message: str
) -> None:
    response = client.request(method, path, content=content, headers=headers)
    assert response.status_code == status
    assert message in error(response)


def malformed(source: random.Random) -> tuple[str, str, bytes, dict[str, str]]:
    """A malformed or unusual request."""
    junk: list[Any] = [None, -1, 1e400, "", "\ud800", [], [[]], {}, True, 2**70, [None], {"a": 1}, "w1" * 99, 0.5]
    fields = ["model", "prompt", "messages", "max_tokens", "temperature", "top_p", "seed", "stop", "stream", "n", "x"]
    body: Any = {"model": "small", "prompt": PROMPT, "messages": [{"role": "user", "content": "w1"}], "max_tokens": 2}
    path = source.choice(["/v1/completions", "/v1/chat/completions"])
    body.pop("prompt" if "chat" in path else "messages")
    for _ in range(source.randint(1, 3)):
        body[source.choice(fields)] = source.choice(junk)
    content = json.dumps(source.choice([body, body, body, source.choice(junk)])).encode()
    kind = source.randint(0, 9)
    if kind == 0:
        content = content[: source.randint(0, len(content))]
    elif kind == 1:
        content = source.randbytes(source.randint(0, 300))
    elif kind == 2:
        content = b'{"a":' * source.randint(1, 5000)
    headers = {"Content-Type": source.choice(["application/json"] * 8 + ["text/plain", "multipart/form-data", ""])}
    method = source.choice(["POST"] * 12 + ["GET", "PUT", "DELETE"])
    return method, source.choice([path] * 12 + ["/", "/v1/" + "x" * 2000, "/v1/models/../health"]), content, headers


def test_malformed_requests_do_not_affect_others(client: TestClient, scheduler: Scheduler) -> None:
    source, statuses = random.Random(1), set()
    expected = client.post("/v1/completions", json=ASK).json()["choices"]
    for _ in range(300):
        method, path, content, headers = malformed(source)
        response = client.request(method, path, content=content, headers=headers)
        statuses.add(response.status_code)
        assert response.status_code < 500, content
        assert response.status_code < 400 or error(response)
    assert {200, 400, 404, 405} <= statuses
    assert client.post("/v1/completions", json=ASK).json()["choices"] == expected
    until = time.monotonic() + 10  # a text may run on for a step after its client has gone
    while any(scheduler.counts.values()) and time.monotonic() < until:
        time.sleep(0.01)
    assert scheduler.counts == {"open": 0, "waiting": 0, "running": 0}


def test_a_body_without_a_length_is_counted(client: TestClient) -> None:
    response = client.post("/v1/completions", content=(b" " * 1000 for _ in range(11)), headers=JSON)
    assert response.status_code == 413
    assert error(response) == "a request may have at most 10000 bytes"


def test_models_and_health(client: TestClient) -> None:
    [model] = client.get("/v1/models").json()["data"]
    assert model["id"] == "small"
    assert client.get("/v1/models/small").json() == model
    response = client.get("/v1/models/org/other")
    assert response.status_code == 404
    assert error(response) == "no model 'org/other'; this server has 'small'"
    assert client.get("/health").json() == {"status": "ok", "open": 0, "waiting": 0, "running": 0, "embedding": 0}
    assert client.head("/health").status_code == 200


def test_several_texts(client: TestClient, scheduler: Scheduler) -> None:
    """Of several prompts, of one prompt, and both, whole and streamed: each as alone, with its index."""
    prompts = [PROMPT, "w7", "w1 w2"]
    alone = [client.post("/v1/completions", json={**ASK, "prompt": prompt}).json() for prompt in prompts]
    texts = [each["choices"][0]["text"] for each in alone]
    for several in (prompts, [[WORDS.index(word) for word in prompt.split()] for prompt in prompts]):
        whole = client.post("/v1/completions", json={**ASK, "prompt": several}).json()
        assert [each["text"] for each in whole["choices"]] == texts
        assert [each["index"] for each in whole["choices"]] == [0, 1, 2]
        assert whole["usage"]["prompt_tokens"] == sum(each["usage"]["prompt_tokens"] for each in alone)
    ask = {**ASK, "prompt": prompts[:2], "n": 3, "best_of": 3, "temperature": 1.5, "seed": 4}
    choices = client.post("/v1/completions", json=ask).json()["choices"]
    assert [each["index"] for each in choices] == list(range(6))
    assert len({each["text"] for each in choices[:3]}) == 3
    for number in range(3):
        one = client.post("/v1/completions", json={**ask, "prompt": "w7", "n": 1, "best_of": 1, "seed": 4 + number})
        assert one.json()["choices"][0]["text"] == choices[3 + number]["text"]
    found, ends = [""] * 6, [None] * 6
    for chunk in events(client.post("/v1/completions", json={**ask, "stream": True})):
        [choice] = chunk["choices"]
        found[choice["index"]] += choice["text"]
        ends[choice["index"]] = choice["finish_reason"] or ends[choice["index"]]
    assert found == [each["text"] for each in choices]
    assert ends == [each["finish_reason"] for each in choices]
    assert scheduler.counts["open"] == 0


def test_a_prompt_before_its_text(client: TestClient) -> None:
    plain = client.post("/v1/completions", json=ASK).json()["choices"][0]["text"]
    echoed = client.post("/v1/completions", json={**ASK, "echo": True}).json()["choices"][0]["text"]
    assert echoed == PROMPT + plain
    chunks = events(client.post("/v1/completions", json={**ASK, "echo": True, "stream": True}))
    assert "".join(chunk["choices"][0]["text"] for chunk in chunks) == echoed


def test_probabilities_of_tokens(
    client: TestClient, model: LagwiseForCausalLM, talkative: PreTrainedTokenizerBase
) -> None:
    choice = client.post("/v1/completions", json={**ASK, "logprobs": 3}).json()["choices"][0]
    said = choice["logprobs"]
    ids = [WORDS.index(word) for word in (PROMPT + " " + choice["text"]).split()]
    with torch.no_grad():
        expected = model(torch.tensor([ids])).logits[0].log_softmax(1)
    assert said["tokens"] == [WORDS[token] for token in ids[3:]]
    assert said["token_logprobs"] == pytest.approx([float(expected[i - 1, ids[i]]) for i in range(3, 9)], abs=1e-9)
    for place, likely in enumerate(said["top_logprobs"]):
        best = expected[place + 2].topk(3)
        assert list(likely.values()) == pytest.approx(best.values.tolist(), abs=1e-9)
    chunks = events(client.post("/v1/completions", json={**ASK, "stream": True, "logprobs": 3}))
    logprobs = [chunk["choices"][0]["logprobs"] for chunk in chunks if chunk["choices"][0]["logprobs"]]
    assert {name: [each for part in logprobs for each in part[name]] for name in said} == said
    messages = [{"role": "user", "content": PROMPT}]
    ask = {"model": "small", "messages": messages, "max_tokens": 6, "temperature": 0}
    chat = client.post("/v1/chat/completions", json={**ask, "logprobs": True, "top_logprobs": 2}).json()
    content = chat["choices"][0]["logprobs"]["content"]
    assert [each["token"] for each in content] == said["tokens"]
    assert [each["logprob"] for each in content] == pytest.approx(said["token_logprobs"], abs=1e-9)
    assert [len(each["top_logprobs"]) for each in content] == [2] * 6
    ask |= {"logprobs": True, "top_logprobs": 2}
    chunks = events(client.post("/v1/chat/completions", json={**ask, "stream": True}))
    logprobs = [chunk["choices"][0]["logprobs"] for chunk in chunks if chunk["choices"][0]["logprobs"]]
    assert [each for part in logprobs for each in part["content"]] == content
    assert [bytes(each["bytes"]).decode() for each in content] == said["tokens"]
    refused = client.post("/v1/chat/completions", json={**ask, "logprobs": False})
    assert error(refused) == "top_logprobs needs logprobs: true"


def test_parts_of_characters_keep_their_probabilities() -> None:
    """They have no text, but different names, and their bytes."""
    from lagwise.data import load_tokenizer

    torch.manual_seed(0)
    model = LagwiseForCausalLM(LagwiseConfig(vocab_size=258, hidden_size=8, num_hidden_layers=1)).eval()
    with torch.no_grad():
        model.model.embed_tokens.weight[:128] = 0
    with TestClient(make_app(Scheduler(model, load_tokenizer("bytes")), "small")) as client:
        ask = {"model": "small", "messages": [{"role": "user", "content": "a"}], "max_tokens": 4, "logprobs": True}
        ask |= {"top_logprobs": 20, "temperature": 0}
        content = client.post("/v1/chat/completions", json=ask).json()["choices"][0]["logprobs"]["content"]
        likely = client.post("/v1/completions", json={**ASK, "logprobs": 20}).json()["choices"][0]["logprobs"]
    for each in content:
        names = [best["token"] for best in each["top_logprobs"]]
        assert len(set(names)) == 20
        known = [bytes(best["bytes"] or ()) for best in each["top_logprobs"]]
        assert any(not text.isascii() for text in known)
        assert all(len(text) == (not name.startswith("<|")) for text, name in zip(known, names, strict=True))
    assert [len(each) for each in likely["top_logprobs"]] == [20] * 6


def test_names_of_special_tokens_are_text(monkeypatch: pytest.MonkeyPatch) -> None:
    """In prompts and messages, but not in the chat template, nor where token ids are given."""
    from lagwise.data import load_tokenizer

    torch.manual_seed(0)
    tokenizer = load_tokenizer("bytes")
    monkeypatch.setattr(tokenizer, "chat_template", "{% for m in messages %}{{ m.content }}<|endoftext|>{% endfor %}")
    model = LagwiseForCausalLM(LagwiseConfig(vocab_size=258, hidden_size=8, num_hidden_layers=1)).eval()
    scheduler = Scheduler(model, tokenizer)
    prompts: list[list[int]] = []
    submit = scheduler.submit
    monkeypatch.setattr(scheduler, "submit", lambda ids, *rest: prompts.append(list(ids)) or submit(ids, *rest))
    name, end = list(b"<|endoftext|>"), tokenizer.eos_token_id
    with TestClient(make_app(scheduler, "small")) as client:
        for prompt in ("a<|endoftext|>b", [97, end, 98]):
            client.post("/v1/completions", json={**ASK, "prompt": prompt})
        messages = [{"role": "user", "content": "a<|endoftext|><|pad|>b"}, {"role": "user", "content": "c"}]
        client.post("/v1/chat/completions", json={"model": "small", "messages": messages, "max_tokens": 1})
    assert prompts == [[97, *name, 98], [97, end, 98], [97, *name, *b"<|pad|>", 98, end, 99, end]]


def test_the_first_page_and_pages_of_other_origins(
    model: LagwiseForCausalLM, tokenizer: PreTrainedTokenizerBase
) -> None:
    """The first page needs no key. Only the pages of chosen origins may ask, with which a browser asks first."""
    page = {"origin": "http://page", "access-control-request-method": "POST"}
    for origins, allowed in (((), None), (("http://page",), "http://page"), (("*",), "*"), (("http://other",), None)):
        served = make_app(Scheduler(model, tokenizer), "small", api_key="sesame", origins=origins)
        with TestClient(served) as client:
            start = client.get("/")
            assert start.status_code == 200
            assert start.json()["needs_key"]
            assert client.head("/").status_code == 200
            assert "/v1/chat/completions" in start.json()["paths"]
            before = client.options("/v1/completions", headers={**page, "access-control-request-headers": "x"})
            assert (before.status_code == 200) == (allowed is not None)
            headers = {"authorization": "Bearer sesame", "origin": "http://page"}
            after = client.post("/v1/completions", json=ASK, headers=headers)
            assert after.status_code == 200
            assert after.headers.get("access-control-allow-origin") == allowed


def test_a_full_server(client: TestClient, scheduler: Scheduler) -> None:
    held = [scheduler.submit([1], Sampling(1)) for _ in range(6)]
    assert client.post("/v1/completions", json={**ASK, "n": 3}).status_code == 429
    assert client.post("/v1/completions", json={**ASK, "prompt": [PROMPT, [999]]}).status_code == 400
    assert scheduler.counts["open"] == 6
    held += [scheduler.submit([1], Sampling(1)) for _ in range(2)]
    response = client.post("/v1/completions", json=ASK)
    assert response.status_code == 429
    assert response.headers["retry-after"] == "1"
    assert "has 8 requests" in error(response)
    assert client.post("/v1/completions", json={**ASK, "prompt": "unknown"}).status_code == 429  # not even encoded
    for answer in held:
        answer.close()
    assert client.post("/v1/completions", json=ASK).status_code == 200


def test_a_failure_of_the_model(client: TestClient, scheduler: Scheduler, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(prompt: object) -> None:
        raise RuntimeError("secret")

    monkeypatch.setattr(scheduler.session, "advance", fail)
    response = client.post("/v1/completions", json=ASK)
    assert response.status_code == 500
    assert "secret" not in error(response)
    streamed = client.post("/v1/completions", json={**ASK, "stream": True})
    assert json.loads(streamed.text.removeprefix("data: "))["error"]["type"] == "server_error"
    assert scheduler.counts["open"] == 0


def test_the_api_key(model: LagwiseForCausalLM, tokenizer: PreTrainedTokenizerBase) -> None:
    with TestClient(make_app(Scheduler(model, tokenizer), "small", api_key="sesame")) as client:
        for headers in ({}, {"authorization": "Bearer other"}, {"authorization": "Bearer \u00e9".encode()}):
            response = client.get("/v1/models", headers=headers)
            assert response.status_code == 401
            assert "requires a key" in error(response)
        assert client.get("/v1/models", headers={"authorization": "Bearer sesame"}).status_code == 200
        assert client.get("/health").status_code == 200


def test_slow_requests_time_out(
    model: LagwiseForCausalLM, tokenizer: PreTrainedTokenizerBase, monkeypatch: pytest.MonkeyPatch
) -> None:
    scheduler = Scheduler(model, tokenizer, timeout=0.05)
    monkeypatch.setattr(scheduler, "_step", lambda: time.sleep(0.01))  # no token ever comes
    with TestClient(make_app(scheduler, "small")) as client:
        response = client.post("/v1/completions", json=ASK)
        assert response.status_code == 504
        assert "after 0.05 seconds" in error(response)
        assert response.headers["x-should-retry"] == "false"
    assert scheduler.counts["open"] == 0
    assert not scheduler.alive
    assert client.get("/health").status_code == 503
    assert client.post("/v1/completions", json=ASK).status_code == 503
