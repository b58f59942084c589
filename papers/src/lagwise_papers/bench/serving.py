"""Tokens per second and latency of `lagwise serve` under load, compared with `transformers serve` and a Transformer."""

from __future__ import annotations

import http.client
import json
import os
import socket
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerBase

from lagwise.data import prepare
from lagwise.models import LagwiseForCausalLM
from lagwise.progress import progress_bar
from lagwise.training import load_run

_TIMEOUT_SECONDS = 300  # for a server to start and for an answer


@dataclass(frozen=True)
class Server:
    """A running server: its name in tables, its port, the name of its model, and its process."""

    name: str
    port: int
    model: str
    process: int


@dataclass(frozen=True)
class Row:
    """Result of one server with a number of clients, each of which sends its next request as soon as it is answered.

    Times in seconds, from sending a request to the first text and to the end, are medians and 99th percentiles over all
    requests. Tokens per second, of all clients together, are the median over the turns.
    """

    server: str
    clients: int
    requests: int
    tokens_per_second: float
    first_median: float
    first_p99: float
    whole_median: float
    whole_p99: float


def measure(
    servers: Sequence[Server],
    prompts: Sequence[str],
    *,
    clients: Sequence[int] = (1, 8, 64),
    new_tokens: int = 64,
    repeats: int = 3,
    progress: bool = True,
) -> list[Row]:
    """Send requests to the servers in turn, A B A B ..., with each number of clients.

    Args:
        servers: Running servers.
        prompts: Texts to continue. A turn sends all of them, and repeats them if there are more clients.
        clients: Numbers of concurrent clients.
        new_tokens: Tokens to add to each prompt.
        repeats: Timed turns.
        progress: Whether to show a progress bar.

    Raises:
        RuntimeError: If a request fails or an answer does not have ``new_tokens`` tokens.
    """
    turns = progress_bar([(n, turn) for n in clients for turn in range(repeats)], desc="load", show=progress)
    results_by_server: dict[tuple[str, int], list[tuple[float, list[tuple[float, float]]]]] = {}
    for server in servers:  # the first request, which initializes the server, is not timed
        _ask(server, prompts[0], new_tokens)
    for count, _ in turns:
        batch = [prompts[number % len(prompts)] for number in range(max(count, len(prompts)))]
        for server in servers:
            start = time.perf_counter()
            with ThreadPoolExecutor(count) as pool:
                waited = list(pool.map(lambda prompt, server=server: _ask(server, prompt, new_tokens), batch))
            results_by_server.setdefault((server.name, count), []).append((time.perf_counter() - start, waited))
    rows = []
    for (name, count), results in results_by_server.items():
        first, total = zip(*(pair for _, waited in results for pair in waited), strict=True)
        speed = statistics.median(len(waited) * new_tokens / seconds for seconds, waited in results)
        figures = (statistics.median(first), _p99(first), statistics.median(total), _p99(total))
        rows.append(Row(name, count, len(first), speed, *figures))
    return rows


def _p99(values: Sequence[float]) -> float:
    return statistics.quantiles(values, n=100, method="inclusive")[-1]


def _ask(server: Server, prompt: str, new_tokens: int) -> tuple[float, float]:
    """Measure the seconds to the first text and to the end of a streamed greedy answer."""
    ask: dict[str, Any] = {"model": server.model, "prompt": prompt, "max_tokens": new_tokens, "temperature": 0}
    body = json.dumps({**ask, "stream": True, "stream_options": {"include_usage": True}})
    start, first, tokens = time.perf_counter(), None, None
    connection = http.client.HTTPConnection("127.0.0.1", server.port, timeout=_TIMEOUT_SECONDS)
    connection.request("POST", "/v1/completions", body, {"Content-Type": "application/json"})
    response = connection.getresponse()
    if response.status != 200:
        raise RuntimeError(f"{server.name} answered {response.status}: {response.read()[:500]!r}")
    for line in response:
        if not line.startswith(b"data: {"):
            continue
        chunk = json.loads(line.removeprefix(b"data: "))
        if "error" in chunk:
            raise RuntimeError(f"{server.name} failed: {chunk['error']}")
        if first is None and any(choice.get("text") for choice in chunk["choices"]):
            first = time.perf_counter() - start
        tokens = chunk["usage"]["completion_tokens"] if chunk.get("usage") else tokens
    total = time.perf_counter() - start
    connection.close()
    if tokens != new_tokens:
        raise RuntimeError(f"{server.name} added {tokens} tokens, not {new_tokens}; choose prompts with longer answers")
    return total if first is None else first, total


def make_transformer(like: LagwiseForCausalLM, tokenizer: PreTrainedTokenizerBase) -> LlamaForCausalLM:
    """Make a Llama with random weights, with as many channels and layers as a model and about as many parameters.

    It generates only tokens of printable ASCII, since a server waits for the rest of an incomplete character.
    """
    config = like.config
    channels, layers = config.hidden_size, config.num_hidden_layers
    total = sum(parameter.numel() for parameter in like.parameters())
    mlp_parameters = (total - 2 * config.vocab_size * channels) / layers - 4 * channels**2
    model = LlamaForCausalLM(
        LlamaConfig(
            vocab_size=config.vocab_size,
            hidden_size=channels,
            num_hidden_layers=layers,
            num_attention_heads=max(1, channels // 64),
            intermediate_size=max(8, round(mlp_parameters / (3 * channels))),
            eos_token_id=tokenizer.eos_token_id,
            bos_token_id=tokenizer.bos_token_id,
            pad_token_id=tokenizer.pad_token_id,
        )
    )
    texts = tokenizer.batch_decode([[token] for token in range(config.vocab_size)], skip_special_tokens=True)
    silent = [token for token, text in enumerate(texts) if not (text.isascii() and text.isprintable() and text)]
    with torch.no_grad():
        model.lm_head.weight[silent] = 0  # the largest of the other logits is above 0
    return model


@contextmanager
def started(
    run: Path,
    clients: int,
    threads: int,
    *,
    peer: LlamaForCausalLM | None,
    tokenizer: Any,
    batched: bool,
    compiled: bool,
) -> Iterator[list[Server]]:
    """Start `lagwise serve` for a run and `transformers serve` for a peer, and stop them on exit.

    Args:
        run: Folder of a trained language model.
        clients: Largest number of clients.
        threads: CPU threads of each server.
        peer: Model for `transformers serve`, if any.
        tokenizer: The peer's tokenizer.
        batched: Whether to start `transformers serve` with continuous batching too.
        compiled: Whether to start `lagwise serve` with a compiled step too.
    """
    with ExitStack() as stack:
        folder = stack.enter_context(tempfile.TemporaryDirectory())
        ours = ("lagwise", "serve", str(run), "--queue", str(clients), "--rows", str(min(clients, 64)))
        ways = {"lagwise": "--no-compile", **({"lagwise, compiled": "--compile"} if compiled else {})}
        servers = [
            stack.enter_context(running(name, (*ours, flag), run.resolve().name, threads))
            for name, flag in ways.items()
        ]
        if peer is not None:
            peer.save_pretrained(folder)
            tokenizer.save_pretrained(folder)
            command = ("transformers.cli.transformers", "serve", folder, "--device", "cpu", "--dtype", "float32")
            servers.append(stack.enter_context(running("transformers", command, folder, threads)))
            if batched:
                batches = (*command, "--continuous-batching", "--attn-implementation", "sdpa")
                servers.append(stack.enter_context(running("transformers, batched", batches, folder, threads)))
        yield servers


@contextmanager
def running(name: str, command: Sequence[str], model: str, threads: int) -> Iterator[Server]:
    """Start a server by a module's command, and yield it once it answers."""
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    environment = {**os.environ, "OMP_NUM_THREADS": str(threads), "HF_HUB_OFFLINE": "1"}
    with tempfile.TemporaryFile() as log:
        process = subprocess.Popen(
            [sys.executable, "-m", *command, "--port", str(port)], env=environment, stdout=log, stderr=log
        )
        try:
            deadline = time.monotonic() + _TIMEOUT_SECONDS
            while not _answers(port):
                if process.poll() is not None or time.monotonic() > deadline:
                    log.seek(0)
                    raise RuntimeError(f"{name} did not start: {log.read()[-1000:].decode(errors='replace')}")
                time.sleep(0.2)
            yield Server(name, port, model, process.pid)
        finally:
            process.terminate()
            with suppress(subprocess.TimeoutExpired):
                process.wait(20)
            process.kill()
            process.wait()


def _answers(port: int) -> bool:
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=5)
    try:
        connection.request("GET", "/health")
        return connection.getresponse().status == 200
    except OSError:
        return False
    finally:
        connection.close()


def run_prompts(run: Path, count: int, length: int) -> list[Tensor]:
    """Take token ids ``(length,)`` from evenly spaced positions in the test text of a run."""
    options = load_run(run).data
    text = prepare(options.source or "stdlib", options.tokenizer, vocab_size=options.vocab_size).splits["test"]
    starts = torch.linspace(0, len(text) - length, count).long().tolist()
    return [torch.tensor(text[start : start + length].astype("int64")) for start in starts]


def table_rows(rows: Sequence[Row]) -> list[tuple[Any, ...]]:
    """Format rows of (server, clients, tokens/s, our speedup, seconds to the first text: p50, p99, to the end: p50,
    p99)."""
    ours = {row.clients: row.tokens_per_second for row in rows if row.server == "lagwise"}
    return [
        (
            row.server,
            row.clients,
            f"{row.tokens_per_second:,.0f}",
            f"{ours[row.clients] / row.tokens_per_second:.2f}x",
            *(f"{each:.3f}" for each in (row.first_median, row.first_p99, row.whole_median, row.whole_p99)),
        )
        for row in rows
    ]
