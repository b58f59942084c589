"""The last tokens of a stream, in a buffer to which only new tokens are copied."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.utils import _pytree as pytree

_FIRST_CAPACITY = 16


def may_write(storage: Tensor) -> bool:
    """Whether a buffer may be written to: gradients are disabled, so that autograd cannot have saved what is read from
    it, and inference mode does not forbid it."""
    return not torch.is_grad_enabled() and (not storage.is_inference() or torch.is_inference_mode_enabled())


def join_rows(signals: Sequence[Tensor]) -> Tensor:
    """The rows of several signals as one batch, aligned at their ends: shorter signals get zeros on the left.

    Shapes: signals ``(batch_i, ..., n_i, channels)``, equal except for batch and n; result ``(sum of batches, ...,
    longest n, channels)``, with dtype and device of the longest.
    """
    longest = max(signals, key=lambda signal: signal.shape[-2])
    return torch.cat([F.pad(x, (0, 0, longest.shape[-2] - x.shape[-2], 0)).to(longest) for x in signals])


class _Buffer:
    """Storage ``(batch, capacity, channels)`` that several windows may share, and how much of it is written."""

    def __init__(self, storage: Tensor, written: int):
        self.storage, self.written = storage, written


class Window:
    """The last ``reach`` tokens of a signal ``(batch, length, channels)``, or all of them if reach is None.

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
        self._size = tokens.shape[1] if reach is None else min(reach, tokens.shape[1])
        self._end = tokens.shape[1]
        self._buffer = _Buffer(tokens, self._end)

    @classmethod
    def empty(cls, batch_size: int, channels: int, reach: int | None, *, like: Tensor) -> Window:
        """A window without tokens, with the dtype and device of ``like``."""
        return cls(like.new_zeros(batch_size, 0, channels), reach)

    @property
    def tokens(self) -> Tensor:
        """The tokens kept, ``(batch, size, channels)``, oldest first. Do not modify them."""
        return self._buffer.storage[:, self._end - self._size : self._end]

    def latest(self, n: int) -> Tensor:
        """The last n <= size tokens. Do not modify them."""
        return self._buffer.storage.narrow(1, self._end - n, n)

    @property
    def batch(self) -> int:
        """Number of rows."""
        return self._buffer.storage.shape[0]

    @property
    def size(self) -> int:
        """Number of tokens kept, at most reach."""
        return self._size

    def append(self, x: Tensor) -> Window:
        """The window after the tokens x ``(batch, n, channels)``, which are cast to its dtype. ValueError for another
        number of rows."""
        new, buffer = x.shape[1], self._buffer
        storage, end = buffer.storage, self._end
        if x.shape[0] != storage.shape[0]:
            raise ValueError(f"tokens must have the stream's {storage.shape[0]} rows, got {x.shape[0]}")
        if x.dtype != storage.dtype:
            x = x.to(storage.dtype)
        kept = self._size if self.reach is None else max(0, min(self._size, self.reach - new))
        # The buffer must have space, no other window may have written there, and tensors of it may not be in use.
        if buffer.written != end or end + new > storage.shape[1] or not may_write(storage):
            past = self.tokens[:, self._size - kept :]
            added = x if self.reach is None else x[:, max(0, new - self.reach) :]
            if torch.is_grad_enabled():
                return Window(torch.cat([past, added], dim=1), self.reach)
            return self._moved(past, added)
        storage[:, end : end + new] = x
        buffer.written = end + new
        return self._seen(buffer, end + new, kept + new)

    def map_batch(self, change: Callable[[Tensor], Tensor]) -> Window:
        """The window of other rows: ``change`` is applied to the tokens."""
        return Window(change(self.tokens), self.reach)

    def last(self, size: int) -> Window:
        """The window of its last ``size`` tokens, or of all if it has fewer, in its own memory."""
        return Window(self.tokens[:, max(0, self._size - size) :].clone(), self.reach)

    @staticmethod
    def join(windows: Sequence[Window]) -> Window:
        """One window of the rows of several, in order, with dtype and device of the fullest. A row with fewer tokens
        gets zeros before them. ValueError unless all have the same reach."""
        reaches = {window.reach for window in windows}
        if len(reaches) != 1:
            raise ValueError(f"windows to join must have the same reach, got {sorted(map(str, reaches))}")
        return Window(join_rows([window.tokens for window in windows]), reaches.pop())

    def _moved(self, past: Tensor, added: Tensor) -> Window:
        size = past.shape[1] + added.shape[1]
        capacity = max(_FIRST_CAPACITY, 2 * size)
        if self.reach is not None:
            capacity = max(size, min(capacity, 2 * self.reach))
        storage = past.new_empty(past.shape[0], capacity, past.shape[2])
        storage[:, : past.shape[1]] = past
        storage[:, past.shape[1] : size] = added
        return self._seen(_Buffer(storage, size), size, size)

    def _seen(self, buffer: _Buffer, end: int, size: int) -> Window:
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
