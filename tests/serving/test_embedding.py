"""Embeddings and Prometheus' numbers, without a network."""

from __future__ import annotations

import base64
import threading
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
import torch
from served_model import WORDS
from transformers import PreTrainedTokenizerBase

from lagwise import LagClassifier
from lagwise.models import LagwiseConfig, LagwiseForCausalLM, LagwiseForMaskedLM
from lagwise.serving.embedding import Embedder
from lagwise.serving.scheduler import Busy, Scheduler
from lagwise.training.recipe import load_recipe

pytest.importorskip("fastapi")
from fastapi.testclient import TestClient

from lagwise.serving.app import make_app

TEXTS = ["w1 w2 w3", "w7", "w4 w4 w5 w6 w9 w10"]


@pytest.fixture(scope="module")
def encoder() -> LagwiseForMaskedLM:
    torch.manual_seed(3)
    sizes = {"vocab_size": len(WORDS) + 2, "hidden_size": 24, "num_hidden_layers": 2, "eos_token_id": len(WORDS)}
    return LagwiseForMaskedLM(LagwiseConfig(**{**load_recipe("tnn-mlm").model, "causal": False, **sizes})).eval()


@pytest.fixture(params=["language model", "encoder"])
def served(
    request: pytest.FixtureRequest,
    model: LagwiseForCausalLM,
    encoder: LagwiseForMaskedLM,
    tokenizer: PreTrainedTokenizerBase,
) -> Iterator[tuple[Any, TestClient]]:
    """A model, and a client of a server of it."""
    if request.param == "encoder":
        chosen, app = encoder, make_app(None, "small", embedder=Embedder(encoder, tokenizer))
    else:
        chosen, app = model, make_app(Scheduler(model, tokenizer), "small")
    with TestClient(app, raise_server_exceptions=False) as client:
        yield chosen, client


def ids(text: str) -> list[int]:
    return [WORDS.index(word) for word in text.split()]


def expected(model: Any, text: str) -> torch.Tensor:
    with torch.no_grad():
        mean = model.model(input_ids=torch.tensor([ids(text)])).last_hidden_state[0].mean(0)
    return (mean / mean.norm()).float()


def test_embeddings_are_means_of_hidden_states(served: tuple[Any, TestClient]) -> None:
    """Of several texts as of one, of texts as of their token ids, and in the two encodings."""
    model, client = served
    body = client.post("/v1/embeddings", json={"model": "small", "input": TEXTS}).json()
    assert body["object"] == "list"
    assert body["usage"] == {"prompt_tokens": 10, "total_tokens": 10}
    assert [each["index"] for each in body["data"]] == [0, 1, 2]
    for each, text in zip(body["data"], TEXTS, strict=True):
        torch.testing.assert_close(torch.tensor(each["embedding"]), expected(model, text), rtol=1e-4, atol=1e-5)
    for given in (TEXTS[2], ids(TEXTS[2]), [ids(TEXTS[2])]):
        asked = {"model": "small", "input": given, "encoding_format": "base64", "dimensions": 24, "user": "me"}
        (one,) = client.post("/v1/embeddings", json=asked).json()["data"]
        values = np.frombuffer(base64.b64decode(one["embedding"]), "<f4")
        np.testing.assert_allclose(values, body["data"][2]["embedding"], rtol=1e-4, atol=1e-5)


def test_a_text_may_be_longer_than_what_is_read_at_once(
    model: LagwiseForCausalLM, tokenizer: PreTrainedTokenizerBase, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Longer than the 8,192 tokens of OpenAI's API."""
    monkeypatch.setattr("lagwise.runs.vectors._TOGETHER", 3000)
    text = " ".join(f"w{number % 47}" for number in range(8193))
    with TestClient(make_app(Scheduler(model, tokenizer), "small")) as client:
        body = client.post("/v1/embeddings", json={"model": "small", "input": [text, "w7"]}).json()
    assert body["usage"]["prompt_tokens"] == 8194
    for each, given in zip(body["data"], (text, "w7"), strict=True):
        torch.testing.assert_close(torch.tensor(each["embedding"]), expected(model, given), rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize(
    ("change", "status", "message"),
    [
        ({"model": "other"}, 404, "no model 'other'"),
        ({"input": ""}, 400, "none of them empty"),
        ({"input": []}, 400, "none of them empty"),
        ({"input": ["w1", ""]}, 400, "none of them empty"),
        ({"input": ["w1"] * 2049}, 400, "1 to 2048 texts"),
        ({"input": {"text": "w1"}}, 400, "input must be a text or a list of token ids"),
        ({"input": [1000]}, 400, "1000"),
        ({"dimensions": 8}, 400, "dimensions must be 24"),
        ({"encoding_format": "int8"}, 400, "encoding_format"),
        ({"inputs": "w1"}, 400, "inputs' is not a known parameter"),
    ],
)
def test_requests_that_cannot_be_answered(
    served: tuple[Any, TestClient], change: dict[str, Any], status: int, message: str
) -> None:
    _, client = served
    answer = client.post("/v1/embeddings", json={"model": "small", "input": "w1", **change})
    assert answer.status_code == status
    assert message in answer.json()["error"]["message"]


def test_an_encoder_generates_no_text_and_says_so(
    encoder: LagwiseForMaskedLM, tokenizer: PreTrainedTokenizerBase
) -> None:
    with TestClient(make_app(None, "small", embedder=Embedder(encoder, tokenizer))) as client:
        assert client.get("/health").json() == {"status": "ok", "embedding": 0}
        assert client.get("/").json()["paths"] == ["/v1/models", "/v1/embeddings", "/health"]
        asked = client.post("/v1/completions", json={"model": "small", "prompt": "w1"})
        talked = client.post(
            "/v1/chat/completions", json={"model": "small", "messages": [{"role": "user", "content": "w1"}]}
        )
        for answer in (asked, talked):
            assert answer.status_code == 404
            assert "generates no text" in answer.json()["error"]["message"]
    with pytest.raises(ValueError, match="give a scheduler"):
        make_app(None, "small")


def test_a_server_with_too_many_or_too_slow_requests_says_so(
    encoder: LagwiseForMaskedLM, tokenizer: PreTrainedTokenizerBase
) -> None:
    embedder = Embedder(encoder, tokenizer, queue=1, timeout=0.05)
    with embedder._computing:
        failures: list[Exception] = []

        def ask() -> None:
            try:
                embedder.embed([[1]])
            except Exception as error:
                failures.append(error)

        first = threading.Thread(target=ask)
        first.start()
        while not embedder.open:
            pass
        with pytest.raises(Busy, match="has 1 requests"):
            embedder.embed([[1]])
        first.join(0.1)
    first.join()
    assert isinstance(failures[0], TimeoutError)
    assert embedder.open == embedder.tokens == 0


def test_a_first_answer_has_no_embeddings() -> None:
    found = LagClassifier().fit(["good fun", "so dull", "good", "dull"], ["+", "-", "+", "-"])
    with pytest.raises(ValueError, match=r"LinearForSequenceClassification has no hidden states.*lagwise predict"):
        Embedder(found.model_, found.tokenizer_)
