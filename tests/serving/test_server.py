"""A real server on its own port, with OpenAI's client and with misbehaving clients."""

from __future__ import annotations

import http.client
import json
import socket
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from served_model import PROMPT
from transformers import PreTrainedTokenizerBase

from lagwise.models import LagwiseForCausalLM
from lagwise.serving.scheduler import Scheduler

pytest.importorskip("fastapi")
pytest.importorskip("uvicorn")
import uvicorn

from lagwise.serving.app import make_app

LONG = 20_000  # tokens: none of these tests waits for so many


class Served:
    """A running server, and helpers for requests."""

    def __init__(self, scheduler: Scheduler, name: str = "small"):
        self.scheduler, self.name = scheduler, name
        config = uvicorn.Config(make_app(scheduler, name), log_level="error", timeout_graceful_shutdown=1)
        self.server = uvicorn.Server(config)
        listening = socket.create_server(("127.0.0.1", 0))
        listening.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 4096)  # so that who does not read is soon noticed
        self.port = listening.getsockname()[1]
        self.thread = threading.Thread(target=self.server.run, args=([listening],))
        self.thread.start()
        wait_for(lambda: self.server.started)

    def close(self) -> None:
        self.server.should_exit = True
        self.thread.join()

    def client(self, **options: Any) -> Any:
        openai = pytest.importorskip("openai")  # takes a second to import
        return openai.OpenAI(base_url=f"http://127.0.0.1:{self.port}/v1", api_key="none", **options)

    def open_stream(self, **body: Any) -> socket.socket:
        """A connection with a started stream of which nothing has been read."""
        ask = json.dumps({"model": self.name, "prompt": PROMPT, "stream": True, "temperature": 0, **body}).encode()
        connection = socket.socket()
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        connection.connect(("127.0.0.1", self.port))
        head = (
            f"POST /v1/completions HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\nContent-Length: {len(ask)}"
        )
        connection.sendall(head.encode() + b"\r\n\r\n" + ask)
        return connection


def wait_for(condition: Callable[[], object]) -> None:
    while not condition():  # a test that waits in vain is ended by its time limit
        time.sleep(0.005)


@pytest.fixture(scope="module")
def served(model: LagwiseForCausalLM, tokenizer: PreTrainedTokenizerBase) -> Iterator[Served]:
    served = Served(Scheduler(model, tokenizer, rows=8, queue=8, max_tokens=LONG))
    yield served
    served.close()


def test_openais_client(served: Served, tokenizer: PreTrainedTokenizerBase, monkeypatch: pytest.MonkeyPatch) -> None:
    """The client reads models, texts whole and streamed, conversations, probabilities and errors."""
    openai = pytest.importorskip("openai")
    monkeypatch.setattr(tokenizer, "chat_template", "{% for m in messages %}{{ m.content }} {% endfor %}")
    client = served.client()
    assert [model.id for model in client.models.list()] == ["small"]
    assert client.models.retrieve("small").id == "small"
    with pytest.raises(openai.NotFoundError, match="no model 'other'"):
        client.models.retrieve("other")
    ask: dict[str, Any] = {"model": "small", "max_tokens": 8, "temperature": 1.5, "seed": 7}
    whole = client.completions.create(prompt=PROMPT, **ask)
    streamed = list(
        client.completions.create(prompt=PROMPT, **ask, stream=True, stream_options={"include_usage": True})
    )
    assert "".join(piece.choices[0].text for piece in streamed[:-1]) == whole.choices[0].text
    assert streamed[-1].usage == whole.usage
    with pytest.raises(openai.BadRequestError, match="exceeds this server's limit of 20000"):
        client.completions.create(prompt=PROMPT, **{**ask, "max_tokens": LONG + 1})
    several = client.completions.create(prompt=[PROMPT, "w7"], logprobs=2, n=2, **ask)
    assert [choice.index for choice in several.choices] == [0, 1, 2, 3]
    for choice in several.choices:
        said = choice.logprobs
        assert "".join(said.tokens).replace(" ", "") == choice.text.replace(" ", "")
        assert [len(likely) for likely in said.top_logprobs] == [2] * len(said.tokens)
    ask["messages"] = [{"role": "user", "content": PROMPT}]
    chat = client.chat.completions.create(logprobs=True, top_logprobs=3, **ask)
    content = chat.choices[0].logprobs.content
    assert [len(token.top_logprobs) for token in content] == [3] * len(content)
    pieces = list(client.chat.completions.create(**ask, stream=True))
    assert "".join(piece.choices[0].delta.content or "" for piece in pieces) == chat.choices[0].message.content
    assert pieces[-1].choices[0].finish_reason == chat.choices[0].finish_reason


@pytest.mark.parametrize("stream", [True, False])
def test_a_closed_connection_frees_the_row(served: Served, stream: bool) -> None:
    connection = served.open_stream(max_tokens=LONG, stream=stream)
    wait_for(lambda: len(served.scheduler.session) == 1)
    connection.close()
    wait_for(lambda: served.scheduler.counts["open"] == 0)
    wait_for(lambda: len(served.scheduler.session) == 0)


def test_a_slow_reader_does_not_block_others(model: LagwiseForCausalLM, tokenizer: PreTrainedTokenizerBase) -> None:
    """Others get their answers while it does not read, and finally it gets its whole answer."""
    served = Served(Scheduler(model, tokenizer), "small" * 200)  # a kilobyte, which every piece says
    try:
        ask: dict[str, Any] = {"model": served.name, "max_tokens": 150, "temperature": 0}
        expected = served.client().completions.create(prompt=PROMPT, **ask)
        connection = served.open_stream(max_tokens=150)
        wait_for(lambda: len(served.scheduler.session) == 1)
        served.client().completions.create(prompt="w5", **{**ask, "max_tokens": 20})
        wait_for(lambda: len(served.scheduler.session) == 0)  # generated, whether it is read or not
        response = http.client.HTTPResponse(connection)
        response.begin()
        lines = [line.removeprefix("data: ") for line in response.read().decode().split("\n\n") if line]
        assert lines.pop() == "[DONE]"
        assert len(lines) < 140  # what it did not read came in larger pieces
        assert "".join(json.loads(line)["choices"][0]["text"] for line in lines) == expected.choices[0].text
        connection.close()
        wait_for(lambda: served.scheduler.counts["open"] == 0)
    finally:
        served.close()


def test_a_client_that_never_reads_is_disconnected(
    model: LagwiseForCausalLM, tokenizer: PreTrainedTokenizerBase, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("lagwise.serving.app._GRACE_SECONDS", 0)
    served = Served(Scheduler(model, tokenizer, max_tokens=LONG, timeout=1), "small" * 1000)  # which every piece says
    try:
        half = socket.create_connection(("127.0.0.1", served.port))  # begins a request, and never ends it
        half.sendall(b"POST /v1/completions HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\n")
        half.sendall(b"Content-Length: 100\r\n\r\n{")
        stalled = served.open_stream(max_tokens=LONG)
        wait_for(lambda: served.scheduler.counts["open"] == 1)
        assert b" 408 " in half.recv(1000)
        wait_for(lambda: served.scheduler.counts["open"] == 0)
        received = b"".join(iter(lambda: stalled.recv(2**16), b""))
        assert received.startswith(b"HTTP/1.1 200")
        assert b"timeout_error" not in received  # there was no room to say it
        half.close()
        stalled.close()
    finally:
        served.close()


def test_stopping_the_server_ends_its_answers(model: LagwiseForCausalLM, tokenizer: PreTrainedTokenizerBase) -> None:
    served = Served(Scheduler(model, tokenizer, max_tokens=LONG))
    connection = served.open_stream(max_tokens=LONG)
    wait_for(lambda: len(served.scheduler.session) == 1)
    served.close()
    assert served.scheduler.counts["open"] == 0
    assert not served.scheduler.alive
    connection.close()
