"""The streaming cache for `generate`, with one mixer state per layer.

transformers calls it ``cache`` since version 5.24 and ``past_key_values`` before. Models take it by both names and
return outputs that have both, whichever transformers is installed.
"""

from __future__ import annotations

import copy
import dataclasses
import os
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor
from transformers.cache_utils import Cache
from transformers.modeling_outputs import BaseModelOutputWithPast

from lagwise.mixers import Mixer
from lagwise.mixers.state import (
    detached,
    eager_state,
    fixed_start,
    fixed_state,
    join_states,
    named_tensors,
    rebuilt,
    renewed,
    select_rows,
)

APART = "LAGWISE_INVARIANT"
_FORMER = ("real", "recent")  # names in saved states of what is now the last of them
NAMES = ("cache", "past_key_values")
#: The name in the installed transformers.
CACHE = next(field.name for field in dataclasses.fields(BaseModelOutputWithPast) if field.name in NAMES)
_OTHER = next(name for name in NAMES if name != CACHE)


class EitherName:
    """Mixin for outputs with a cache, which adds a property of the cache's other name."""


setattr(EitherName, _OTHER, property(lambda output: getattr(output, CACHE)))


def either(cache: Any, past_key_values: Any) -> Any:
    """Return the argument that is given. ValueError if both are, and differ."""
    if cache is None:
        return past_key_values
    if past_key_values is not None and past_key_values is not cache:
        raise ValueError("cache and past_key_values are two names of one argument; give one of them")
    return cache


class StateLayer:
    """The mixer state of one layer."""

    is_compileable = is_sliding = is_croppable = False

    def __init__(self) -> None:
        self._state: Any = None
        self.stop: Callable[[], None] | None = None  # see `StreamingCache.stream`

    @property
    def state(self) -> Any:
        """The mixer's state; None before the first token."""
        if self.stop is not None:
            self.stop()
        return self._state

    @state.setter
    def state(self, state: Any) -> None:
        self._state = state


class StreamingCache(Cache):
    """States of all layers, and counts of tokens and padding. `generate` may reorder, repeat and select its rows.

    Attributes:
        rows: Batch size, None before the first token.
        model: Number of the model that filled the cache, None if unknown.
        seen: Positions processed, including padding.
        behind: How many positions fewer than ``seen`` each row of a joined batch has, ``(batch,)``; None if none.
        stream: Compiled code that holds the states, if any.
        parts: Caches of single rows, which hold the states where rows are computed apart (`rows_apart`).
        past: Copies of the cache from before each forward since the last `crop`, if they are recorded.

    >>> from lagwise import LagwiseConfig, LagwiseForCausalLM
    >>> model = LagwiseForCausalLM(LagwiseConfig(vocab_size=10, hidden_size=8, num_hidden_layers=1)).eval()
    >>> ids, cache = torch.tensor([[1, 2, 3, 4]]), StreamingCache(1)
    >>> with torch.no_grad():
    ...     _ = model(ids[:, :2], cache=cache)  # the rest continues from its states
    ...     torch.allclose(model(ids[:, 2:], cache=cache).logits, model(ids).logits[:, 2:], atol=1e-5)
    True
    """

    layers: list[Any]

    def __init__(self, layers: int):
        states: list[Any] = [StateLayer() for _ in range(layers)]
        super().__init__(layers=states)
        self.seen = 0
        self.rows: int | None = None
        self.model: int | None = None
        self.behind: Tensor | None = None
        self.stream: Any = None
        self.parts: list[StreamingCache] | None = None
        self.past: list[StreamingCache] | None = None

    @property
    def states(self) -> list[Any]:
        """The state of each layer."""
        return [layer.state for layer in self.layers]

    @states.setter
    def states(self, states: Sequence[Any]) -> None:
        for layer, state in zip(self.layers, states, strict=True):
            layer.state = state

    def require_continues(self, rows: int, model: int | None) -> None:
        """Raise ValueError for another batch size or model than those of the cache."""
        if self.rows not in (None, rows):
            raise ValueError(f"the cache holds a batch of {self.rows}, the input is a batch of {rows}")
        if self.model not in (None, model):
            raise ValueError("the cache was filled by another model; begin a new one")

    def carry_on(self, stream: Any) -> None:
        """Let compiled code hold the states. Reading a state calls ``stream.stop()``, which writes them back and
        resets the stream to None."""
        self.stream = stream
        for layer in self.layers:
            layer.stop = None if stream is None else stream.stop

    def stop(self) -> None:
        """Write the states back from compiled code."""
        if self.stream is not None:
            self.stream.stop()

    def __getstate__(self) -> dict[str, Any]:
        self.stop()  # compiled code changes its tensors in place, so copies need the states
        return self.__dict__

    @staticmethod
    def join(caches: Sequence[StreamingCache]) -> StreamingCache:
        """Join the rows of several caches into a new one, in order. Rows continue as they would alone.

        The old caches stay valid. ValueError if there are none, one is empty, or their models differ.
        """
        if not caches or any(cache.rows is None for cache in caches):
            raise ValueError("join needs at least one cache, and at least one token in each")
        first, seen = caches[0], max(cache.seen for cache in caches)
        if any(cache.model != first.model or len(cache.layers) != len(first.layers) for cache in caches):
            raise ValueError("caches to join must belong to one model")
        joined = StreamingCache(len(first.layers))
        if rows_apart():
            joined.parts = [
                part for cache in caches for part in cache.copy().of_single_rows(cache.rows or 1, cache.model)
            ]
        else:
            joined.states = join_states([tuple(cache.states) for cache in caches])
        joined.model, joined.seen, joined.rows = first.model, seen, sum(cache.rows or 0 for cache in caches)
        behind = [torch.full((each.rows or 0,), 0) if each.behind is None else each.behind for each in caches]
        joined.behind = torch.cat([own + (seen - each.seen) for own, each in zip(behind, caches, strict=True)])
        return joined

    def copy(self) -> StreamingCache:
        """A copy with the same states. Continuing either cache does not change the other."""
        other = copy.copy(self)
        other.layers = [copy.copy(layer) for layer in self.layers]
        other.past = None
        other.parts = None if self.parts is None else [part.copy() for part in self.parts]
        return other

    def of_single_rows(self, rows: int, model: int | None) -> list[StreamingCache]:
        """The caches of single rows, which hold the states from now on. ValueError for another batch size or model, and
        if rows have been computed together."""
        self.require_continues(rows, model)
        self.record()
        if self.parts is None and self.rows not in (None, 1):
            raise ValueError(f"the cache was begun without {APART}=1; begin a new one")
        if self.parts is None:
            self.parts = [self.copy() if self.seen else StreamingCache(len(self.layers)) for _ in range(rows)]
        self.rows, self.model = rows, model
        return self.parts

    def activate_past_recording(self) -> None:
        """Record the states before every forward from now on, so that `crop` can restore them. Recorded states share
        memory where possible."""
        self.past = []

    def record(self) -> None:
        """Record the states before a forward if recording is active."""
        if self.past is not None:
            self.past.append(self.copy())

    def crop(self, tokens_to_remove: int) -> None:
        """Restore the last recorded state that contains none of the removed tokens.

        This may remove more tokens than requested; `get_seq_length` then returns the number of tokens kept. Records are
        deleted. ValueError if no such state was recorded.

        Args:
            tokens_to_remove: Minus the number of tokens to remove, or, if positive, the length to keep.
        """
        target = tokens_to_remove if tokens_to_remove > 0 else self.seen + tokens_to_remove
        if target < self.seen:
            candidates = [earlier for earlier in self.past or () if earlier.seen <= target]
            if not candidates:
                raise ValueError(
                    "a streaming state cannot be rolled back unless it was recorded; keep the earlier cache (`copy`) "
                    "and branch from it"
                )
            vars(self).update({**vars(candidates[-1]), "past": self.past})
        if self.past is not None:
            self.past.clear()

    @property
    def is_croppable(self) -> bool:
        """Whether `crop` can restore earlier states."""
        return self.past is not None

    @property
    def is_initialized(self) -> bool:
        """Whether it has seen a token."""
        return self.seen > 0

    def get_seq_length(self, *args: Any) -> int:
        return self.seen

    def get_max_length(self, *args: Any) -> int:
        return -1

    get_max_cache_shape = get_max_length  # the name before transformers 5.10

    def update(self, *args: Any, **kwargs: Any) -> Any:
        raise TypeError("a lagwise cache holds mixer states, not keys and values")

    def reset(self) -> None:
        vars(self).update(vars(StreamingCache(len(self.layers))))

    def reorder_cache(self, beam_idx: Any) -> None:
        self.batch_select_indices(beam_idx)

    def batch_repeat_interleave(self, repeats: int) -> None:
        if self.rows is not None:
            self.batch_select_indices(torch.arange(self.rows).repeat_interleave(repeats))

    def batch_select_indices(self, indices: Tensor) -> None:
        """Keep these rows, in this order; a row may be selected several times."""
        self.states = select_rows(tuple(self.states), indices)
        self.rows = None if self.rows is None else len(indices)
        self.parts = None if self.parts is None else [self.parts[i].copy() for i in indices.tolist()]
        if self.behind is not None:
            self.behind = select_rows(self.behind, indices)
            surplus = int(self.behind.min())  # not 0 if the longest row was removed
            self.behind = self.behind - surplus
            self.seen -= surplus


def rows_apart() -> bool:
    """Whether language models compute each row of a batch by itself, for the same bits in every batch."""
    return os.environ.get(APART) == "1"


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
            cache.states = renewed(tuple(cache.states), self.model.model.init_states(1))
        return cache

    def after(self, stream: int, cache: Any) -> None:
        """Keep a stream's cache, which `before` made, with the states that the model has left in it."""
        cache.states = detached(tuple(cache.states))
        self.caches[stream] = cache

    @torch.no_grad()
    def tensors(self) -> dict[str, Tensor]:
        """The states with fixed shapes, by name. Continues from this form, whose rounding may differ: what is restored
        then has the same states."""
        tensors, like = {}, fixed_start(self.model.model.init_states(1))
        for stream, cache in self.caches.items():
            fixed, _ = fixed_state(tuple(cache.states), like)
            self.caches[stream] = self._cache(fixed)
            tensors |= {f"{stream}:{name}": tensor.contiguous() for name, tensor in named_tensors(fixed)}
        return tensors

    @torch.no_grad()
    def restore(self, saved: Mapping[str, Tensor]) -> None:
        """Continue from `tensors`. ValueError if they are not those of this model."""
        streams: dict[int, dict[str, Tensor]] = {}
        for name, tensor in saved.items():
            stream, _, rest = name.partition(":")
            streams.setdefault(int(stream), {})[rest] = tensor
        self.caches, like = {}, fixed_start(self.model.model.init_states(1))
        expected = dict(named_tensors(like))
        for number, tensors in streams.items():
            own = [tensors[name] for name in (*expected, *_FORMER) if name in tensors]
            if [t.shape for t in own] != [t.shape for t in expected.values()]:
                raise ValueError("these states are of another model")
            self.caches[number] = self._cache(rebuilt(like, iter(own)))

    def _cache(self, fixed: tuple[Any, ...]) -> StreamingCache:
        """A cache of states with fixed shapes."""
        cache = self.model.model.new_cache()
        cache.states = eager_state(fixed, self.model.model.init_states(1), iter(()))
        return cache
