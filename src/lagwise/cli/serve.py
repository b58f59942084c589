"""``lagwise serve``."""

from __future__ import annotations

import errno
import socket
from contextlib import nullcontext, suppress
from pathlib import Path
from typing import Annotated

import typer

from lagwise.cli.parsing import at_least, number_option, run_argument, text_option, within
from lagwise.cli.terminal import plain
from lagwise.extras import require


def serve(
    run: Annotated[Path, run_argument("Folder of a language model or an encoder.")],
    host: Annotated[str, text_option("Address to listen on; 0.0.0.0 means all interfaces.")] = "127.0.0.1",
    port: Annotated[int, number_option("Port to listen on.", within(1, 65535, brackets="[]"))] = 8000,
    rows: Annotated[int, number_option("Maximum requests processed at the same time.", at_least(1))] = 32,
    queue: Annotated[int, number_option("Maximum waiting requests; further ones get status 429.", at_least(0))] = 128,
    max_tokens: Annotated[int, number_option("Maximum tokens per answer.", at_least(1))] = 4096,
    timeout: Annotated[float, number_option("Maximum seconds per answer.", at_least(0.001))] = 300,
    max_body: Annotated[int, number_option("Maximum bytes per request.", at_least(1))] = 2**20,
    api_key: Annotated[str | None, text_option("Key that clients must send, if any.", envvar="LAGWISE_API_KEY")] = None,
    cors: Annotated[
        list[str] | None,
        text_option(
            "Origin whose web pages may ask this server, such as http://localhost:3000, or `*` for any. May be "
            "given several times.",
            show_default="none",
        ),
    ] = None,
    compile: Annotated[
        bool | None,
        typer.Option(
            "--compile/--no-compile",
            help="Compile the model's step first, which takes 15 seconds to a minute, once per model. By default, a "
            "cached step is used if there is one.",
            show_default=False,
        ),
    ] = None,
) -> None:
    """Serve a model with OpenAI's API: completions and chat of a language model, with streaming and continuous
    batching, and embeddings of a language model or an encoder.

    lagwise serve runs/best-lm

    curl http://127.0.0.1:8000/v1/completions -H "Content-Type: application/json" -d '{"model": "best-lm", "prompt":
    "def "}'

    The model is named after its folder. Ctrl-C stops the server.

    A compiled step generates tokens several times as fast. Compilation takes 15 seconds to a minute:

    lagwise serve runs/best-lm --compile
    """
    require("serve", "serving", "fastapi", "uvicorn", "jinja2")  # before the model is loaded
    import uvicorn

    _check_address(host, port)
    from lagwise.models import LagwiseForCausalLM
    from lagwise.models.loading import default_device, load_model
    from lagwise.serving.app import make_app
    from lagwise.serving.embedding import Embedder
    from lagwise.serving.scheduler import Scheduler

    model, tokenizer = load_model(run, device="cpu" if compile else default_device())
    if tokenizer is None:
        raise ValueError(f"{str(run)!r} reads {model.config.input_name}, not text; see 'lagwise predict'")
    embedder, scheduler = Embedder(model, tokenizer, queue=rows + queue, timeout=timeout), None
    if isinstance(model, LagwiseForCausalLM):
        if compile is not False:
            with nullcontext() if compile else suppress(ValueError, RuntimeError, OSError):
                model.compile_step(None, cached=not compile, report=lambda line: typer.echo(line, err=True))
        scheduler = Scheduler(model, tokenizer, rows=rows, queue=queue, max_tokens=max_tokens, timeout=timeout)
    elif compile:
        raise ValueError(f"--compile is for language models; {str(run)!r} holds a {type(model).__name__}")
    name = run.resolve().name
    shown = f"[{host}]" if ":" in host else host
    kind = "" if scheduler else "the embeddings of "
    typer.echo(plain(f"Serving {kind}{name!r} at http://{shown}:{port}/v1 (Ctrl-C to stop)"))
    app = make_app(scheduler, name, embedder=embedder, max_body=max_body, api_key=api_key, origins=cors or ())
    uvicorn.run(app, host=host, port=port, log_level="warning", timeout_graceful_shutdown=5)


def _check_address(host: str, port: int) -> None:
    """Raise ValueError, before the model is loaded, if the server cannot listen there."""
    try:
        with socket.create_server((host, port), family=socket.AF_INET6 if ":" in host else socket.AF_INET):
            pass
    except OSError as error:
        reasons = {
            errno.EADDRINUSE: f"port {port} is in use by another program; choose another with --port",
            errno.EACCES: f"port {port} is reserved for the system's administrator; choose one above 1023 with --port",
            errno.EADDRNOTAVAIL: f"{host!r} is not an address of this machine; choose one with --host, such as 0.0.0.0",
        }
        unknown = f"the server cannot listen on --host {host!r} --port {port}: {error.strerror or error}"
        raise ValueError(reasons.get(error.errno or 0, unknown)) from error
