"""A linear map of the features of a first answer, trained beside the layers of a classifier."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.utils.rnn import pad_sequence
from transformers import initialization as init

from lagwise.models.configuration import LagwiseConfig
from lagwise.models.embeddings import filled
from lagwise.models.heads import Head
from lagwise.models.linear.convolutions import ConvolutionState
from lagwise.models.linear.features import made_features
from lagwise.models.linear.ngrams import Ngrams, Sparse
from lagwise.models.linear.scaling import DenseFeatures
from lagwise.models.pooling import hidden_layers
from lagwise.ops.bilinear import traced
from lagwise.tables import check_integer

_SCALE = 20.0  # of features of n-grams: at the learning rate of layers, weights of values so small would hardly move
_DROPPED = {"ngrams": 0.5, "convolutions": 0.5, "patches": 0.2}  # rates in training (docs/log.md)
_LEAST = 0.01  # added to deviations: of some features nearly all training rows have the same
_SAMPLED = 2000  # rows by which features are standardised
_MOST_KNOWN = 1 << 26  # features that are kept of rows that were read


class Wide(nn.Module):
    """A linear map of fixed features of a row: the n-grams of a text, how often the random convolutions of a series
    exceed thresholds, how much the patches of an image are like those of others.

    Formula: ``W f + b``, with the features f of a first answer, of which training drops a share: 20 times those of
    `Ngrams`, or those of `Convolutions` and `Patches`, less their mean and over their deviation in the training rows.
    What the features are of follows from the training rows; W, zero at first, and b are trained.

    Shapes: x ``(batch, length)`` of token ids, ``(batch, length * stride, channels)`` of samples or ``(batch, channels,
    height, width)`` of pixels; mask ``(batch, length)``, true at tokens or steps of samples, or None; types, of pairs
    of texts, 0 at the first and 1 at the second; result ``(batch, labels)``.

    Args:
        config: Its ``wide`` are the features' name and options. Nothing is dropped if ``classifier_dropout`` is 0.

    Source: a "wide" linear model and a deep one that are trained together: Cheng et al. 2016, "Wide & Deep Learning for
    Recommender Systems"; there the wide one has another optimizer.
    """

    mean: Tensor
    std: Tensor

    def __init__(self, config: LagwiseConfig):
        super().__init__()
        inputs = {} if isinstance(config.inputs, str) else config.inputs
        options = config.wide or {}
        self.features = made_features(config.input_name, inputs, config.vocab_size, options)
        self.stride: int = inputs.get("stride", 1)
        self.dense = isinstance(self.features, DenseFeatures)
        if self.dense:
            self.register_buffer("mean", torch.zeros(self.features.size))
            self.register_buffer("std", torch.ones(self.features.size))
        self.reads_types: bool = getattr(self.features, "pairs", False)
        self.linear = nn.Linear(self.features.size, check_integer("num_labels", config.num_labels))
        self.dropout = nn.Dropout(_DROPPED[options["name"]] if config.classifier_dropout else 0.0)
        self._known: dict[bytes, Any] = {}  # by a row's values: training reads the same ones many times
        self._kept = 0

    @torch.no_grad()
    def take(self, features: Ngrams) -> None:
        """Take n-grams of training texts, with which the options were found (`Ngrams.chosen`). Further token ids than
        they have stand for nothing."""
        own = dict(self.features.named_buffers())
        for name, values in features.named_buffers():
            own[name][: len(values)].copy_(values)
        self._forget()

    @torch.no_grad()
    def prepare(self, rows: Sequence[Tensor] | Tensor, seed: int) -> None:
        """Take features from training series ``(length, channels)``, or images ``(n, channels, height, width)``."""
        self.features.prepare(rows, seed)
        chosen = np.random.default_rng(seed).permutation(len(rows))[:_SAMPLED]
        found = torch.cat([self.features(rows[i][None]) for i in chosen.tolist()])
        self.mean.copy_(found.mean(0))
        self.std.copy_(found.std(0, correction=0))
        self._forget()

    def _load_from_state_dict(self, *args: Any, **kwargs: Any) -> None:
        super()._load_from_state_dict(*args, **kwargs)
        self._forget()

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_known": {}, "_kept": 0}  # not what was read

    def forward(self, x: Tensor, mask: Tensor | None = None, types: Tensor | None = None) -> Tensor:
        if self.stride > 1:  # a collator fills the last step with zeros
            real: Tensor | None = filled(x, mask, self.stride)
        else:
            real = None if mask is None else mask.bool()
        return self._answer(self._found(x, real, types))

    def start(self, batch: int) -> ConvolutionState:
        """The state before a stream's first sample."""
        return self.features.start(batch)

    @torch.no_grad()
    def step(self, samples: Tensor, state: ConvolutionState) -> tuple[Tensor, ConvolutionState]:
        """The result after each of the next steps ``(batch, n * stride, channels)``: ``(batch, n, labels)``; and the
        state after them."""
        found, state = self.features.step(samples, state)
        return self._answer(self._standardised(found[:, self.stride - 1 :: self.stride])), state

    def _answer(self, found: Any) -> Tensor:
        dtype = self.linear.weight.dtype
        if self.dense:
            return self.features.logits(self.dropout(found).to(dtype), self.linear)
        return self.features.logits(Sparse(found.numbers, self.dropout(found.values).to(dtype)), self.linear)

    @torch.no_grad()
    def _found(self, x: Tensor, mask: Tensor | None, types: Tensor | None) -> Any:
        """The scaled features of rows: ``(batch, size)``, or `Sparse`."""
        if not self.training or traced() or x.device.type != "cpu":  # a GPU would wait for the keys
            return self._read(x, mask, types)
        whole = x if types is None else torch.stack([x, types], 2)
        rows = [row if mask is None else row[mask[i]] for i, row in enumerate(whole)]
        keys = [_digest(row) for row in rows]
        if self._kept > _MOST_KNOWN:
            self._forget()
        if new := [i for i, key in enumerate(keys) if key not in self._known]:
            found = self._read(*(None if each is None else each[new] for each in (x, mask, types)))
            parts = list(found) if self.dense else [_without_zeros(*part) for part in zip(*found, strict=True)]
            for i, part in zip(new, parts, strict=True):
                self._known[keys[i]] = part
                self._kept += part.numel() if self.dense else part.values.numel()
        parts = [self._known[key] for key in keys]
        if self.dense:
            return torch.stack(parts)
        return Sparse(*(pad_sequence(list(part), batch_first=True) for part in zip(*parts, strict=True)))

    def _read(self, x: Any, mask: Tensor | None, types: Tensor | None) -> Any:
        given = {name: value for name, value in (("mask", mask), ("types", types)) if value is not None}
        found = self.features(x, **given)
        return self._standardised(found) if self.dense else found._replace(values=_SCALE * found.values)

    def _standardised(self, found: Tensor) -> Tensor:
        return (found - self.mean) / (self.std + _LEAST)

    def _forget(self) -> None:
        self._known.clear()
        self._kept = 0


def _digest(row: Tensor) -> bytes:
    values = row.contiguous().view(torch.uint8).numpy()  # bfloat16 has no numpy
    return hashlib.blake2b(values.tobytes(), digest_size=16).digest()


def _without_zeros(numbers: Tensor, values: Tensor) -> Sparse:
    used = values != 0
    return Sparse(numbers[used], values[used])


class WideHead(Head):
    """A classifier of pooled hidden states, with a map of fixed features beside it if ``config.wide`` is given."""

    def __init__(self, config: LagwiseConfig):
        super().__init__(config)
        self.num_labels = check_integer("num_labels", config.num_labels)
        self.dropout = nn.Dropout(config.classifier_dropout)
        self.hidden, features = hidden_layers(config)
        self.classifier = nn.Linear(features, self.num_labels)
        self.wide = None if config.wide is None else Wide(config)
        self.post_init()

    def _init_weights(self, module: nn.Module) -> None:
        super()._init_weights(module)
        if self.wide is not None and module is self.wide.linear:
            init.zeros_(self.wide.linear.weight)

    def beside(
        self, x: Tensor | None, pooled: Tensor, mask: Tensor | None = None, types: Tensor | None = None
    ) -> Tensor | None:
        """The map's logits of inputs; None without a map. x: None for packed rows, and without inputs. ValueError
        unless they have a row for each pooled one."""
        if self.wide is None:
            return None
        if x is None or x.shape[0] != pooled.shape[0]:
            raise ValueError("a wide part reads inputs with one row for each answer, not packed or embedded ones")
        return self.wide(x, mask, types if self.wide.reads_types else None)

    def answer(self, pooled: Tensor, wide: Tensor | None) -> Tensor:
        """Logits of pooled hidden states, and of the map beside them (`beside`, or for a stream `Wide.step`).

        Training leaves out the former in a share p = ``classifier_dropout`` of the rows, or the layers would learn rows
        by heart before the map has learned, and multiplies them by ``1 / (1 - p)`` in the rest. Otherwise they count
        ``1 - p`` times: the layers know rows that they have not read less well.
        """
        logits = self.classifier(self.hidden(self.dropout(pooled).to(self.classifier.weight.dtype)))
        if wide is None:
            return logits
        dropped = self.config.classifier_dropout
        return logits * (F.dropout(torch.ones_like(logits[:, :1]), dropped) if self.training else 1 - dropped) + wide
