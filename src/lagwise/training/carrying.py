"""The states of a language model, carried from one chunk of a text to the next, also where it learns between them."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor

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
from lagwise.models import StreamingCache

_TOKEN_ATTRIBUTES = ("recent", "real")  # of a cache, about the tokens of each row; zero before the first token


class Carried(NamedTuple):
    """The states of all parts of a model for some rows, and the attributes of their cache (None if it has none)."""

    states: tuple[Any, ...]
    recent: Tensor | None
    real: Tensor | None


class CarriedStates:
    """The states of a language model after the latest chunk of each row, detached from the graph.

    A row whose chunk begins a document begins with an empty state. Gradients reach back to the start of a chunk: states
    are constants, except where they are tokens or taps that the parameters still apply to.

    Args:
        model: The language model, in evaluation mode.
        what: What needs the states, for messages.
        changes: Whether the weights change between chunks; states then get taps of the new weights.

    Raises:
        ValueError: For a model whose state grows with the text, or that takes texts up to a length only.

    Source: Transformer-XL (Dai et al. 2019), for windows; truncated back-propagation through time.
    """

    def __init__(self, model: Any, *, what: str = "", changes: bool = True):
        self.model, self.changes = model, changes
        self.held: dict[int, Carried] = {}  # by the number of the first row of a micro-batch
        for part in model.modules():
            if isinstance(part, Mixer) and (part.grows or not part.streams):
                raise ValueError(
                    f"{what} needs states of constant size, and {type(part).__name__} has none: its state grows with "
                    "the text, or there is none"
                )
        if model.model.length_limit is not None:
            raise ValueError(
                f"{what} needs a model of texts of any length, and this one takes at most {model.model.length_limit} "
                "tokens"
            )

    def before(self, row: int, begins: Tensor) -> StreamingCache:
        """Make the cache for the next chunks of some rows.

        Args:
            row: Number of the first row.
            begins: Whether each row begins a document, booleans ``(rows,)``.
        """
        cache, held = self.model.model.new_cache(), self.held.get(row)
        if held is None or bool(begins.all()):
            return cache
        rows, some = len(begins), bool(begins.any())
        order = torch.arange(rows, device=begins.device) + rows * begins
        for layer, state, part in zip(cache.layers, held.states, self.model.model.streamed, strict=True):
            if not some and not self.changes:
                layer.state = state
                continue
            start = part.init_state(rows)
            if some:
                state = select_rows(join_states([state, start]), order)
            layer.state = renewed(state, start)
        for name in _TOKEN_ATTRIBUTES:
            value = getattr(held, name)
            if value is not None:
                kept = ~begins.to(value.device)
                setattr(cache, name, value * (kept[:, None] if value.dim() == 2 else kept))
        return cache

    def after(self, row: int, cache: Any) -> None:
        """Keep the states that the model has left in the cache of the rows from ``row`` on."""
        states = tuple(detached(layer.state) for layer in cache.layers)
        self.held[row] = Carried(states, *(getattr(cache, name) for name in _TOKEN_ATTRIBUTES))

    @torch.no_grad()
    def tensors(self) -> dict[str, Tensor]:
        """The states with fixed shapes, by name. Continues from this form, whose rounding may differ: what is resumed
        then has the same states."""
        tensors = {}
        for row, held in self.held.items():
            like = self._start(next(t.shape[0] for _, t in named_tensors(held.states[0]) if isinstance(t, Tensor)))
            fixed = tuple(fixed_state(*pair)[0] for pair in zip(held.states, like, strict=True))
            self.held[row] = held._replace(states=self._eager(fixed))
            tokens = {name: value for name in _TOKEN_ATTRIBUTES if (value := getattr(held, name)) is not None}
            found = {**dict(named_tensors(fixed)), **tokens}
            tensors |= {f"{row}:{name}": tensor.contiguous() for name, tensor in found.items()}
        return tensors

    @torch.no_grad()
    def restore(self, found: Mapping[str, Tensor], path: Path) -> None:
        """Continue from `tensors`, which a file holds. ValueError if they are not those of this model."""
        by_row: dict[int, dict[str, Tensor]] = {}
        for name, tensor in found.items():
            row, _, rest = name.partition(":")
            by_row.setdefault(int(row), {})[rest] = tensor
        self.held = {}
        for row, tensors in by_row.items():
            like = self._start(len(next(iter(tensors.values()))))
            wanted = dict(named_tensors(like))
            own = {name: tensors.get(name) for name in wanted}
            if any(t is None or t.shape != wanted[name].shape for name, t in own.items()):
                raise ValueError(f"{str(path)!r} has states of another model")
            states = self._eager(rebuilt(like, iter(own.values())))  # type: ignore[bad-argument-type]
            self.held[row] = Carried(states, *(tensors.get(name) for name in _TOKEN_ATTRIBUTES))

    def _start(self, rows: int) -> tuple[Any, ...]:
        """Make the states before the first token, with fixed shapes."""
        return tuple(fixed_start(part.init_state(rows)) for part in self.model.model.streamed)

    def _eager(self, fixed: tuple[Any, ...]) -> tuple[Any, ...]:
        parts = self.model.model.streamed
        return tuple(eager_state(state, part.init_state(1), iter(())) for state, part in zip(fixed, parts, strict=True))
