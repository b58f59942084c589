"""One vector for a text of any length, or for each window of it: the mean of a model's hidden states, or the last."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional as F
from transformers import PreTrainedModel, PreTrainedTokenizerBase

from lagwise.data.batches import PaddingCollator, batches_by_length
from lagwise.models.generation import encoded_chunks
from lagwise.models.heads import pool
from lagwise.models.modeling import LagwiseModel
from lagwise.tables import LARGEST_OPTION, check_integer, known

_TOGETHER = 1 << 14  # maximum tokens, padding included, in one forward pass, except for one window
_WAITING = 1 << 16  # tokens that are sorted by length before they are read, so those that an interruption may lose
_SPAN = 8192  # tokens of a window of a model that cannot continue a text
_Turn = Callable[[], AbstractContextManager[Any]]


def embed(
    model: PreTrainedModel,
    tokenizer: PreTrainedTokenizerBase,
    texts: Sequence[str | Sequence[int]],
    *,
    pooling: str = "mean",
    turn: _Turn = nullcontext,
) -> Tensor:
    """Compute the vectors ``(texts, hidden_size)`` of texts of any length, in float32 and of length 1: products of them
    are cosines.

    A vector is the mean of the last hidden states of a text's tokens, or the last of them, and the same, up to
    rounding, whatever texts are beside it. A language model reads a long text in chunks, each continued from the states
    after the one before, so the result is that of the whole, and memory does not grow, unless the states do (attention
    to all tokens). A text longer than a model takes, or for an encoder than 8,192 tokens, is read in windows that
    overlap by half: each token counts once, in the window that has most around it, or before it for a language model.

    Args:
        model: A language model, an encoder, or another model that reads tokens.
        tokenizer: Its tokenizer.
        texts: Texts, or their token ids.
        pooling: ``mean`` or ``last``.
        turn: Makes a context for each forward pass, such as a lock.

    Raises:
        ValueError: For a text without tokens or with unknown ones, and for a model without hidden states of tokens.
    """
    encoded = (encoded_chunks(tokenizer, each) if isinstance(each, str) else [_checked(each)] for each in texts)
    by_text = {each.document: each.values for each in vectors(model, enumerate(encoded), pooling=pooling, turn=turn)}
    if empty := [i for i in range(len(texts)) if i not in by_text]:
        raise ValueError(f"text {empty[0]} has no tokens, so it has no vector")
    return torch.stack([*by_text.values()]) if by_text else torch.empty(0, model.config.hidden_size)


def _checked(ids: Sequence[int]) -> np.ndarray:
    array = np.asarray(ids)
    if array.size and not np.can_cast(array.dtype, np.int64):
        raise ValueError(f"token ids must be integers of 64 bits, got {ids!r:.80}")
    return array


@dataclass
class Vector:
    """The vector of a document, or of the window of it that begins at the token ``start`` (from 0): its values
    ``(hidden_size,)`` in float32 and of length 1, once it is complete; before, a sum in float64."""

    document: Any
    start: int
    tokens: int
    values: Tensor
    complete: bool = False


def vectors(
    model: PreTrainedModel,
    documents: Iterable[tuple[Any, Iterable[np.ndarray]]],
    *,
    pooling: str = "mean",
    window: int | None = None,
    stride: int | None = None,
    begin: int = 0,
    turn: _Turn = nullcontext,
) -> Iterator[Vector]:
    """Yield the vectors of documents (`embed`), or of their windows, in order; documents without tokens have none.

    Args:
        documents: What to call each document, and its token ids in parts, of which one is in memory at a time.
        window: Tokens of a window, each read by itself; the last window of a document is shorter. By default a document
            has one vector.
        stride: Tokens from a window to the next, by default those of a window.
        begin: Token at which the first window of the first document begins.

    Raises:
        ValueError: As `embed`, and for windows that the model cannot read.
    """
    reader = _Reader(hidden_model(model, window, stride), known(pooling, ("mean", "last"), "pooling"), turn)
    size = window or reader.span
    step = stride or window or max(1, (size or 0) // 2)
    # Of windows that overlap, the first tokens count in the window before.
    lead = 0 if size is None or window else (size - step) // (1 if model.config.causal else 2)
    for document, parts in documents:
        row = None
        for start, ids, last in [(0, parts, True)] if size is None else windows(parts, size, step):
            if start < begin if window else pooling == "last" and not last:
                continue
            if row is None or window:
                row = reader.row(document, start if window else 0)
            chunks: Any = ids if size is None else [ids]
            tokens = reader.read(row, chunks, lead if start else 0, None if last or window else lead + step)
            row.tokens, row.complete = tokens + (0 if window else start), last or window is not None
            yield from reader.ready()
        begin = 0
    yield from reader.ready(every=True)


def hidden_model(model: Any, window: int | None = None, stride: int | None = None) -> LagwiseModel:
    """The part of a model that has hidden states of tokens. ValueError if there is none, or it cannot read windows of
    this size and distance."""
    inner = model.base_model
    if not isinstance(inner, LagwiseModel):
        raise ValueError(f"a {type(model).__name__} has no hidden states to make vectors of; see 'lagwise predict'")
    if inner.config.input_name != "tokens":
        raise ValueError(f"the model reads {inner.config.input_name}, not text; see 'lagwise predict'")
    if window is not None and check_integer("window", window) > (inner.length_limit or window):
        raise ValueError(f"`window` must be at most {inner.length_limit:,}, the tokens that this model takes")
    if stride is not None and (window is None or check_integer("stride", stride) > window):
        raise ValueError(f"`stride` must be at most `window`, got {stride} and {window or 'none'}")
    return inner


def windows(parts: Iterable[np.ndarray], size: int, step: int) -> Iterator[tuple[int, np.ndarray, bool]]:
    """The start and the items of each window of arrays in a row, and whether it is the last, which may be shorter."""
    rest, start = np.empty(0, dtype=np.int64), 0
    for part in parts:
        rest = np.concatenate([rest, part])
        while len(rest) > size:  # another window follows
            yield start, rest[:size], False
            rest, start = rest[step:], start + step
    if len(rest):
        yield start, rest, True


class _Reader:
    """Reads chunks of documents, short ones in batches of similar lengths."""

    def __init__(self, model: LagwiseModel, pooling: str, turn: _Turn):
        self.model, self.pooling, self.turn = model, pooling, turn
        self.streams = model.config.causal and model.has_state  # whether the model can continue a text
        # The tokens that it reads without windows; None for any number.
        self.span = model.length_limit if self.streams else min(_SPAN, model.length_limit or _SPAN)
        self.rows: deque[Vector] = deque()
        self.waiting: list[tuple[Vector, np.ndarray, int, int]] = []
        self.since = 0  # tokens since the last batches

    def row(self, document: Any, start: int) -> Vector:
        total = torch.zeros(self.model.config.hidden_size, dtype=torch.float64)
        self.rows.append(Vector(document, start, 0, total))
        return self.rows[-1]

    def read(self, row: Vector, parts: Iterable[np.ndarray], first: int, stop: int | None) -> int:
        """Read a chunk of text, of which the tokens from ``first`` to ``stop`` count. Returns its tokens."""
        size = _TOGETHER if self.streams else LARGEST_OPTION
        cache, tokens = None, 0
        for start, ids, last in windows(parts, size, size):
            tokens += len(ids)
            self.since += len(ids)
            used = slice(max(0, first - start), len(ids) if stop is None else min(len(ids), stop - start))
            if last and cache is None:
                self.waiting.append((row, ids, used.start, used.stop))
                continue
            cache = cache or self.model.new_cache()
            hidden = self._hidden(input_ids=torch.as_tensor(ids)[None], cache=cache, use_cache=True)
            if used.start < used.stop:
                self._add(row, pool(hidden[:, used], self.pooling)[0].cpu(), used.stop - used.start)
        return tokens

    def ready(self, *, every: bool = False) -> Iterator[Vector]:
        """The vectors that are complete, after the batches that wait, once they are enough."""
        if not every and self.since < _WAITING:
            return
        for indices in batches_by_length([len(ids) for _, ids, *_ in self.waiting], _TOGETHER):
            self._together([self.waiting[i] for i in indices])
        self.waiting, self.since = [], 0
        while self.rows and self.rows[0].complete:
            row = self.rows.popleft()
            row.values = F.normalize(row.values, dim=0).float()
            if row.tokens:
                yield row

    def _together(self, batch: Sequence[tuple[Vector, np.ndarray, int, int]]) -> None:
        inputs = PaddingCollator()([{"input_ids": ids} for _, ids, *_ in batch])
        used = torch.zeros(inputs["input_ids"].shape, dtype=torch.bool)
        for own, (_, _, first, stop) in zip(used, batch, strict=True):
            own[first:stop] = True
        hidden = self._hidden(**inputs, use_cache=False)
        states = pool(hidden, self.pooling, mask=used.to(hidden.device)).cpu()
        for state, (row, _, first, stop) in zip(states, batch, strict=True):
            self._add(row, state, stop - first)

    def _add(self, row: Vector, state: Tensor, tokens: int) -> None:
        row.values = state.double() if self.pooling == "last" else row.values + state.double() * tokens

    @torch.no_grad()
    def _hidden(self, **inputs: Any) -> Tensor:
        with self.turn():
            placed = {k: v.to(self.model.device) if isinstance(v, Tensor) else v for k, v in inputs.items()}
            hidden = self.model(**placed).last_hidden_state
        return hidden.to(torch.promote_types(hidden.dtype, torch.float32))  # a mean in half precision would be rounded
