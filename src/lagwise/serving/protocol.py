"""OpenAI's formats: requests, chat prompts, and bodies of answers."""

from __future__ import annotations

import base64
import itertools
import time
import uuid
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Annotated, Any, Literal, Self

from pydantic import BaseModel, ConfigDict, Field, StringConstraints, model_validator
from torch import Tensor
from transformers import PreTrainedTokenizerBase

from lagwise.models.generation import PLAIN_STOP, encode_chat
from lagwise.serving.scheduler import Sampling, TokenLogprobs
from lagwise.tables import shown

_MAX_TOP_LOGPROBS = 20  # as in OpenAI's API
_MAX_EMBEDDED_TEXTS = 2048  # per request, as in OpenAI's API
_DEFAULT_MAX_TOKENS = 16  # of a completion, as in OpenAI's API
# Unsupported parameters, with their values that have no effect and are accepted.
_NEUTRAL: dict[str, tuple[Any, ...]] = {
    **dict.fromkeys(("frequency_penalty", "presence_penalty"), (0,)),
    "echo": (False,),
    **dict.fromkeys(("logit_bias", "suffix", "tools", "functions", "modalities"), ({}, [], "", ["text"])),
    "tool_choice": ("none", "auto"),
    "response_format": ({"type": "text"},),
    "top_logprobs": (0,),
    "parallel_tool_calls": (True, False),
    **dict.fromkeys(("reasoning_effort", "verbosity", "prediction", "audio", "web_search_options"), ()),
}
# Descriptions of parameters of several types, instead of pydantic's error for each type.
_EXPECTED = {
    **dict.fromkeys(("prompt", "input"), "a text or a list of token ids, or a list of these"),
    "stop": "a text of 1 to 256 characters, or at most 16 of them",
}
Texts = str | list[int] | list[str] | list[list[int]]
_IGNORED = {"user", "metadata", "store", "service_tier", "safety_identifier", "prompt_cache_key"}

Stop = Annotated[str, StringConstraints(min_length=1, max_length=256)]


class StreamOptions(BaseModel):
    include_usage: bool = False


class Request(BaseModel):
    """Base of completion and chat requests: their shared parameters."""

    model_config = ConfigDict(extra="forbid", allow_inf_nan=False)

    model: str
    max_tokens: Annotated[int, Field(ge=1)] | None = None
    temperature: Annotated[float, Field(ge=0, le=2)] | None = None
    top_p: Annotated[float, Field(gt=0, le=1)] | None = None
    seed: int | None = None
    stop: Stop | Annotated[list[Stop], Field(max_length=16)] | None = None
    n: Annotated[int, Field(ge=1)] | None = None
    best_of: int | None = None
    stream: bool | None = None
    stream_options: StreamOptions | None = None

    @model_validator(mode="before")
    @classmethod
    def _leave_out_what_changes_nothing(cls, values: Any) -> Any:
        if not isinstance(values, dict):
            return values
        unsupported = {name: neutral for name, neutral in _NEUTRAL.items() if name not in cls.model_fields}
        for name, neutral in unsupported.items():
            value = values.get(name)
            same = (value == each and isinstance(value, bool) == isinstance(each, bool) for each in neutral)
            if value is not None and not any(same):
                raise ValueError(f"{name} is not supported by this server; leave it out")
        return {name: value for name, value in values.items() if name not in unsupported and name not in _IGNORED}

    @model_validator(mode="after")
    def _agree(self) -> Self:
        if self.best_of not in (None, self.texts):
            raise ValueError(f"best_of must be n, {self.texts}: this server returns every text that it generates")
        return self

    @property
    def texts(self) -> int:
        """The number of texts for each prompt."""
        return self.n or 1

    def likely(self) -> int | None:
        """Return the number of most likely tokens whose probabilities are returned; None for no probabilities."""
        raise NotImplementedError

    def rules(self, sampling: Sampling) -> list[Sampling]:
        """Return the options of each of a prompt's texts, which have different seeds."""
        if sampling.seed is None:
            return [sampling] * self.texts
        return [replace(sampling, seed=sampling.seed + number) for number in range(self.texts)]

    def sampling(self, default_tokens: int | None, stop: tuple[str, ...] = ()) -> Sampling:
        requested = (self.stop,) if isinstance(self.stop, str) else tuple(self.stop or ())
        return Sampling(
            max_tokens=default_tokens if self.max_tokens is None else self.max_tokens,
            temperature=1.0 if self.temperature is None else self.temperature,
            top_p=1.0 if self.top_p is None else self.top_p,
            seed=self.seed,
            stop=requested + stop,
            logprobs=self.likely(),
        )


class CompletionRequest(Request):
    """A completion request. ``prompt`` is a text or its token ids, or a list of several."""

    prompt: Texts
    echo: bool | None = None
    logprobs: Annotated[int, Field(ge=0, le=_MAX_TOP_LOGPROBS)] | Literal[False] | None = None

    @model_validator(mode="after")
    def _without_the_prompts_probabilities(self) -> Self:
        if self.echo and self.likely() is not None:
            raise ValueError("logprobs is not supported with echo: the probabilities of a prompt are not computed")
        return self

    def likely(self) -> int | None:
        return None if self.logprobs is False else self.logprobs

    def rule(self) -> Sampling:
        return self.sampling(_DEFAULT_MAX_TOKENS)

    def prompts(self) -> list[str | list[int]]:
        return _several(self.prompt)


class EmbeddingRequest(BaseModel):
    """A request for the embeddings of one text or of several."""

    model_config = ConfigDict(extra="forbid")

    model: str
    input: Texts
    encoding_format: Literal["float", "base64"] = "float"
    dimensions: int | None = None
    user: str | None = None

    def texts(self) -> list[str | list[int]]:
        texts = _several(self.input)
        if len(texts) > _MAX_EMBEDDED_TEXTS or not all(texts):
            raise ValueError(f"input must be 1 to {_MAX_EMBEDDED_TEXTS} texts, none of them empty")
        return texts

    def check_size(self, size: int) -> None:
        """Raise ValueError if the client wants embeddings of another size."""
        if self.dimensions not in (None, size):
            raise ValueError(f"dimensions must be {size}, the size of this model's embeddings; got {self.dimensions}")

    def encoded(self, vector: Tensor) -> list[float] | str:
        """Encode a vector as numbers, or as the bytes of little-endian float32 numbers in base 64."""
        if self.encoding_format == "float":
            return vector.tolist()
        return base64.b64encode(vector.numpy().astype("<f4").tobytes()).decode()


def _several(texts: Texts) -> list[str | list[int]]:
    several = isinstance(texts, list) and texts and not isinstance(texts[0], int)
    return texts if several else [texts]  # type: ignore[list-item,return-value]


class TextPart(BaseModel):
    type: Literal["text"]
    text: str


class Message(BaseModel):
    """A message of a conversation. Additional fields, which other servers' answers may have, are ignored."""

    role: Literal["system", "developer", "user", "assistant"]
    content: str | list[TextPart]

    def plain(self) -> dict[str, str]:
        parts = [self.content] if isinstance(self.content, str) else [part.text for part in self.content]
        return {"role": self.role, "content": "".join(parts)}


class ChatRequest(Request):
    messages: Annotated[list[Message], Field(min_length=1)]
    max_completion_tokens: Annotated[int, Field(ge=1)] | None = None
    logprobs: bool | None = None
    top_logprobs: Annotated[int, Field(ge=0, le=_MAX_TOP_LOGPROBS)] | None = None

    @model_validator(mode="after")
    def _with_logprobs(self) -> Self:
        if self.top_logprobs and not self.logprobs:
            raise ValueError("top_logprobs needs logprobs: true")
        return self

    def likely(self) -> int | None:
        return (self.top_logprobs or 0) if self.logprobs else None

    def rule(self, tokenizer: PreTrainedTokenizerBase) -> Sampling:
        return self.sampling(self.max_completion_tokens, () if tokenizer.chat_template else PLAIN_STOP)

    def prompt(self, tokenizer: PreTrainedTokenizerBase) -> list[int]:
        """Encode the conversation as token ids. ValueError if the chat template or the tokenizer refuses it."""
        encoded = encode_chat(tokenizer, [message.plain() for message in self.messages])
        return [token for chunk in encoded for token in chunk.tolist()]


class Bodies:
    """Builder of the bodies of one answer, complete or as chunks of a stream."""

    def __init__(self, model: str, *, chat: bool):
        self.chat, self.kind = chat, "chat.completion" if chat else "text_completion"
        self.chunk_kind = "chat.completion.chunk" if chat else self.kind
        id = f"{'chatcmpl' if chat else 'cmpl'}-{uuid.uuid4().hex}"
        self.head = {"id": id, "created": int(time.time()), "model": model}

    def choice(self, index: int, text: str, finish: str, logprobs: dict[str, Any] | None) -> dict[str, Any]:
        """Build the choice for one text of a complete answer."""
        content = {"message": {"role": "assistant", "content": text}} if self.chat else {"text": text}
        return {"index": index, **content, "logprobs": logprobs, "finish_reason": finish}

    def logprobs(
        self, tokens: Sequence[TokenLogprobs], describe: Callable[[int], tuple[str, list[int] | None]], start: int = 0
    ) -> dict[str, Any]:
        """Format the log-probabilities of tokens.

        Args:
            tokens: The tokens.
            describe: Returns the text of a token, and its bytes or None if they are not known.
            start: Number of characters of the tokens before these.
        """
        if not self.chat:
            texts = [describe(each.token)[0] for each in tokens]
            return {
                "tokens": texts,
                "token_logprobs": [each.logprob for each in tokens],
                "top_logprobs": [{describe(t)[0]: p for t, p in each.likely.items()} for each in tokens],
                "text_offset": list(itertools.accumulate(map(len, texts[:-1]), initial=start))[: len(texts)],
            }

        def entry(token: int, logprob: float) -> dict[str, Any]:
            text, as_bytes = describe(token)
            return {"token": text, "logprob": logprob, "bytes": as_bytes}

        likely = [[entry(t, p) for t, p in each.likely.items()] for each in tokens]
        content = [
            {**entry(each.token, each.logprob), "top_logprobs": best} for each, best in zip(tokens, likely, strict=True)
        ]
        return {"content": content, "refusal": None}

    def complete(self, choices: list[dict[str, Any]], usage: dict[str, int]) -> dict[str, Any]:
        return {**self.head, "object": self.kind, "choices": choices, "usage": usage}

    def chunk(
        self, index: int, text: str, *, first: bool, finish: str | None, logprobs: dict[str, Any] | None
    ) -> dict[str, Any]:
        delta = {**({"role": "assistant"} if first else {}), **({"content": text} if text or first else {})}
        content = {"delta": delta} if self.chat else {"text": text}
        choices = [{"index": index, **content, "logprobs": logprobs, "finish_reason": finish}]
        return {**self.head, "object": self.chunk_kind, "choices": choices}

    def usage(self, usage: dict[str, int]) -> dict[str, Any]:
        """Build the last chunk of a stream with ``include_usage``."""
        return {**self.head, "object": self.chunk_kind, "choices": [], "usage": usage}


def usage(prompt: int, tokens: int) -> dict[str, int]:
    return {"prompt_tokens": prompt, "completion_tokens": tokens, "total_tokens": prompt + tokens}


def embeddings_body(model: str, vectors: Sequence[list[float] | str], tokens: int) -> dict[str, Any]:
    data = [{"object": "embedding", "index": number, "embedding": each} for number, each in enumerate(vectors)]
    usage = {"prompt_tokens": tokens, "total_tokens": tokens}
    return {"object": "list", "data": data, "model": model, "usage": usage}


class Error(BaseModel):
    message: str
    type: str
    param: str | None
    code: str | None


class ErrorBody(BaseModel):
    error: Error


# What the description at /openapi.json says of answers.
ERROR_RESPONSE = {"description": "An error", "model": ErrorBody}
STREAM_RESPONSE = {"description": "The whole answer, or server-sent events", "content": {"text/event-stream": {}}}


def error_body(message: str, kind: str, code: str | None = None, param: str | None = None) -> dict[str, Any]:
    return {"error": {"message": message, "type": kind, "param": param, "code": code}}


def described(errors: Any) -> tuple[str, str | None]:
    """Describe the first of pydantic's errors, and return with the message the parameter that caused it."""
    first = errors[0]
    path = [str(part) for part in first["loc"] if part != "body"]
    message = str(first["msg"]).removeprefix("Value error, ")
    if first["type"] == "json_invalid" or (not path and first["type"] != "value_error"):
        return "the body must be a JSON object, sent with Content-Type: application/json", None
    if first["type"] == "extra_forbidden":
        message = f"{shown(path[-1])} is not a known parameter"
    elif path[:1] == ["messages"] and "content" in path:
        message = f"the content of message {path[1]} must be a text or a list of parts of type text, the first is 0"
    elif path and path[0] in _EXPECTED and first["type"] != "missing":
        message = f"{path[0]} must be {_EXPECTED[path[0]]}"
    elif path:
        message = f"{'.'.join(path)}: {message}"
    return message, path[0] if path else None
