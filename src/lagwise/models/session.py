"""Sequences that are continued together while others join and leave, for servers."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from numbers import Integral

import torch
from torch import Tensor

from lagwise.models.cache import StreamingCache
from lagwise.models.causal_lm import LagwiseForCausalLM
from lagwise.models.embeddings import TokenInput
from lagwise.models.layer import require_loaded
from lagwise.ops.constants import moved
from lagwise.tables import check_integer


class Prompt:
    """A prompt being processed for a session; ``left`` of its tokens are not yet processed."""

    def __init__(self, ids: Tensor, cache: StreamingCache):
        self.ids, self.cache, self.left = ids, cache, len(ids)
        self.logits: Tensor | None = None


class StreamingSession:
    """A running batch of sequences of any lengths, which join and leave it at any time.

    Each gets the logits that it would get alone, up to rounding. Between two steps the session holds one mixer state
    per sequence; other sequences of other lengths do not make it more expensive. ::

        session = StreamingSession(model.eval())
        session.add(prompt)
        while len(session):
            chosen = dict(zip(session.handles, session.logits.argmax(1).tolist()))
            session.drop(*(handle for handle, token in chosen.items() if token == end_of_text))
            session.step({handle: chosen[handle] for handle in session.handles})

    All methods run in inference mode, without gradients, and a call that raises leaves the session unchanged.

    Args:
        model: A `LagwiseForCausalLM` in evaluation mode, whose weights must not change while sequences are live.
        prefill_chunk: Tokens of a prompt to process at once, which bounds the memory of a long prompt.

    Raises:
        ValueError: For another kind of model, and from calls that compute while the model is in training mode.

    >>> from lagwise.models import LagwiseConfig
    >>> model = LagwiseForCausalLM(LagwiseConfig(vocab_size=10, hidden_size=8, num_hidden_layers=1)).eval()
    >>> session = StreamingSession(model)
    >>> first, second = session.add([1, 2, 3]), session.add([4])
    >>> logits = session.step({first: 5, second: 6})
    >>> len(session), logits.shape
    (2, torch.Size([2, 10]))
    """

    def __init__(self, model: LagwiseForCausalLM, *, prefill_chunk: int = 2048):
        if not isinstance(model, LagwiseForCausalLM):
            raise ValueError(f"model must be a LagwiseForCausalLM, which is causal, got {type(model).__name__}")
        require_loaded(model, "a streaming session")
        self.model = model
        self.prefill_chunk = check_integer("prefill_chunk", prefill_chunk)
        self._require_evaluation()
        self._seen: dict[int, int] = {}  # number of tokens of each sequence, in the order of rows
        self._next = 0
        #: logits of each sequence's next token, ``(len(session), vocab_size)``; do not modify them
        self.logits = torch.zeros(0, model.config.vocab_size, dtype=model.dtype, device=model.device)
        # The batch, then sequences that will be joined to it all at once.
        self._caches: list[StreamingCache] = []

    @property
    def handles(self) -> tuple[int, ...]:
        """The live sequences, in the order of the rows of `logits`. Handles are never reused."""
        return tuple(self._seen)

    def __len__(self) -> int:
        """The number of live sequences."""
        return len(self._seen)

    def __contains__(self, handle: object) -> bool:
        """Whether a sequence is live."""
        return handle in self._seen

    def add(self, input_ids: Tensor | Sequence[int]) -> int:
        """Process a prompt ``(length,)`` and add it to the batch as the last row. Returns its handle.

        ValueError if it is empty, longer than the model's limit, or has ids outside ``[0, vocab_size)``.
        """
        prompt = self.begin(input_ids)
        while prompt.left:
            self.advance(prompt)
        return self.join(prompt)

    def begin(self, input_ids: Tensor | Sequence[int]) -> Prompt:
        """`add` in parts, for a server that steps other sequences in between: call `advance` on the result until it has
        no tokens left, then `join`. ValueError as for `add`."""
        self._require_evaluation()
        ids, limit = torch.as_tensor(input_ids, device="cpu"), self.model.length_limit
        TokenInput.check(ids[None], self.model.config)
        if limit is not None and len(ids) > limit:
            raise ValueError(f"this model takes at most {limit} tokens, the prompt has {len(ids)}")
        return Prompt(ids.long().to(self.model.device), self.model.model.new_cache())

    @torch.inference_mode()
    def advance(self, prompt: Prompt) -> None:
        """Process the next ``prefill_chunk`` tokens of a prompt. If this raises, the prompt can no longer be used."""
        self._require_evaluation()
        chunk = prompt.ids[len(prompt.ids) - prompt.left :][: self.prefill_chunk]
        if len(chunk):
            prompt.logits = self.model.next_logits(chunk[None], prompt.cache)
            prompt.left -= len(chunk)

    @torch.inference_mode()
    def join(self, prompt: Prompt) -> int:
        """Add a processed prompt to the batch as the last row. Returns its handle.

        ValueError unless all of it has been processed.
        """
        if prompt.left or prompt.logits is None:
            raise ValueError(f"the prompt has {prompt.left} tokens that have not been processed; advance it")
        self.logits = torch.cat([self.logits, prompt.logits])
        self._caches.append(prompt.cache)
        handle, self._next = self._next, self._next + 1
        self._seen[handle] = len(prompt.ids)
        return handle

    @torch.inference_mode()
    def step(self, tokens: Mapping[int, int]) -> Tensor:
        """Continue every live sequence by one token, given by handle. Returns the new `logits`.

        A ValueError names the handle if one is unknown or missing, its token is outside ``[0, vocab_size)``, or its
        sequence has reached the model's limit.
        """
        self._require_evaluation()
        self._require_live(tokens)
        limit, vocabulary = self.model.length_limit, self.model.config.vocab_size
        if missing := self._seen.keys() - tokens.keys():
            raise ValueError(
                f"tokens must have one for every live sequence, as all step together; {_names(missing)} has none"
            )
        if full := [handle for handle, seen in self._seen.items() if seen == limit]:
            raise ValueError(f"{_names(full)} has as many tokens as this model takes, {limit}; drop it")
        for handle, token in tokens.items():
            if not isinstance(token, Integral) or not 0 <= token < vocabulary:
                raise ValueError(f"the token of sequence {handle} must be in [0, {vocabulary}), got {token!r}")
        if self._seen:
            cache = self._joined()
            if cache.stream is None:  # compiled code does not fail half-way
                cache = cache.copy()  # dropped if this fails
            ids = torch.tensor([int(tokens[handle]) for handle in self._seen], device="cpu")
            self.logits = self.model.next_logits(moved(ids, self.model.device)[:, None], cache)
            self._caches = [cache]
            self._seen = {handle: seen + 1 for handle, seen in self._seen.items()}
        return self.logits

    @torch.inference_mode()
    def drop(self, *handles: int) -> None:
        """Remove sequences and free their memory. A ValueError names the handle if one is unknown."""
        self._require_live(handles)
        remaining = [row for row, handle in enumerate(self._seen) if handle not in handles]
        if len(remaining) == len(self._seen):
            return
        caches = [self._joined().copy()] if remaining else []
        rows = torch.tensor(remaining, dtype=torch.long, device=self.logits.device)
        for cache in caches:
            cache.batch_select_indices(rows)
        self.logits, self._caches = self.logits[rows], caches
        self._seen = {handle: seen for handle, seen in self._seen.items() if handle not in handles}

    def _joined(self) -> StreamingCache:
        if len(self._caches) > 1:
            self._caches = [StreamingCache.join(self._caches)]
        return self._caches[0]

    def _require_live(self, handles: Iterable[int]) -> None:
        if unknown := [handle for handle in handles if handle not in self._seen]:
            raise ValueError(f"{_names(unknown)} is not in this session: dropped already, or never added")

    def _require_evaluation(self) -> None:
        if self.model.training:
            raise ValueError("the model is in training mode; call model.eval() first")


def _names(handles: Iterable[int]) -> str:
    """The first of these handles, for messages."""
    first, *others = sorted(handles)
    return f"sequence {first!r}" + (f" (and {len(others)} more)" if others else "")
