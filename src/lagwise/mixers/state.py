"""Streaming states as trees: named tuples of tensors, windows and further tuples. What is done to their rows and shapes
is written here, once for all mixers, blocks and models.

A tensor has the batch as its first axis; a later one may grow with the text, with zeros at its end. A part that keeps
its rows in another way brings `OwnRows`' two methods. Plain numbers, such as the plan of SKI, are the same for all
rows.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any, Protocol, Self, runtime_checkable

import torch
import torch.nn.functional as F
from torch import Tensor

from lagwise.ops.operation import traced
from lagwise.ops.streaming import DueState, OnlineFollower, OnlineState, WindowState, due_state, online_block
from lagwise.ops.window import Window, ring_of, ring_tokens


@runtime_checkable
class OwnRows(Protocol):
    """A state, or a part of one, that selects and joins its rows itself."""

    def map_batch(self, change: Callable[[Tensor], Tensor]) -> Self:
        """The state of other rows: ``change`` is a selection along the first axis."""
        ...

    @staticmethod
    def join(states: Sequence[Any]) -> Any:
        """The rows of several states as one batch, in order."""
        ...


def select_rows(state: Any, rows: Tensor) -> Any:
    """The state of rows with these indices ``(n,)``, in this order, perhaps repeated. The old state stays valid."""
    return _map_rows(state, lambda t: t.index_select(0, rows.to(t.device)))


def detached(state: Any) -> Any:
    """The state, detached from the autograd graph."""
    return _map_rows(state, lambda t: t.detach())


def renewed(state: Any, like: Any) -> Any:
    """Copy the state with what a new one, ``like``, knows of the parameters, which may have changed: taps, and
    contributions to later tokens that were computed with them."""
    if isinstance(state, OnlineState):
        return OnlineState.of(like.taps, state.window.tokens, state.seen - state.behind)
    if isinstance(state, tuple):
        return _like(state, [renewed(*pair) for pair in zip(state, like, strict=True)])
    return state


def join_states(states: Sequence[Any]) -> Any:
    """The rows of at least one state of the same mixer as one batch, in order. The old states stay valid.

    Rows may have seen different numbers of tokens, or none: each continues as it would alone. ValueError for states
    that differ in more than their rows, such as the plan of SKI.
    """
    first = states[0]
    if isinstance(first, Tensor):
        shape = [max(sizes) for sizes in zip(*(state.shape for state in states), strict=True)]
        return torch.cat([_filled(state, shape) for state in states])
    if isinstance(first, OwnRows):
        return type(first).join(states)
    if isinstance(first, tuple):
        return _trim(_like(first, [join_states(parts) for parts in zip(*states, strict=True)]))
    if any(state != first for state in states):
        raise ValueError(f"states to join must be of one mixer, got {first!r} beside others")
    return first


def fixed_state(state: Any, like: Any) -> tuple[Any, list[OnlineFollower]]:
    """A state with fixed shapes, for graphs, which take single tokens: windows become rings (see `lagwise.ops.window`),
    and the state of a long kernel one of its fixed forms (`lagwise.ops.streaming`). like: one from `fixed_start`.

    Returns the state, in its own memory, and what must be told of every step: one follower for each exact kernel whose
    long blocks are computed outside the graph, in order.
    """
    followers: list[OnlineFollower] = []
    return _fix(state, like, followers, None), followers


def fixed_start(state: Any, *, online: bool = False) -> Any:
    """The fixed form of a state before the first token. online: whether exact kernels keep their long blocks outside
    the graph, so that each step costs O(log² n) and kernels of any support are possible."""
    if isinstance(state, OnlineState):
        rows, near = state.window.batch, state.taps.near
        seen = near.new_zeros(rows, dtype=torch.long)
        if online:
            return due_state(state)
        return WindowState(near.new_zeros(rows, int(state.taps.support or 0), near.shape[1]), seen)
    if isinstance(state, Window):
        assert state.reach is not None
        tokens = state.tokens
        return tokens.new_zeros(*tokens.shape[:-2], state.reach, tokens.shape[-1])
    if isinstance(state, tuple):
        return _like(state, [fixed_start(part, online=online) for part in state])
    if not isinstance(state, Tensor | int | None):
        raise ValueError(f"a state must be a named tuple of tensors, got {type(state).__name__}")
    return state


def eager_state(fixed: Any, like: Any, followers: Iterator[OnlineFollower]) -> Any:
    """The inverse of `fixed_state`. like: a state of the same mixer before the first token."""
    return _eager(fixed, like, followers, None)


def leaves(state: Any) -> list[Tensor]:
    """The tensors of a state whose first axis is the batch."""
    tensors: list[Tensor] = []
    _map_rows(state, lambda t: tensors.append(t) or t)
    return tensors


def named_tensors(state: Any, name: str = "") -> Iterator[tuple[str, Tensor]]:
    """Yield the names and tensors of nested tuples, in order, without None and plain numbers."""
    if isinstance(state, Tensor):
        yield name, state
    elif isinstance(state, tuple):
        named: Any = state
        parts = enumerate(state) if type(state) is tuple else named._asdict().items()
        for key, part in parts:
            yield from named_tensors(part, f"{name}.{key}" if name else str(key))


def rebuilt(like: Any, tensors: Iterator[Tensor]) -> Any:
    """Return nested tuples with the same structure and other tensors."""
    if isinstance(like, Tensor):
        return next(tensors)
    if not isinstance(like, tuple):
        return like
    parts: Any = [rebuilt(part, tensors) for part in like]
    return tuple(parts) if type(like) is tuple else type(like)(*parts)


def _map_rows(state: Any, change: Callable[[Tensor], Tensor]) -> Any:
    if isinstance(state, Tensor):
        return change(state)
    if isinstance(state, OwnRows):
        return state.map_batch(change)
    if isinstance(state, tuple):
        return _trim(_like(state, [_map_rows(part, change) for part in state]))
    return state


def _fix(state: Any, like: Any, followers: list[OnlineFollower], seen: Tensor | None) -> Any:
    if isinstance(like, DueState):
        state = online_block(state)  # shared by the fixed state and its follower
        fixed = due_state(state)
        followers.append(OnlineFollower(state, fixed))
        return fixed
    if isinstance(state, OnlineState):
        count = (state.seen - state.behind).to(like.seen.device)
        return WindowState(_own_copy(ring_of(state.window.tokens, like.ring.shape[1], count), like.ring), count)
    if isinstance(state, Window):
        assert seen is not None
        return _own_copy(ring_of(state.tokens, like.shape[1], seen), like)
    if isinstance(state, Tensor):
        return _own_copy(state, like)
    if isinstance(state, tuple):
        seen = getattr(state, "seen", seen)
        return _like(state, [_fix(*parts, followers, seen) for parts in zip(state, like, strict=True)])
    return state


def _eager(fixed: Any, like: Any, followers: Iterator[OnlineFollower], seen: Tensor | None) -> Any:
    if isinstance(fixed, DueState):
        return next(followers).stopped()
    if isinstance(like, OnlineState):
        return OnlineState.of(like.taps, ring_tokens(fixed.ring, fixed.seen), fixed.seen)
    if isinstance(like, Window):
        assert seen is not None
        tokens, longest = ring_tokens(fixed, seen), int(seen.max())
        return Window(tokens[:, max(0, tokens.shape[1] - longest) :], like.reach)
    if isinstance(fixed, tuple):
        seen = getattr(fixed, "seen", seen)
        return _like(fixed, [_eager(part, other, followers, seen) for part, other in zip(fixed, like, strict=True)])
    return fixed


def _own_copy(tensor: Tensor, like: Tensor) -> Tensor:
    """A contiguous copy of a tensor of the state, which may be modified in place, in the type of another: a prompt read
    under autocast has others than those that steps are made for."""
    fitting = all(size <= limit for size, limit in zip(tensor.shape[1:], like.shape[1:], strict=True))
    assert fitting, f"a state of {tuple(tensor.shape)} does not fit into {tuple(like.shape)}"
    return _filled(tensor, like.shape).to(like.device, like.dtype, copy=True).contiguous()


def _filled(tensor: Tensor, shape: Sequence[int]) -> Tensor:
    """A tensor of the state with these sizes, but its own number of rows."""
    missing = [shape[axis] - tensor.shape[axis] for axis in range(1, tensor.dim())]
    return F.pad(tensor, [n for more in reversed(missing) for n in (0, more)]) if any(missing) else tensor


def _like(state: tuple, parts: Sequence[Any]) -> Any:
    """A tuple of the same kind."""
    kind: Any = type(state)
    return tuple(parts) if kind is tuple else kind._make(parts)


def _trim(state: Any) -> Any:
    """A state without the positions that lie before the texts of all its rows: they would stay forever in a batch that
    rows join and leave."""
    seen = getattr(state, "seen", None)
    if not isinstance(seen, Tensor) or not any(isinstance(part, Window) for part in state) or traced():
        return state
    longest = int(seen.max()) if len(seen) else 0
    parts = [part.last(longest) if isinstance(part, Window) and part.size > longest else part for part in state]
    return _like(state, parts)
