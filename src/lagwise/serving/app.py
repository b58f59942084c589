"""The HTTP application: OpenAI's completions and chat on a `Scheduler`, and embeddings on an `Embedder`."""

from __future__ import annotations

import asyncio
import hmac
import json
from collections.abc import AsyncIterator, Iterator, Mapping, Sequence
from contextlib import ExitStack, asynccontextmanager, closing, contextmanager, suppress
from typing import Any

from fastapi import FastAPI, HTTPException, Request, Response
from fastapi.exceptions import RequestValidationError
from starlette.concurrency import run_in_threadpool
from starlette.exceptions import HTTPException as StarletteHTTPException
from starlette.middleware.cors import CORSMiddleware
from starlette.types import ASGIApp, Message, Receive, Scope, Send
from transformers import PreTrainedTokenizerBase

from lagwise._version import __version__
from lagwise.models.generation import INCOMPLETE, encode_prompt
from lagwise.serving.embedding import Embedder
from lagwise.serving.protocol import (
    ERROR_RESPONSE,
    STREAM_RESPONSE,
    Bodies,
    ChatRequest,
    CompletionRequest,
    EmbeddingRequest,
    described,
    embeddings_body,
    error_body,
    usage,
)
from lagwise.serving.scheduler import Answer, Busy, Sampling, Scheduler, Stopped

_GENERATION = ("/v1/completions", "/v1/chat/completions")
_PATHS = ("/v1/models", "/v1/embeddings", "/health")
_PUBLIC_PATHS = ("/", "/health")  # need no key
_GRACE_SECONDS = 10  # after an answer's deadline for reading the rest of it
_ERROR_TYPES = {401: "authentication_error", 404: "not_found_error", 429: "rate_limit_error", 504: "timeout_error"}


def make_app(
    scheduler: Scheduler | None,
    name: str,
    *,
    embedder: Embedder | None = None,
    max_body: int = 2**20,
    api_key: str | None = None,
    origins: Sequence[str] = (),
) -> FastAPI:
    """Create the application that serves a model. It starts and stops the scheduler.

    Args:
        scheduler: The language model's scheduler, or None for a model that generates no text.
        name: Name under which the model is served.
        embedder: The embedder; by default one of the scheduler's model.
        max_body: Maximum bytes of a request.
        api_key: Key that requests to ``/v1`` must send as ``Authorization: Bearer``; by default none is required.
        origins: Origins whose web pages may ask the server (CORS), ``*`` for any; by default none.
    """
    if embedder is None:
        if scheduler is None:
            raise ValueError("give a scheduler for a language model, or an embedder for another model")
        embedder = Embedder(scheduler.session.model, scheduler.tokenizer, timeout=scheduler.timeout)
    paths = (*_PATHS, *(_GENERATION if scheduler else ()))

    @asynccontextmanager
    async def lifespan(app: FastAPI) -> AsyncIterator[None]:
        if scheduler is not None:
            scheduler.start()
        yield
        if scheduler is not None:
            await run_in_threadpool(scheduler.stop)

    # No documentation pages: they load scripts from a CDN.
    options: Any = {"docs_url": None, "redoc_url": None, "responses": {"default": ERROR_RESPONSE}}
    app = FastAPI(title="lagwise", version=__version__, lifespan=lifespan, **options)
    app.add_middleware(_Guard, max_body=max_body, timeout=embedder.timeout + _GRACE_SECONDS, api_key=api_key)
    if origins:  # outermost, since browsers ask without the key whether they may ask
        app.add_middleware(CORSMiddleware, allow_origins=list(origins), allow_methods=["*"], allow_headers=["*"])
    app.add_exception_handler(RequestValidationError, _invalid)
    app.add_exception_handler(StarletteHTTPException, _refused)
    app.add_exception_handler(Exception, _failed)

    def generator() -> Scheduler:
        if scheduler is None:
            raise HTTPException(404, f"the model {name!r} generates no text; it has /v1/embeddings")
        return scheduler

    def reply(body: CompletionRequest | ChatRequest, prompts: list[list[int]], rule: Sampling) -> Response:
        options = body.stream_options
        return _Reply(
            generator(),
            [(prompt, each) for prompt in prompts for each in body.rules(rule)],
            Bodies(name, chat=isinstance(body, ChatRequest)),
            prompt_tokens=sum(map(len, prompts)),
            echo=isinstance(body, CompletionRequest) and bool(body.echo),
            stream=bool(body.stream),
            with_usage=options is not None and options.include_usage,
        )

    def check_model(requested: str) -> None:
        if requested != name:
            raise HTTPException(404, f"no model {requested!r:.200}; this server has {name!r}")

    @app.post("/v1/completions", responses={200: STREAM_RESPONSE})
    async def completions(body: CompletionRequest) -> Response:
        check_model(body.model)
        scheduler = generator()
        with _as_http():
            prompts = body.prompts()
            scheduler.require_capacity(len(prompts) * body.texts)  # do not encode prompts that would be refused
            ids = [await run_in_threadpool(_encoded, scheduler.tokenizer, p) for p in prompts]
            return reply(body, ids, body.rule())

    @app.post("/v1/chat/completions", responses={200: STREAM_RESPONSE})
    async def chat(body: ChatRequest) -> Response:
        check_model(body.model)
        scheduler = generator()
        with _as_http():
            scheduler.require_capacity(body.texts)
            ids = await run_in_threadpool(body.prompt, scheduler.tokenizer)
            return reply(body, [ids], body.rule(scheduler.tokenizer))

    @app.post("/v1/embeddings")
    async def embeddings(body: EmbeddingRequest) -> Response:
        check_model(body.model)

        def answer() -> Response:
            body.check_size(embedder.size)
            ids = [_encoded(embedder.tokenizer, text) for text in body.texts()]
            vectors = [body.encoded(vector) for vector in embedder.embed(ids)]
            return _json(embeddings_body(name, vectors, sum(map(len, ids))))

        with _as_http():
            return await run_in_threadpool(answer)

    served = {"id": name, "object": "model", "owned_by": "lagwise", "created": 0}

    @app.get("/v1/models")
    async def models() -> Response:
        return _json({"object": "list", "data": [served]})

    @app.get("/v1/models/{model:path}")
    async def one_model(model: str) -> Response:
        check_model(model)
        return _json(served)

    @app.head("/", include_in_schema=False)
    @app.get("/")
    async def start() -> Response:
        about = f"lagwise serves the model {name!r} with OpenAI's API; clients' base URL is this address with /v1"
        return _json({"about": about, "model": name, "paths": list(paths), "needs_key": api_key is not None})

    @app.head("/health", include_in_schema=False)
    @app.get("/health")
    async def health() -> Response:
        alive = scheduler is None or scheduler.alive
        counts = {**(scheduler.counts if scheduler else {}), "embedding": embedder.open}
        return _json({"status": "ok" if alive else "stopped", **counts}, 200 if alive else 503)

    return app


class _Reply(Response):
    """Response with the texts of a request, complete or as server-sent events. Answers are closed on completion,
    failure or disconnection. texts: prompt and options of each."""

    def __init__(
        self,
        scheduler: Scheduler,
        texts: Sequence[tuple[list[int], Sampling]],
        bodies: Bodies,
        *,
        prompt_tokens: int,
        echo: bool,
        stream: bool,
        with_usage: bool,
    ):
        super().__init__()
        self.scheduler, self.texts, self.bodies = scheduler, texts, bodies
        self.prompt_tokens, self.echo, self.stream, self.with_usage = prompt_tokens, echo, stream, with_usage

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        loop, self.ready = asyncio.get_running_loop(), asyncio.Event()

        def wake() -> None:
            with suppress(RuntimeError):  # the loop and all connections are closed
                loop.call_soon_threadsafe(self.ready.set)

        with ExitStack() as answers:
            with _as_http():
                self.scheduler.require_capacity(len(self.texts))
                self.answers = [
                    answers.enter_context(closing(self.scheduler.submit(prompt, rule, wake)))
                    for prompt, rule in self.texts
                ]
            sent = self._send_stream(send) if self.stream else self._send_complete(scope, receive, send)
            tasks = [asyncio.ensure_future(sent), asyncio.ensure_future(_until_disconnected(receive))]
            try:
                await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
            finally:
                for task in tasks:
                    task.cancel()
                results = await asyncio.gather(*tasks, return_exceptions=True)
            if isinstance(results[0], Exception):
                raise results[0]

    async def _chunks(self) -> AsyncIterator[tuple[int, str, str | None]]:
        """Yield the index of a text, its next chunk, and at its end the reason why it finished. Chunks are longer when
        the client reads slowly. Ends at the first failure."""
        left = dict(enumerate(self.answers))
        if self.echo:
            for number, (prompt, _) in enumerate(self.texts):
                yield number, self._decoded(prompt), None
        while left:
            await self.ready.wait()
            self.ready.clear()
            for number, answer in list(left.items()):
                finish = answer.finish  # read before taking the text, so that the text is complete
                if answer.error is not None:
                    return
                if (text := answer.take()) or finish:
                    yield number, text, finish
                if finish is not None:
                    del left[number]

    def _decoded(self, ids: list[int]) -> str:
        return str(self.scheduler.tokenizer.decode(ids, skip_special_tokens=True))

    def _token_text(self, token: int) -> tuple[str, list[int] | None]:
        """Return the text of a token and its bytes; for a token without text its name in the vocabulary, and its bytes
        if it is a part of a character, else None."""
        text = self._decoded([token])
        if not text or INCOMPLETE in text:
            spelling = self.scheduler.spellings[token : token + 1]
            return str(self.scheduler.tokenizer.convert_ids_to_tokens(token)), list(*spelling) or None
        return text, list(text.encode())

    def _failure(self) -> tuple[int, str] | None:
        """Return the status and message of the first text that failed."""
        errors = [answer.error for answer in self.answers if answer.error is not None]
        if not errors:
            return None
        status = _status(errors[0])
        return status, "the model failed; see the server's log" if status == 500 else str(errors[0])

    async def _send_complete(self, scope: Scope, receive: Receive, send: Send) -> None:
        texts = [""] * len(self.answers)
        async for number, text, _ in self._chunks():
            texts[number] += text
        if failure := self._failure():
            await _error(*failure)(scope, receive, send)
            return
        choices = []
        for number, (text, answer) in enumerate(zip(texts, self.answers, strict=True)):
            with_logprobs = answer.sampling.logprobs is not None
            logprobs = self.bodies.logprobs(answer.logprobs, self._token_text) if with_logprobs else None
            choices.append(self.bodies.choice(number, text, str(answer.finish), logprobs))
        await _json(self.bodies.complete(choices, self._usage()))(scope, receive, send)

    async def _send_stream(self, send: Send) -> None:
        headers = [(b"content-type", b"text/event-stream; charset=utf-8"), (b"cache-control", b"no-cache")]
        await send({"type": "http.response.start", "status": 200, "headers": headers})
        begun: set[int] = set()
        new = [self._new_logprobs(answer) for answer in self.answers]
        async for number, text, finish in self._chunks():
            # the text, then why it finished
            for delta, end in ((text, None), ("", finish)):
                if delta or end is not None:
                    first, logprobs = number not in begun, next(new[number])
                    chunk = self.bodies.chunk(number, delta, first=first, finish=end, logprobs=logprobs)
                    await _event(send, chunk)
                    begun.add(number)
        if failure := self._failure():
            status, message = failure
            await _event(send, error_body(message, _kind(status), str(status)))
        else:
            if self.with_usage:
                await _event(send, self.bodies.usage(self._usage()))
            await _event(send, "[DONE]")
        await send({"type": "http.response.body", "body": b""})

    def _new_logprobs(self, answer: Answer) -> Iterator[dict[str, Any] | None]:
        """Yield the log-probabilities of the tokens since the last time, None if there are none. They may be ahead of
        the text, which waits for complete characters and withholds a possible beginning of a stop text."""
        sent = start = 0
        while True:
            tokens = answer.logprobs[sent:]
            yield self.bodies.logprobs(tokens, self._token_text, start) if tokens else None
            sent += len(tokens)
            start += sum(len(self._token_text(each.token)[0]) for each in tokens)

    def _usage(self) -> dict[str, int]:
        return usage(self.prompt_tokens, sum(answer.tokens for answer in self.answers))


class _Guard:
    """Middleware that refuses requests without the key or with too many bytes, and ends those that take too long."""

    def __init__(self, app: ASGIApp, max_body: int, timeout: float, api_key: str | None):
        self.app, self.max_body, self.timeout = app, max_body, timeout
        self.expected = None if api_key is None else f"Bearer {api_key}".encode()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            return await self.app(scope, receive, send)
        key, public = dict(scope["headers"]).get(b"authorization", b""), scope["path"] in _PUBLIC_PATHS
        if self.expected is not None and not public and not hmac.compare_digest(key, self.expected):
            message = "this server requires a key: Authorization: Bearer KEY"
            return await _error(401, message, {"www-authenticate": "Bearer"})(scope, receive, send)
        size, started = 0, False

        async def counted() -> Message:
            nonlocal size
            message = await receive()
            size += len(message.get("body", b""))
            if size > self.max_body:
                raise HTTPException(413, f"a request may have at most {self.max_body} bytes")
            return message

        async def noted(message: Message) -> None:
            nonlocal started
            started = True
            await send(message)

        try:
            async with asyncio.timeout(self.timeout):
                await self.app(scope, counted, noted)
        except TimeoutError:
            if not started:  # otherwise the server closes the connection
                await _error(408, f"the request took more than {self.timeout:g} seconds")(scope, receive, send)


def _encoded(tokenizer: PreTrainedTokenizerBase, prompt: str | list[int]) -> list[int]:
    """Encode a prompt as token ids."""
    if isinstance(prompt, list):
        return prompt
    return [token for chunk in encode_prompt(tokenizer, prompt) for token in chunk.tolist()]


async def _until_disconnected(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass


async def _event(send: Send, body: Mapping[str, Any] | str) -> None:
    data = body if isinstance(body, str) else json.dumps(body)
    await send({"type": "http.response.body", "body": f"data: {data}\n\n".encode(), "more_body": True})


def _json(body: Mapping[str, Any], status: int = 200, headers: Mapping[str, str] | None = None) -> Response:
    # ASCII only: a message may quote client input that is not valid Unicode.
    return Response(json.dumps(body), status, headers, "application/json")


def _error(status: int, message: str, headers: Mapping[str, str] | None = None, param: str | None = None) -> Response:
    # OpenAI's clients retry after any 5xx status, but a request that timed out would time out again.
    never_again = {"x-should-retry": "false"} if status == 504 else {}
    return _json(error_body(message, _kind(status), str(status), param), status, {**never_again, **(headers or {})})


def _kind(status: int) -> str:
    return _ERROR_TYPES.get(status, "server_error" if status >= 500 else "invalid_request_error")


# HTTP status of a scheduler's exceptions
_STATUS: dict[type[Exception], int] = {Busy: 429, Stopped: 503, TimeoutError: 504}


def _status(error: Exception) -> int:
    return next((status for kind, status in _STATUS.items() if isinstance(error, kind)), 500)


@contextmanager
def _as_http() -> Iterator[None]:
    """Convert a scheduler's exceptions to HTTP errors."""
    try:
        yield
    except ValueError as error:
        raise HTTPException(400, str(error)) from error
    except tuple(_STATUS) as error:
        status = _status(error)
        raise HTTPException(status, str(error), {"retry-after": "1"} if status == 429 else None) from error


async def _invalid(request: Request, error: Exception) -> Response:
    assert isinstance(error, RequestValidationError)
    message, param = described(error.errors())
    return _error(400, message, param=param)


async def _refused(request: Request, error: Exception) -> Response:
    assert isinstance(error, StarletteHTTPException)
    return _error(error.status_code, str(error.detail), error.headers)


async def _failed(request: Request, error: Exception) -> Response:
    return _error(500, "the server failed; see its log")
