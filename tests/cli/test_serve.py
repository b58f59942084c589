"""``lagwise serve`` on the command line."""

from __future__ import annotations

import socket
import sys
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from lagwise.cli.main import app
from lagwise.data import load_tokenizer
from lagwise.models import LagwiseConfig, LagwiseForCausalLM, LagwiseForMaskedLM
from lagwise.models.loading import save_tokenizer


@pytest.fixture
def run(tmp_path: Path) -> Path:
    run = tmp_path / "tiny"
    LagwiseForCausalLM(LagwiseConfig(vocab_size=258, hidden_size=8, num_hidden_layers=1)).save_pretrained(run)
    save_tokenizer(load_tokenizer("bytes"), run, None)
    return run


@pytest.fixture
def port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as free:
        return free.getsockname()[1]


def test_a_port_in_use_is_found_before_the_model_is_loaded(tmp_path: Path) -> None:
    pytest.importorskip("fastapi")
    pytest.importorskip("uvicorn")
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        result = CliRunner().invoke(app, ["serve", str(tmp_path), "--port", str(port)])
    assert isinstance(result.exception, ValueError)
    assert f"cannot listen on port {port} of '127.0.0.1' (Address already in use" in str(result.exception)
    assert result.output == ""


@pytest.mark.parametrize("host", ["203.0.113.7", "no.such.host.invalid"])
def test_addresses_that_a_server_cannot_have(host: str, tmp_path: Path, port: int) -> None:
    pytest.importorskip("fastapi")
    pytest.importorskip("uvicorn")
    result = CliRunner().invoke(app, ["serve", str(tmp_path), "--host", host, "--port", str(port)])
    assert isinstance(result.exception, ValueError)
    assert f"the server cannot listen on port {port} of {host!r}" in str(result.exception)


def test_missing_packages_are_named(run: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "uvicorn", None)
    result = CliRunner().invoke(app, ["serve", str(run)])
    assert isinstance(result.exception, ImportError)
    assert "serving needs uvicorn: install lagwise[serve]" in str(result.exception)


def test_options_reach_the_server(run: Path, port: int, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("fastapi")
    uvicorn = pytest.importorskip("uvicorn")
    from fastapi.testclient import TestClient

    started: list[Any] = []
    monkeypatch.setattr(uvicorn, "run", lambda app, **options: started.append((app, options)))
    options = ["--max-tokens", "5", "--max-body", "200", "--api-key", "sesame", "--port", str(port)]
    options += ["--cors", "http://a", "--cors", "http://b"]
    result = CliRunner().invoke(app, ["serve", str(run), *options])
    assert result.output == f"Serving 'tiny' at http://127.0.0.1:{port}/v1 (Ctrl-C to stop)\n"
    [(served, settings)] = started
    assert (settings["host"], settings["port"]) == ("127.0.0.1", port)
    with TestClient(served, headers={"authorization": "Bearer sesame"}) as client:
        ask = {"model": "tiny", "prompt": "a", "max_tokens": 5}
        assert client.post("/v1/completions", json=ask).json()["usage"]["prompt_tokens"] == 1
        assert client.post("/v1/completions", json={**ask, "max_tokens": 6}).status_code == 400
        assert client.post("/v1/completions", json={**ask, "prompt": "a" * 200}).status_code == 413
        assert client.get("/v1/models", headers={"authorization": ""}).status_code == 401
        page = client.get("/v1/models", headers={"origin": "http://b"})
        assert page.headers["access-control-allow-origin"] == "http://b"


def test_a_step_is_compiled_on_request_and_otherwise_loaded_from_the_cache(
    run: Path, port: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    uvicorn = pytest.importorskip("uvicorn")
    pytest.importorskip("fastapi")
    asked: list[tuple[Any, bool]] = []

    def compile_step(self: Any, batch_size: Any, *, cached: bool, report: Any) -> bool:
        asked.append((batch_size, cached))
        raise ValueError("no compiled step here")

    monkeypatch.setattr(LagwiseForCausalLM, "compile_step", compile_step)
    monkeypatch.setattr(uvicorn, "run", lambda app, **options: None)
    command = ["serve", str(run), "--port", str(port)]
    assert CliRunner().invoke(app, [*command, "--no-compile"]).exit_code == 0
    assert asked == []
    assert CliRunner().invoke(app, command).exit_code == 0
    result = CliRunner().invoke(app, [*command, "--compile"])
    assert "no compiled step here" in str(result.exception)
    assert asked == [(None, True), (None, False)]


def test_an_encoder_is_served_for_its_embeddings(tmp_path: Path, port: int, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("fastapi")
    uvicorn = pytest.importorskip("uvicorn")
    from fastapi.testclient import TestClient

    config = LagwiseConfig(vocab_size=258, hidden_size=8, num_hidden_layers=1, causal=False)
    LagwiseForMaskedLM(config).save_pretrained(tmp_path)
    save_tokenizer(load_tokenizer("bytes"), tmp_path, None)
    served: list[Any] = []
    monkeypatch.setattr(uvicorn, "run", lambda app, **options: served.append(app))
    result = CliRunner().invoke(app, ["serve", str(tmp_path), "--port", str(port)])
    assert f"Serving the embeddings of '{tmp_path.name}'" in result.output
    with TestClient(served[0]) as client:
        body = {"model": tmp_path.name, "input": "some text"}
        assert len(client.post("/v1/embeddings", json=body).json()["data"][0]["embedding"]) == 8
    result = CliRunner().invoke(app, ["serve", str(tmp_path), "--port", str(port), "--compile"])
    assert "--compile is for language models" in str(result.exception)
