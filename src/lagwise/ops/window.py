"""The last tokens of a stream, in two forms: a buffer to which only new tokens are copied, and, for graphs, a ring.

A streaming state holds a `Window`, or, where shapes must be fixed, a ring: a tensor ``(batch, reach, channels)`` (see
`ring_write`). The functions from `extended` on take either, so that a mixer's step is written once. Their
argument ``seen`` ``(batch,)`` is the number of tokens of each row before the new ones.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.utils import _pytree as pytree

from lagwise.ops.operation import traced

_FIRST_CAPACITY = 16


def may_write(storage: Tensor) -> bool:
    """Whether a buffer may be written to: gradients are disabled, so that autograd cannot have saved what is read from
    it, and inference mode does not forbid it."""
    return not torch.is_grad_enabled() and (not storage.is_inference() or torch.is_inference_mode_enabled())


class _Buffer:
    """Storage ``(batch, ..., capacity, channels)`` that several windows may share, and how much of it is written."""

    def __init__(self, storage: Tensor, written: int):
        self.storage, self.written = storage, written


class Window:
    """The last ``reach`` tokens of a signal ``(batch, ..., length, channels)``, or all of them if reach is None.

    Rows are aligned at their ends; one that has seen fewer tokens than others has zeros before its first.

    Appending returns a new window and leaves the old one unchanged, but copies only the new tokens: both are views of
    one buffer, of which the old window covers less. The past is copied only when a second window continues from the
    same one, and once every ``reach`` tokens, when the window moves to a new buffer. So n tokens cost O(n + reach) in
    total, and memory is at most twice what is kept.
    """

    __slots__ = ("_buffer", "_end", "_size", "reach")

    def __init__(self, tokens: Tensor, reach: int | None):
        if reach is not None and reach < 0:
            raise ValueError(f"reach must be at least 0, got {reach}")
        self.reach = reach
        self._size = tokens.shape[-2] if reach is None else min(reach, tokens.shape[-2])
        self._end = tokens.shape[-2]
        self._buffer = _Buffer(tokens, self._end)

    @classmethod
    def empty(cls, batch_size: int, channels: int, reach: int | None, *, like: Tensor) -> Window:
        """A window without tokens, with the device and dtype of ``like``. The first tokens determine the dtype: under
        autocast that of the layer which computes them."""
        # a quantized tensor has no `new_zeros`
        return cls(torch.zeros(batch_size, 0, channels, dtype=like.dtype, device=like.device), reach)

    @property
    def tokens(self) -> Tensor:
        """The tokens kept, ``(batch, ..., size, channels)``, oldest first. Do not modify them."""
        return self._buffer.storage.narrow(-2, self._end - self._size, self._size)

    def latest(self, n: int) -> Tensor:
        """The last n <= size tokens. Do not modify them."""
        return self._buffer.storage.narrow(-2, self._end - n, n)

    def spaced(self, step: int, count: int) -> Tensor:
        """Every step-th token back from the last one, at most ``count``, oldest first. Do not modify them."""
        far = min((count - 1) * step, (self._size - 1) // step * step)
        stride = min(step, max(1, self._size))  # a slice takes no stride larger than 2**63
        return self._buffer.storage[:, self._end - 1 - far : self._end : stride]

    @property
    def batch(self) -> int:
        """Number of rows."""
        return self._buffer.storage.shape[0]

    @property
    def size(self) -> int:
        """Number of tokens kept, at most reach."""
        return self._size

    def append(self, x: Tensor) -> Window:
        """The window after the tokens x ``(batch, ..., n, channels)``, which are cast to its dtype. ValueError for
        another number of rows."""
        new, buffer = x.shape[-2], self._buffer
        storage, end = buffer.storage, self._end
        if x.shape[0] != storage.shape[0]:
            raise ValueError(f"tokens must have the stream's {storage.shape[0]} rows, got {x.shape[0]}")
        past_size = self._size if self.reach is None else max(0, min(self._size, self.reach - new))
        # The buffer must have space, no other window may have written there, and tensors of it may not be in use.
        if buffer.written != end or end + new > storage.shape[-2] or not may_write(storage):
            past = x[..., :0, :] if self._size == 0 else self.latest(past_size)
            added = x if self.reach is None else x[..., max(0, new - self.reach) :, :]
            if torch.is_grad_enabled():
                return Window(torch.cat([past, added.to(past.dtype)], dim=-2), self.reach)
            return self._grow(past, added)
        storage.narrow(-2, end, new).copy_(x)
        buffer.written = end + new
        return self._view(buffer, end + new, past_size + new)

    def map_batch(self, change: Callable[[Tensor], Tensor]) -> Window:
        """The window of other rows: ``change`` is applied to the tokens."""
        return Window(change(self.tokens), self.reach)

    def last(self, size: int) -> Window:
        """The window of its last ``size`` tokens, or of all if it has fewer, in its own memory."""
        return Window(self.latest(min(size, self._size)).clone(), self.reach)

    @staticmethod
    def join(windows: Sequence[Window]) -> Window:
        """Join the rows of several windows, in order, with dtype and device of the fullest. A row with fewer tokens
        gets zeros before them. ValueError unless all have the same reach."""
        reaches = {window.reach for window in windows}
        if len(reaches) != 1:
            raise ValueError(f"windows to join must have the same reach, got {sorted(map(str, reaches))}")
        parts = [window.tokens for window in windows]
        longest = max(parts, key=lambda part: part.shape[-2])
        missing = [longest.shape[-2] - part.shape[-2] for part in parts]
        rows = [F.pad(part, (0, 0, n, 0)).to(longest) for part, n in zip(parts, missing, strict=True)]
        return Window(torch.cat(rows), reaches.pop())

    def _grow(self, past: Tensor, added: Tensor) -> Window:
        size = past.shape[-2] + added.shape[-2]
        capacity = max(_FIRST_CAPACITY, 2 * size)
        if self.reach is not None:
            capacity = max(size, min(capacity, 2 * self.reach))
        storage = past.new_empty(*past.shape[:-2], capacity, past.shape[-1])
        storage[..., : past.shape[-2], :] = past
        storage[..., past.shape[-2] : size, :] = added
        return self._view(_Buffer(storage, size), size, size)

    def _view(self, buffer: _Buffer, end: int, size: int) -> Window:
        window = Window.__new__(Window)
        window.reach, window._buffer, window._end = self.reach, buffer, end
        window._size = size if self.reach is None else min(size, self.reach)
        return window


def _flatten_with_keys(window: Window) -> tuple[list[Any], int | None]:
    return [(pytree.MappingKey("tokens"), window.tokens)], window.reach


pytree.register_pytree_node(
    Window,
    lambda window: ([window.tokens], window.reach),
    lambda tokens, reach: Window(next(iter(tokens)), reach),
    serialized_type_name="lagwise.Window",
    flatten_with_keys_fn=_flatten_with_keys,
)


def ring_write(ring: Tensor, x: Tensor, index: Tensor) -> Tensor:
    """The ring after one token of every row, which replaces the token ``reach`` before it.

    Shapes: ring ``(batch, reach, channels)``; x ``(batch, channels)``; index ``(batch,)``, each token's index in its
    row, from 0; result like ring.
    """
    rows = torch.arange(ring.shape[0], device=ring.device)
    return ring.index_put((rows, index % ring.shape[1]), x.to(ring.dtype))


def ring_read(ring: Tensor, index: Tensor, lags: Tensor) -> Tensor:
    """Return tokens at some lags before the last one written, ``(batch, n, channels)``.

    Shapes: ring and index as in `ring_write`; lags ``(n,)`` in tokens, below reach.
    """
    return _gather(ring, (index[:, None] - lags) % ring.shape[1])


def ring_lags(ring: Tensor, index: Tensor) -> Tensor:
    """The lag of each position of the ring behind the last token written, ``(batch, reach)``."""
    positions = torch.arange(ring.shape[1], device=ring.device)
    return (index[:, None] - positions) % ring.shape[1]


def ring_of(tokens: Tensor, reach: int, seen: Tensor) -> Tensor:
    """The ring that holds the last tokens before index ``seen`` of each row.

    Shapes: tokens ``(batch, n <= reach, channels)``, oldest first; seen ``(batch,)``; result ``(batch, reach,
    channels)``. Missing tokens are zero.
    """
    tokens = F.pad(tokens, (0, 0, reach - tokens.shape[1], 0))
    positions = torch.arange(reach, device=tokens.device)
    return _gather(tokens, (positions - seen[:, None]) % reach)


def ring_tokens(ring: Tensor, seen: Tensor) -> Tensor:
    """The inverse of `ring_of`: the last ``reach`` tokens of every row, oldest first, ``(batch, reach, channels)``."""
    positions = torch.arange(ring.shape[1], device=ring.device)
    return _gather(ring, (positions + seen[:, None]) % ring.shape[1])


def _gather(x: Tensor, index: Tensor) -> Tensor:
    return x[torch.arange(x.shape[0], device=x.device)[:, None], index]


class Recent(NamedTuple):
    """Mask of a window's tokens that are among the last few of their row.

    Attributes:
        size: how many of the latest tokens to read (`latest`).
        lags: lags of these behind the last one, ``(size,)`` or ``(batch, size)``.
        allowed: ``(batch, size)``, true for those among the last few; None if all of them are.
    """

    size: int
    lags: Tensor
    allowed: Tensor | None


def extended(past: Window | Tensor, x: Tensor, seen: Tensor) -> Window | Tensor:
    """The window after the next tokens ``(batch, n, channels)``, one for a ring; the old one stays valid."""
    if isinstance(past, Window):
        return past.append(x)
    return ring_write(past, x[:, 0], seen)


def ordered(past: Window | Tensor, seen: Tensor) -> Tensor:
    """The tokens ``(batch, size, channels)``, oldest first."""
    return past.tokens if isinstance(past, Window) else ring_tokens(past, seen)


def latest(past: Window | Tensor, recent: Recent) -> Tensor:
    """The tokens ``(batch, size, channels)`` that a `Recent` is about."""
    return past.latest(recent.size) if isinstance(past, Window) else past


def spaced(past: Window | Tensor, step: int, count: int, seen: Tensor) -> Tensor:
    """The tokens at lags 0, step, ..., (count - 1) step behind the last one, which has index ``seen``: ``(batch, at
    most count, channels)``, oldest first. Tokens before the first one are zero or left out."""
    if not isinstance(past, Window):
        lags = torch.arange(count - 1, -1, -1, device=past.device) * step
        return ring_read(past, seen, lags)
    return past.spaced(step, count)


def displaced(past: Window | Tensor, n: int, x: Tensor, seen: Tensor) -> Tensor:
    """The n tokens ``(batch, n, channels)`` that leave a window when the n tokens x arrive, one for a ring; zero for
    those before the first."""
    if isinstance(past, Window):
        assert past.reach is not None
        missing = past.reach - past.size
        together = torch.cat([past.tokens, x.to(past.tokens.dtype)], 1) if past.size else x
        return F.pad(together, (0, 0, missing, 0))[:, :n]
    return ring_read(past, seen, torch.zeros_like(seen[:1]))


def recent(past: Window | Tensor, count: Tensor, seen: Tensor) -> Recent:
    """Mask of the tokens that are among the last ``count`` ``(batch,)`` of their row, of which the last has index
    ``seen``."""
    if not isinstance(past, Window):
        lags = ring_lags(past, seen)
        return Recent(past.shape[1], lags, lags < count[:, None])
    size = common(count)
    if size is not None:
        return Recent(size, torch.arange(size - 1, -1, -1, device=count.device), None)
    lags = torch.arange(past.size - 1, -1, -1, device=count.device)
    return Recent(past.size, lags, lags < count[:, None])


def common(count: Tensor) -> int | None:
    """The number that all rows ``(batch,)`` share. None if they differ, and where asking costs more than it saves: in a
    graph, or on another device than the CPU."""
    if count.device.type != "cpu" or traced():
        return None
    counts = set(count.tolist())
    return counts.pop() if len(counts) == 1 else None
