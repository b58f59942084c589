"""States of streams between the chunks of their texts, also in files and while the weights change."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from lagwise.mixers import Mixer
from lagwise.mixers.state import detached, eager_state, fixed_start, fixed_state, named_tensors, rebuilt, renewed
from lagwise.models.cache import StreamingCache

_TOKEN_ATTRIBUTES = ("recent", "real")  # of a cache, about the tokens so far; None in models that need none


class CarriedStates:
    """The caches of a model after the latest chunk of each of several streams, by number, detached from the
    graph.

    The model, of language or of signals, is in evaluation mode; ``who`` needs the states, for messages. Where the
    weights change between chunks (``changes``), states get what is derived of the new weights. ValueError for a model
    whose state grows, or that takes rows up to a length only.
    """

    def __init__(self, model: Any, who: str, *, changes: bool):
        self.model, self.changes = model, changes
        self.caches: dict[int, StreamingCache] = {}
        for part in model.modules():
            if isinstance(part, Mixer) and (part.grows or not part.streams):
                raise ValueError(
                    f"{who} needs states of constant size, and {type(part).__name__} has none: its state grows, or "
                    "there is none; if its kernels have no end, convert it to a state space first"
                )
        if model.length_limit is not None:
            raise ValueError(
                f"{who} needs a model of any length, and this one takes at most {model.length_limit} tokens or steps"
            )

    def before(self, stream: int) -> StreamingCache:
        """Make the cache for the next chunk of a stream, empty if there was none."""
        if stream not in self.caches:
            return self.model.model.new_cache()
        cache = self.caches[stream].copy()
        if self.changes:
            parts = self.model.model.streamed
            cache.states = [renewed(state, part.init_state(1)) for state, part in zip(cache.states, parts, strict=True)]
        return cache

    def after(self, stream: int, cache: Any) -> None:
        """Keep a stream's cache, which `before` made, with the states that the model has left in it."""
        cache.states = [detached(state) for state in cache.states]
        self.caches[stream] = cache

    @torch.no_grad()
    def tensors(self) -> dict[str, Tensor]:
        """The states with fixed shapes, by name. Continues from this form, whose rounding may differ: what is restored
        then has the same states."""
        tensors = {}
        for stream, cache in self.caches.items():
            fixed = tuple(fixed_state(*pair)[0] for pair in zip(cache.states, self._start(), strict=True))
            tokens = {name: value for name in _TOKEN_ATTRIBUTES if (value := getattr(cache, name)) is not None}
            self.caches[stream] = self._cache(fixed, tokens)
            by_name = {**dict(named_tensors(fixed)), **tokens}
            tensors |= {f"{stream}:{name}": tensor.contiguous() for name, tensor in by_name.items()}
        return tensors

    @torch.no_grad()
    def restore(self, saved: Mapping[str, Tensor]) -> None:
        """Continue from `tensors`. ValueError if they are not those of this model."""
        streams: dict[int, dict[str, Tensor]] = {}
        for name, tensor in saved.items():
            stream, _, rest = name.partition(":")
            streams.setdefault(int(stream), {})[rest] = tensor
        self.caches, like = {}, self._start()
        expected = dict(named_tensors(like))
        for number, tensors in streams.items():
            own = [tensors[name] for name in expected if name in tensors]
            if [t.shape for t in own] != [t.shape for t in expected.values()]:
                raise ValueError("these states are of another model")
            self.caches[number] = self._cache(rebuilt(like, iter(own)), tensors)

    def _start(self) -> tuple[Any, ...]:
        return tuple(fixed_start(part.init_state(1)) for part in self.model.model.streamed)

    def _cache(self, fixed: tuple[Any, ...], tokens: Mapping[str, Tensor]) -> StreamingCache:
        """A cache of states with fixed shapes, and of tensors about the tokens."""
        cache, parts = self.model.model.new_cache(), self.model.model.streamed
        cache.states = [
            eager_state(each, part.init_state(1), iter(())) for each, part in zip(fixed, parts, strict=True)
        ]
        vars(cache).update({name: tokens.get(name) for name in _TOKEN_ATTRIBUTES})
        return cache
