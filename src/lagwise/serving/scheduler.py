"""Continuous batching: requests join and leave the running batch at any token."""

from __future__ import annotations

import logging
import random
import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from functools import cached_property
from typing import Literal, NamedTuple

from torch import Tensor
from transformers import PreTrainedTokenizerBase

from lagwise.data import spellings
from lagwise.data.tokenizers import is_byte_level
from lagwise.models.causal_lm import LagwiseForCausalLM
from lagwise.models.generation import NO_NUMBERS, Sampling, TextWriter, draw, end_tokens
from lagwise.models.inputs import check_prompt_length
from lagwise.models.session import Prompt, StreamingSession
from lagwise.tables import check_integer

_CONTEXT_TOKENS = 8  # last tokens of a prompt that are decoded with the next ones, whose text depends on them
_log = logging.getLogger(__name__)


class Busy(Exception):
    """The server has reached its maximum number of requests."""


class Stopped(Exception):
    """The server is shutting down."""


class TokenLogprobs(NamedTuple):
    """A token of an answer with its log-probability, and those of the most likely tokens at its position."""

    token: int
    logprob: float
    likely: dict[int, float]


class Answer:
    """The text of one request, written by the scheduler and read by one reader, which must always close it.

    ``finish`` is None until the text has ended. Then it is "stop" (a stop text or the end of the document), "length",
    or "error", with the exception in ``error``. Unread text is buffered, so a slow reader does not block other
    requests. The maximum number of tokens bounds the buffer.
    """

    def __init__(
        self,
        prompt: Prompt,
        sampling: Sampling,
        max_tokens: int,
        deadline: float,
        close: Callable[[Answer], None],
        wake: Callable[[], None],
    ):
        self.prompt, self.sampling, self.max_tokens, self.deadline = prompt, sampling, max_tokens, deadline
        self.numbers = random.Random(sampling.seed)
        self.tokens = 0
        self.logprobs: list[TokenLogprobs] = []
        self.finish: Literal["stop", "length", "error"] | None = None
        self.error: Exception | None = None
        self.closed = False
        self._close, self._wake, self._unread = close, wake, deque[str]()

    def take(self) -> str:
        """Return the text since the last call. All text is available before ``finish`` is set."""
        return "".join(self._unread.popleft() for _ in range(len(self._unread)))

    def close(self) -> None:
        """Close the answer. The scheduler frees its resources before the next step."""
        self._close(self)

    def write(self, text: str) -> None:
        self._unread.append(text)
        self._wake()

    def note(self, token: int, logits: Tensor) -> None:
        """Record the log-probabilities of a token, if requested: those of the model, before temperature and top_p."""
        if self.sampling.logprobs is None:
            return
        logprobs = logits.cpu().double().log_softmax(0)
        best, tokens = logprobs.topk(min(self.sampling.logprobs, len(logprobs)))
        likely = dict(zip(tokens.tolist(), best.tolist(), strict=True))
        self.logprobs.append(TokenLogprobs(token, float(logprobs[token]), likely))

    def end(self, finish: Literal["stop", "length", "error"], error: Exception | None = None) -> None:
        self.error, self.finish = error, finish
        self._wake()


class Scheduler:
    """Generates text for many requests in one batch. Each text is the same as alone, up to rounding.

    `start` runs the scheduler in a thread; tests call `turn` instead. Requests may be submitted and closed from any
    thread.

    Args:
        model: The language model.
        tokenizer: Its tokenizer.
        rows: Maximum requests in the batch.
        queue: Maximum further requests that are waiting or not read to the end.
        max_tokens: Maximum tokens of an answer.
        timeout: Seconds for a request from `submit` to its last token.
        prefill_chunk: Prompt tokens processed between two steps of the batch, shared by all prompts.
        clock: Function that returns the time in seconds.
    """

    def __init__(
        self,
        model: LagwiseForCausalLM,
        tokenizer: PreTrainedTokenizerBase,
        *,
        rows: int = 32,
        queue: int = 128,
        max_tokens: int = 4096,
        timeout: float = 300.0,
        prefill_chunk: int = 256,
        clock: Callable[[], float] = time.monotonic,
    ):
        self.session = StreamingSession(model, prefill_chunk=prefill_chunk)
        self.tokenizer = tokenizer
        self.rows, self.queue = check_integer("rows", rows), check_integer("queue", queue, 0)
        self.max_tokens, self.timeout, self.clock = check_integer("max_tokens", max_tokens), timeout, clock
        self._ends = end_tokens(model) | {tokenizer.eos_token_id}
        self._open: set[Answer] = set()
        self._waiting: deque[Answer] = deque()
        self._prompts: deque[Answer] = deque()
        self._running: dict[int, tuple[Answer, TextWriter]] = {}
        self._changed = threading.Condition()  # guards _open, _waiting and _stopped
        self._stopped = False
        self._thread: threading.Thread | None = None

    @cached_property
    def spellings(self) -> list[bytes]:
        """The bytes of each token id, if the tokenizer is byte-level."""
        return spellings(self.tokenizer) if is_byte_level(self.tokenizer) else []

    def submit(self, prompt: Sequence[int], sampling: Sampling, wake: Callable[[], None] = lambda: None) -> Answer:
        """Queue a request.

        Args:
            prompt: Token ids.
            sampling: Options of sampling and stopping.
            wake: Called from another thread on new text and at the end.

        Raises:
            ValueError: If the prompt or the number of tokens is too large for the model or the server.
            Busy: If the server has reached its maximum number of open requests.
            Stopped: If the server is shutting down.
        """
        limit, count = self.session.model.length_limit, sampling.max_tokens
        if count is not None and count > self.max_tokens:
            raise ValueError(f"max_tokens={count} exceeds this server's limit of {self.max_tokens}")
        if count is None:
            count = self.max_tokens if limit is None else max(1, min(self.max_tokens, limit - len(prompt)))
        check_prompt_length(limit, len(prompt), count)
        answer = Answer(self.session.begin(prompt), sampling, count, self.clock() + self.timeout, self._forget, wake)
        with self._changed:
            self.require_capacity()
            self._open.add(answer)
            self._waiting.append(answer)
            self._changed.notify()
        return answer

    def require_capacity(self, texts: int = 1) -> None:
        """Raise `Busy` or `Stopped` if a request for so many texts would be refused now, and a ValueError if it always
        is. Call this before preparing a request."""
        if self._stopped:
            raise Stopped("the server is shutting down")
        if texts > self.rows + self.queue:
            raise ValueError(f"the request asks for {texts} texts; this server takes at most {self.rows + self.queue}")
        if len(self._open) + texts > self.rows + self.queue:
            raise Busy(f"the server has {len(self._open)} requests, its maximum; try again later")

    @property
    def counts(self) -> dict[str, int]:
        """Count the requests that are open, waiting for a row of the batch, and in the batch."""
        waiting = len(self._waiting)
        return {"open": len(self._open), "waiting": waiting, "running": len(self._prompts) + len(self._running)}

    @property
    def alive(self) -> bool:
        """Whether the thread is running."""
        return self._thread is not None and self._thread.is_alive()

    def start(self) -> None:
        """Run in a separate thread until `stop`."""
        self._thread = threading.Thread(target=self._run, name="lagwise-scheduler", daemon=True)
        self._thread.start()

    def stop(self) -> None:
        """Stop the thread, and end all requests with `Stopped`."""
        with self._changed:
            self._stopped = True
            self._changed.notify()
        if self._thread is not None:
            self._thread.join()
        self._end_all(Stopped("the server is shutting down"))

    def turn(self) -> bool:
        """Remove requests that were closed or timed out, process a chunk of prompts, and add a token to every text in
        the batch. Returns whether work remains."""
        self._remove_ended()
        self._prefill_next()
        self._step()
        return bool(self._waiting or self._prompts or self._running)

    def _run(self) -> None:
        busy = False
        while True:
            with self._changed:
                if not busy:
                    self._changed.wait_for(lambda: self._waiting or self._stopped)
                if self._stopped:
                    return
            try:
                busy = self.turn()
            except Exception as error:  # no request may wait forever
                _log.exception("the batch failed")
                self._end_all(error)
                busy = False

    def _forget(self, answer: Answer) -> None:
        with self._changed:
            answer.closed = True
            self._open.discard(answer)

    def _remove_ended(self) -> None:
        now = self.clock()

        def keep(answer: Answer) -> bool:
            if not answer.closed and now >= answer.deadline:
                answer.end("error", TimeoutError(f"the answer was not complete after {self.timeout:g} seconds"))
            return not answer.closed and answer.finish is None

        self._prompts = deque(filter(keep, self._prompts))
        self._drop([handle for handle, (answer, _) in self._running.items() if not keep(answer)])
        with self._changed:
            self._waiting = deque(filter(keep, self._waiting))
            while self._waiting and len(self._prompts) + len(self._running) < self.rows:
                self._prompts.append(self._waiting.popleft())

    def _prefill_next(self) -> None:
        """Process a chunk of prompts in turn, so that a short prompt does not wait for a long one."""
        left = self.session.prefill_chunk
        while self._prompts:
            answer = self._prompts[0]
            prompt = answer.prompt
            left -= min(prompt.left, self.session.prefill_chunk)
            if left < 0:
                return
            self._prompts.popleft()
            try:
                self.session.advance(prompt)
                if prompt.left:
                    self._prompts.append(answer)
                    continue
                context, stop = prompt.ids[-_CONTEXT_TOKENS:], answer.sampling.stop
                writer = TextWriter(self.tokenizer, [context], stop, False, answer.write)
                self._running[self.session.join(prompt)] = answer, writer
            except Exception as error:
                _log.exception("a prompt failed")
                answer.end("error", error)

    def _step(self) -> None:
        """Choose the next token of every text, remove the texts that have ended, and continue the others."""
        handles = self.session.handles
        if not handles:
            return
        try:
            answers = [self._running[handle][0] for handle in handles]
            tokens = draw(self.session.logits, [(answer.sampling, answer.numbers) for answer in answers])
            token_of = dict(zip(handles, tokens, strict=True))
            for answer in (answer for answer, token in zip(answers, tokens, strict=True) if token < 0):
                answer.end("error", FloatingPointError(NO_NUMBERS))
            for answer, token, logits in zip(answers, tokens, self.session.logits, strict=True):
                if token >= 0 and token not in self._ends:
                    answer.note(token, logits)
            self._drop([h for h in handles if token_of[h] < 0 or self._take(h, token_of[h])])
            self.session.step({handle: token_of[handle] for handle in self.session.handles})
        except Exception as error:  # for example out of memory; the session is unchanged
            _log.exception("a step of the batch failed")
            for answer, _ in self._running.values():
                answer.end("error", error)
            self._drop(list(self._running))

    def _take(self, handle: int, token: int) -> bool:
        """Add a token to a text. Returns whether the text has ended."""
        answer, writer = self._running[handle]
        try:
            answer.tokens += 1
            ended = token in self._ends or writer.take(token)
            if ended or answer.tokens == answer.max_tokens:
                writer.end()
                answer.end("stop" if ended or writer.stopped else "length")
        except Exception as error:
            _log.exception("a text failed")
            answer.end("error", error)
        return answer.finish is not None

    def _drop(self, handles: Sequence[int]) -> None:
        if handles:
            self.session.drop(*handles)
            for handle in handles:
                del self._running[handle]

    def _end_all(self, error: Exception) -> None:
        with self._changed:
            self._waiting.clear()
            for answer in self._open:
                if answer.finish is None:
                    answer.end("error", error)
        self._prompts.clear()
        self._running.clear()
        self.session.drop(*self.session.handles)
