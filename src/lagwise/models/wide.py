"""A linear map of the n-grams of a text, trained beside the layers of its classifier."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.utils.rnn import pad_sequence

from lagwise.models.linear.ngrams import Ngrams, Sparse
from lagwise.ops.bilinear import traced

_SCALE = 20.0  # of the features: at the learning rate of layers, weights of values so small would hardly move
_MOST_KNOWN = 1 << 26  # n-grams that are kept of texts that were read


class Wide(nn.Module):
    """A linear map of which n-grams of words and characters occur in a text.

    Formula: ``W (20 f) + b`` with the features f of `Ngrams`, of which training drops a share. Which n-grams have a
    feature, and how rare they are, follows from training texts; W and b are trained.

    Shapes: input_ids ``(batch, length)``; mask ``(batch, length)``, true at tokens, or None; types, of pairs, 0 at the
    first text and 1 at the second; result ``(batch, labels)``.

    Args:
        vocab_size: Number of token ids.
        labels: Size of the result.
        options: Those of `Ngrams`.
        dropout: Rate of the features in training.

    Source: a "wide" linear model and a deep one that are trained together: Cheng et al. 2016, "Wide & Deep Learning for
    Recommender Systems"; there the wide one has another optimizer. The features are those of the first answer.
    """

    def __init__(self, vocab_size: int, labels: int, options: Mapping[str, Any], dropout: float):
        super().__init__()
        self.features = Ngrams(vocab_size, **options)
        self.linear = nn.Linear(self.features.size, labels)
        self.dropout = nn.Dropout(dropout)
        self._known: dict[bytes, Sparse] = {}  # by a text's tokens: training reads the same ones many times
        self._kept = 0

    @torch.no_grad()
    def take(self, features: Ngrams) -> None:
        """Take n-grams of training texts, with which the options were found (`Ngrams.chosen`). Further token ids than
        they have stand for nothing."""
        own = dict(self.features.named_buffers())
        for name, values in features.named_buffers():
            own[name][: len(values)].copy_(values)
        self._forget()

    def _load_from_state_dict(self, *args: Any, **kwargs: Any) -> None:
        super()._load_from_state_dict(*args, **kwargs)
        self._forget()

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_known": {}, "_kept": 0}  # not what was read

    def forward(self, input_ids: Tensor, mask: Tensor | None = None, types: Tensor | None = None) -> Tensor:
        real = None if mask is None else mask.bool()
        found = self._found(input_ids, real, types)
        values = self.dropout(_SCALE * found.values)
        return self.features.logits(Sparse(found.numbers, values.to(self.linear.weight.dtype)), self.linear)

    @torch.no_grad()
    def _found(self, ids: Tensor, mask: Tensor | None, types: Tensor | None) -> Sparse:
        if not self.training or traced() or ids.device.type != "cpu":  # a GPU would wait for the keys
            return self.features(ids, mask, types)
        whole = ids if types is None or not self.features.pairs else torch.stack([ids, types], 2)
        keys = [(row if mask is None else row[mask[i]]).numpy().tobytes() for i, row in enumerate(whole)]
        if self._kept > _MOST_KNOWN:
            self._forget()
        if new := [i for i, key in enumerate(keys) if key not in self._known]:
            found = self.features(ids[new], *(None if each is None else each[new] for each in (mask, types)))
            for i, numbers, values in zip(new, *found, strict=True):
                used = values != 0
                self._known[keys[i]] = Sparse(numbers[used], values[used])
                self._kept += int(used.sum())
        rows = [self._known[key] for key in keys]
        return Sparse(*(pad_sequence(list(part), batch_first=True) for part in zip(*rows, strict=True)))

    def _forget(self) -> None:
        self._known.clear()
        self._kept = 0
