"""Embeddings of texts: the mean of a model's last hidden states."""

from __future__ import annotations

import threading
import time
from collections.abc import Sequence

import torch
from torch import Tensor
from torch.nn import functional as F
from transformers import PreTrainedTokenizerBase

from lagwise.data.batches import PaddingCollator, like_lengths
from lagwise.models.modeling import LagwiseModel, LagwisePreTrainedModel
from lagwise.models.pooling import pool
from lagwise.serving.scheduler import Busy
from lagwise.tables import check_integer

_MAX_TOKENS = 8192  # tokens of a text, as in OpenAI's API
_BATCH = 1 << 14  # maximum tokens, padding included, in one forward pass


class Embedder:
    """Computes embeddings, one request at a time, in the threads that ask. A text's embedding is the same in every
    batch, up to rounding.

    Args:
        model: A language model, an encoder, or another model that reads tokens.
        tokenizer: Its tokenizer.
        queue: Maximum requests that are open.
        timeout: Seconds for a request, after which no further batch of it begins.

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
        inner = model.base_model
        if not isinstance(inner, LagwiseModel):
            raise ValueError(
                f"a {type(model).__name__} has no hidden states to serve as embeddings; see 'lagwise predict'"
            )
        self.model, self.tokenizer = inner, tokenizer
        self.queue, self.timeout = check_integer("queue", queue), timeout
        self.tokens = 0  # tokens read since the start
        self.open = 0
        self._counting, self._computing = threading.Lock(), threading.Lock()

    @property
    def size(self) -> int:
        """The number of values of an embedding."""
        return int(self.model.config.hidden_size)

    @torch.no_grad()
    def embed(self, texts: Sequence[Sequence[int]]) -> Tensor:
        """Embeddings ``(texts, size)`` of token ids, in float32 and of length 1.

        Raises:
            ValueError: For a text that is empty, too long for the model or the server, or has an unknown token.
            Busy: If the server has reached its maximum number of open requests.
            TimeoutError: If the embeddings take too long.
        """
        limit = min(_MAX_TOKENS, self.model.length_limit or _MAX_TOKENS)
        for ids in texts:
            if not 0 < len(ids) <= limit:
                raise ValueError(f"a text to embed must have 1 to {limit:,} tokens, one has {len(ids):,}")
        deadline = time.monotonic() + self.timeout
        with self._counting:
            if self.open >= self.queue:
                raise Busy(f"the server has {self.open} requests for embeddings, its maximum; try again later")
            self.open += 1
        try:
            embeddings = torch.empty(len(texts), self.size)
            order = sorted(range(len(texts)), key=lambda row: len(texts[row]))
            for indices in like_lengths([len(texts[row]) for row in order], _BATCH):
                rows = [order[index] for index in indices]
                with self._computing:
                    if time.monotonic() >= deadline:
                        raise TimeoutError(f"the embeddings were not complete after {self.timeout:g} seconds")
                    embeddings[rows] = self._together([texts[row] for row in rows])
                    self.tokens += sum(len(texts[row]) for row in rows)
            return embeddings
        finally:
            with self._counting:
                self.open -= 1

    def _together(self, texts: Sequence[Sequence[int]]) -> Tensor:
        batch = PaddingCollator()([{"input_ids": text} for text in texts])
        batch = {name: value.to(self.model.device) for name, value in batch.items()}
        hidden = self.model(**batch, use_cache=False).last_hidden_state
        return F.normalize(pool(hidden, "mean", mask=batch.get("attention_mask")).float(), dim=-1).cpu()
