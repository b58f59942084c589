"""Embed texts for several requests at a time."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

from torch import Tensor
from transformers import PreTrainedTokenizerBase

from lagwise.models.pretrained import LagwisePreTrainedModel
from lagwise.runs.vectors import embed, hidden_model
from lagwise.serving.scheduler import Busy
from lagwise.tables import check_integer


class Embedder:
    """Computes embeddings (`lagwise.embed`) in the threads of the callers, one forward pass at a time.

    Args:
        model: A language model, an encoder, or another model that reads tokens.
        tokenizer: Its tokenizer.
        queue: Maximum requests that are open.
        timeout: Seconds for a request, after which no further forward pass of it begins.

    Raises:
        ValueError: For a model without hidden states, such as a first answer.
    """

    def __init__(
        self,
        model: LagwisePreTrainedModel,
        tokenizer: PreTrainedTokenizerBase,
        *,
        queue: int = 128,
        timeout: float = 300.0,
    ):
        self.model, self.tokenizer = hidden_model(model), tokenizer
        self.queue, self.timeout = check_integer("queue", queue), timeout
        self.tokens = 0  # tokens read since the start
        self.open = 0
        self._counting, self._computing = threading.Lock(), threading.Lock()

    @property
    def size(self) -> int:
        """The number of values of an embedding."""
        return int(self.model.config.hidden_size)

    def embed(self, texts: Sequence[Sequence[int]]) -> Tensor:
        """Compute embeddings ``(texts, size)`` of token ids, in float32 and of length 1.

        Raises:
            ValueError: For a text that is empty or has an unknown token.
            Busy: If the server has reached its maximum number of open requests.
            TimeoutError: If the embeddings take too long.
        """
        deadline = time.monotonic() + self.timeout
        with self._counting:
            if self.open >= self.queue:
                raise Busy(f"the server has {self.open} requests for embeddings, its maximum; try again later")
            self.open += 1

        @contextmanager
        def turn() -> Iterator[None]:
            with self._computing:
                if time.monotonic() >= deadline:
                    raise TimeoutError(f"the embeddings were not complete after {self.timeout:g} seconds")
                yield

        try:
            embeddings = embed(self.model, self.tokenizer, texts, turn=turn)
            with self._counting:
                self.tokens += sum(map(len, texts))
            return embeddings
        finally:
            with self._counting:
                self.open -= 1
