"""The serving benchmark times only complete answers."""

from __future__ import annotations

import json
import os
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import pytest
import torch

from lagwise.data import load_tokenizer
from lagwise.models import LagwiseConfig, LagwiseForCausalLM
from lagwise_papers.bench.serving import Server, make_transformer, measure, table_rows


class Echo(BaseHTTPRequestHandler):
    """A server that streams five tokens, or three if the prompt asks for them."""

    asked: list[dict[str, Any]] = []

    def do_POST(self) -> None:
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        self.asked.append(body)
        self.send_response(400 if body["prompt"] == "refused" else 200)
        self.end_headers()
        count = 3 if body["prompt"] == "short" else 5
        for _ in range(count):
            self.wfile.write(b'data: {"choices": [{"text": "a"}]}\n\n')
        usage = {"completion_tokens": count}
        self.wfile.write(f"data: {json.dumps({'choices': [], 'usage': usage})}\n\ndata: [DONE]\n\n".encode())

    def log_message(self, *args: object) -> None: ...


@pytest.fixture
def server() -> Iterator[Server]:
    listening = ThreadingHTTPServer(("127.0.0.1", 0), Echo)
    thread = threading.Thread(target=listening.serve_forever, args=(0.01,))
    thread.start()
    Echo.asked.clear()
    yield Server("lagwise", listening.server_port, "m", os.getpid())
    listening.shutdown()
    thread.join()
    listening.server_close()


def test_every_client_sends_requests_in_every_turn(server: Server) -> None:
    rows = measure([server], ["x", "y"], clients=[1, 3], new_tokens=5, repeats=2, progress=False)
    assert [(row.clients, row.requests) for row in rows] == [(1, 4), (3, 6)]
    assert len(Echo.asked) == 1 + 10
    assert all(0 < row.first_median <= row.first_p99 <= row.whole_p99 for row in rows)
    assert [row[3] for row in table_rows(rows)] == ["1.00x", "1.00x"]


@pytest.mark.parametrize(
    ("prompt", "message"), [("short", "lagwise added 3 tokens, not 5"), ("refused", "lagwise answered 400")]
)
def test_incomplete_answers_are_not_timed(server: Server, prompt: str, message: str) -> None:
    with pytest.raises(RuntimeError, match=message):
        measure([server], [prompt], clients=[1], new_tokens=5, repeats=2, progress=False)


def test_the_transformer_has_equal_size_and_generates_printable_characters() -> None:
    config = LagwiseConfig(vocab_size=258, hidden_size=128, num_hidden_layers=2, block={"name": "mega"})
    model, tokenizer = LagwiseForCausalLM(config), load_tokenizer("bytes")
    transformer = make_transformer(model, tokenizer)
    sizes = [sum(parameter.numel() for parameter in each.parameters()) for each in (model, transformer)]
    assert abs(sizes[0] / sizes[1] - 1) < 0.01
    ids: Any = torch.randint(0, 256, (20, 10))
    said = transformer.generate(ids, attention_mask=torch.ones_like(ids), do_sample=False, max_new_tokens=10)
    assert all(text.isascii() and text.isprintable() for text in tokenizer.batch_decode(said[:, 10:]))
