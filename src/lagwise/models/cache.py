"""The streaming cache for `generate`, with one mixer state per layer."""

from __future__ import annotations

import copy
import os
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.utils import _pytree as pytree
from transformers.cache_utils import Cache, CacheLayerMixin

from lagwise.mixers.state import join_states, select_rows
from lagwise.ops.operation import device_check, exporting, traced
from lagwise.ops.packing import tokens_last

APART = "LAGWISE_INVARIANT"
Groups = list[tuple[Tensor, Tensor]]  # of rows ``(n,)``, with positions of their tokens ``(n, length)``


class StateLayer(CacheLayerMixin):
    """The mixer state of one layer. It holds no keys and values, so `update` raises an error."""

    is_compileable = False
    is_sliding = False
    is_croppable = False

    def __init__(self) -> None:
        super().__init__()
        self.seen = 0
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

    def advance(self, state: Any, tokens: int) -> None:
        self.state, self.is_initialized = state, True
        self.seen += tokens

    def select_rows(self, rows: Tensor) -> None:
        if self.state is not None:
            self.state = select_rows(self.state, rows)

    def lazy_initialization(self, key_states: Any = None, value_states: Any = None) -> None:
        raise TypeError("a lagwise cache holds mixer states, not keys and values")

    def update(self, *args: Any, **kwargs: Any) -> Any:
        raise TypeError("a lagwise cache holds mixer states, not keys and values")

    def get_seq_length(self, *args: Any) -> int:
        return self.seen

    def get_mask_sizes(self, query_length: Any) -> tuple[int, int]:
        return self.seen + (query_length if isinstance(query_length, int) else len(query_length)), 0

    def get_max_length(self) -> int:
        return -1

    get_max_cache_shape = get_max_length  # the name before transformers 5.10


class StreamingCache(Cache):
    """Mixer states of all layers, and counts of tokens and padding. `generate` may reorder, repeat and select its rows.

    Attributes:
        rows: Batch size, None before the first token.
        model: Number of the model that filled the cache, None if unknown.
        seen: Positions processed, including padding.
        real: Tokens that were not padding, ``(batch,)``; learned positions are numbered by it.
        recent: State of `NgramEmbedding` and `MatchEmbedding`, ``(batch, columns)``.
        began: Whether a row has had a real token, ``(batch,)``.
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

    def __init__(self, layers: int):
        super().__init__(layers=[StateLayer() for _ in range(layers)])
        self.real: Tensor | None = None
        self.recent: Tensor | None = None
        self.began: Tensor | None = None
        self.rows: int | None = None
        self.model: int | None = None
        self.behind: Tensor | None = None
        self.stream: Any = None
        self.parts: list[StreamingCache] | None = None
        self.past: list[StreamingCache] | None = None

    def require_continues(self, rows: int, model: int | None) -> None:
        """ValueError for another batch size or model than those of the cache."""
        if self.rows not in (None, rows):
            raise ValueError(f"the cache holds a batch of {self.rows}, the input is a batch of {rows}")
        if self.model not in (None, model):
            raise ValueError("the cache was filled by another model; begin a new one")

    def carry_on(self, stream: Any) -> None:
        """Let compiled code hold the states. Reading a state calls ``stream.stop()``, which writes them back and
        resets the stream to None."""
        self.stream = stream
        for layer in self.layers:
            layer.stop = None if stream is None else stream.stop  # type: ignore[attr-defined]

    def stop(self) -> None:
        """Write the states and `recent` back from compiled code."""
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
        # compiled code that holds one of the caches may take the others' rows
        at = next((i for i, cache in enumerate(caches) if cache.stream is not None), None)
        if joined.parts is None and (at is None or not caches[at].stream.join(caches[:at], caches[at + 1 :], joined)):
            for layer, *parts in zip(joined.layers, *(cache.layers for cache in caches), strict=True):
                layer.state = join_states([part.state for part in parts])  # type: ignore[attr-defined]
        for layer in joined.layers:
            vars(layer).update(seen=seen, is_initialized=True)
        joined.model, joined.rows = first.model, sum(cache.rows or 0 for cache in caches)
        joined.behind = torch.cat([cache._of_rows(cache.behind, 0) + (seen - cache.seen) for cache in caches])
        if first.real is not None:
            joined.real = torch.cat([cache._of_rows(cache.real, 0) for cache in caches])
        if first.recent is not None:
            joined.recent = torch.cat([cache.recent for cache in caches])  # type: ignore[misc]
        begun = [cache.began for cache in caches if cache.began is not None]
        if begun:
            joined.began = torch.cat([cache._of_rows(cache.began, True).to(begun[0].device) for cache in caches])
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

    def pass_over(self, length: int) -> None:
        """Count positions that the caches of single rows have processed."""
        for layer in self.layers:
            vars(layer).update(seen=layer.seen + length, is_initialized=True)  # type: ignore[attr-defined]

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
            kept = [earlier for earlier in self.past or () if earlier.seen <= target]
            if not kept:
                raise ValueError(
                    "a streaming state cannot be rolled back unless it was recorded; keep the earlier cache (`copy`) "
                    "and branch from it"
                )
            vars(self).update({**vars(kept[-1]), "past": self.past})
        if self.past is not None:
            self.past.clear()

    def _of_rows(self, values: Tensor | None, otherwise: int | bool) -> Tensor:
        """Return ``values``, or a tensor ``(rows,)`` of ``otherwise`` if they are None."""
        assert self.rows is not None
        return torch.full((self.rows,), otherwise) if values is None else values

    @property
    def is_croppable(self) -> bool:
        """Whether `crop` can restore earlier states."""
        return self.past is not None

    @property
    def seen(self) -> int:
        first = self.layers[0]
        assert isinstance(first, StateLayer)
        return first.seen

    def note_padding(self, mask: Tensor | None) -> tuple[Tensor | None, Groups]:
        """Record a chunk's padding, which may be anywhere in a row.

        Returns:
            The mask, or None if it has no padding: on a GPU, layers would each wait to read this. And, unless all
            padding comes before the first token of a row, groups of rows, and in which order to read the tokens of
            each: a batch with padding before the tokens, or, of rows that have begun, only the tokens.
        """
        begun, self.began = self.began, None
        # One read, which most tokens need: on a GPU, the host waits for it.
        if mask is None or (not traced() and (mask.shape[1] == 1 or mask.device.type == "cpu") and mask.all()):
            return None, []
        begun = mask.new_full(mask.shape[:1], self.seen > 0) if begun is None else begun
        late, after = (begun & ~mask.all(dim=1)).any(), (mask[:, 1:] < mask[:, :-1]).any()
        if traced():
            device_check(lambda: ~late, "padding after the first token of a stream, in a compiled model")
            must_split, must_move = False, True
        else:
            full, must_split, must_move = torch.stack([mask.all(), late, after]).tolist()
            if full:
                return None, []
        self.began = mask.any(dim=1) | begun
        order, rows = tokens_last(mask), torch.arange(len(mask), device=mask.device)
        if not must_split:
            return mask, [(rows, order)] if must_move else []
        count, length = mask.sum(1), mask.shape[1]
        return mask, [(rows[count == n], order[count == n, length - n :]) for n in count.unique().tolist()]

    def of_rows(self, rows: Tensor) -> StreamingCache:
        """A cache that continues some of the rows."""
        part = self.copy()
        part.batch_select_indices(rows)
        return part

    def replace(self, parts: Sequence[StreamingCache], rows: Tensor, seen: int) -> None:
        """Take the states of parts that have continued these rows, all rows in some order, up to a position."""
        joined = StreamingCache.join(parts)
        joined.batch_select_indices(rows.argsort())
        for layer in joined.layers:
            layer.seen = seen  # type: ignore[attr-defined]
        vars(self).update({**vars(joined), "past": self.past, "began": self.began, "behind": self.behind})

    def positions(self, batch_size: int, length: int, mask: Tensor | None, device: torch.device) -> Tensor:
        """Positions (batch, length) of the next tokens, counting real tokens only; updates the count."""
        before = torch.zeros(batch_size, dtype=torch.long, device=device) if self.real is None else self.real
        positions = real_positions(batch_size, length, mask, device) + before[:, None]
        self.real = positions[:, -1] + 1
        return positions.clamp(min=0)

    def reset(self) -> None:
        vars(self).update(vars(StreamingCache(len(self.layers))))

    def reorder_cache(self, beam_idx: Any) -> None:
        self.batch_select_indices(beam_idx)

    def batch_repeat_interleave(self, repeats: int) -> None:
        if self.rows is not None:
            self.batch_select_indices(torch.arange(self.rows).repeat_interleave(repeats))

    def batch_select_indices(self, indices: Tensor) -> None:
        """Keep these rows, in this order; a row may be selected several times."""
        if self.stream is None or not self.stream.select_rows(indices):
            for layer in self.layers:
                layer.select_rows(indices)  # type: ignore[attr-defined]
        self.rows = None if self.rows is None else len(indices)
        self.parts = None if self.parts is None else [self.parts[i].copy() for i in indices.tolist()]
        for name in _OF_ROWS:
            setattr(self, name, select_rows(getattr(self, name), indices))
        if self.behind is not None:
            surplus = int(self.behind.min())  # not 0 if the longest row was removed
            self.behind = self.behind - surplus
            for layer in self.layers:
                layer.seen -= surplus  # type: ignore[attr-defined]


def _flatten(cache: StreamingCache) -> tuple[list[Any], None]:
    states = [layer.state for layer in cache.layers]  # type: ignore[attr-defined]
    if exporting():
        plain = (Tensor, torch.SymInt, int, type(None))
        if not all(isinstance(leaf, plain) for leaf in pytree.tree_leaves(states)):
            _refuse_context()
    return [states, cache.seen, *(getattr(cache, name) for name in _KNOWN)], None


def _flatten_with_keys(cache: StreamingCache) -> tuple[list[tuple[Any, Any]], None]:
    names = ("states", "seen", *_KNOWN)
    return [(pytree.MappingKey(name), part) for name, part in zip(names, _flatten(cache)[0], strict=True)], None


def _unflatten(parts: Iterable[Any], context: None) -> StreamingCache:
    states, seen, *known = parts
    cache = StreamingCache(len(states))
    for layer, state in zip(cache.layers, states, strict=True):
        vars(layer).update(_state=state, seen=seen, is_initialized=state is not None)
    vars(cache).update(zip(_KNOWN, known, strict=True))
    return cache


def _refuse_context(context: None = None) -> Any:
    raise ValueError(
        "a StreamingCache has states that grow with the first tokens and cannot be exported; export a step of fixed "
        "shapes with lagwise.models.export.export_step"
    )


_OF_ROWS = ("real", "recent", "began", "behind")  # tensors with an entry for each row
_KNOWN = (*_OF_ROWS, "rows", "model")
pytree.register_pytree_node(
    StreamingCache,
    _flatten,
    _unflatten,
    serialized_type_name="lagwise.StreamingCache",
    to_dumpable_context=_refuse_context,
    from_dumpable_context=lambda context: None,
    flatten_with_keys_fn=_flatten_with_keys,
)


def rows_apart() -> bool:
    """Whether language models compute each row of a batch by itself, for the same bits in every batch."""
    return os.environ.get(APART) == "1"


def real_positions(batch_size: int, length: int, mask: Tensor | None, device: torch.device) -> Tensor:
    """Number each row's real tokens from 0. Padding gets the number of the token before it, or -1."""
    if mask is None:
        return torch.arange(length, device=device).expand(batch_size, length)
    return mask.long().cumsum(dim=1) - 1
