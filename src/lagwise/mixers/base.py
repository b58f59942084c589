"""The mixer contract."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, ClassVar, NamedTuple, Protocol, Self

import torch
from torch import Tensor, nn

from lagwise.ops import Layout
from lagwise.ops.packing import per_document


class State(Protocol):
    """What a causal mixer remembers: an immutable tuple of tensors."""

    def map_batch(self, change: Callable[[Tensor], Tensor]) -> Self:
        """A new state with ``change`` applied to every tensor whose first axis is the batch."""
        ...

    @classmethod
    def join(cls, states: Sequence[Self]) -> Self:
        """One batch of the rows of at least one state of one mixer, in order.

        Rows need not have seen as many tokens, nor any: each goes on as it would alone. States that differ in more than
        their rows, such as those begun before and after a step of training, do not belong together.
        """
        ...


class StateTuple(NamedTuple):
    """Several states as one: tensors whose first axis is the batch, windows, and states of other mixers."""

    parts: tuple[Any, ...]

    def map_batch(self, change: Callable[[Tensor], Tensor]) -> StateTuple:
        return StateTuple(tuple(change(p) if isinstance(p, Tensor) else p.map_batch(change) for p in self.parts))

    @staticmethod
    def join(states: Sequence[StateTuple]) -> StateTuple:
        columns = zip(*(state.parts for state in states), strict=True)
        return StateTuple(tuple(torch.cat(c) if isinstance(c[0], Tensor) else c[0].join(c) for c in columns))


class Mixer(nn.Module):
    """A token mixer on ``(batch, length, channels)``.

    Abstract: subclasses give `mix` and, if causal, `init_state` and `mix_next`.
    Whatever the mixer, these agree: the whole sequence at once (`forward`), any cutting of it into chunks (`prefill`),
    and one token at a time (`step`). Padding and neighbours in a packed row leave no trace. Bidirectional mixers have
    only `forward`. The contract tests in ``tests/mixers`` hold every entry of the table to this.
    """

    #: whether it mixes over the grid of a picture (`Layout.grid`), and so takes no plain sequence and is never causal
    needs_grid: ClassVar[bool] = False
    #: the directions that it has: True is causal, False two-sided
    directions: ClassVar[tuple[bool, ...]] = (True, False)
    #: whether a causal one has a state to stream by
    streams: ClassVar[bool] = True

    def __init__(self, channels: int, causal: bool):
        super().__init__()
        if channels < 1:
            raise ValueError(f"channels must be at least 1, got {channels}")
        if causal not in self.directions:
            have, other = ("causal", "two-sided")[:: 1 if causal else -1]
            raise ValueError(f"{type(self).__name__} has no {have} form: build it with causal={not causal}, {other}")
        self.channels = channels
        self.causal = causal
        self.max_length: int | None = None  # of a document, in tokens; None for any

    def forward(
        self,
        x: Tensor,
        *,
        mask: Tensor | None = None,
        seq_idx: Tensor | None = None,
        layout: Layout | None = None,
    ) -> Tensor:
        """Mix whole sequences.

        Shapes: x ``(batch, length, channels)``; mask ``(batch, length)``, true where a token is real; seq_idx
        ``(batch, length)``, the document a token of a packed row belongs to. Result like x; outputs at padding are
        finite and mean nothing. layout: mask and seq_idx in one, which models make once for all layers; it takes their
        place. ValueError if a shape is wrong.
        """
        layout = Layout(mask, seq_idx) if layout is None else layout
        x = self._checked(x, layout)
        if layout.seq_idx is not None:
            return per_document(self.mix, x, layout)
        return self.mix(x, layout)

    def mix(self, x: Tensor, layout: Layout) -> Tensor:
        """`forward` for checked arguments, rows of one document, and x zero at padding."""
        raise NotImplementedError

    def mix_columns(self, x: Tensor, layout: Layout, width: int) -> Tensor:
        """`forward` along the columns of a grid whose rows of ``width`` tokens follow each other, x
        ``(batch, height * width, channels)``. layout: of the columns, ``(batch * width, height)``."""
        columns = x.unflatten(1, (-1, width)).transpose(1, 2).flatten(0, 1)
        return self(columns, layout=layout).unflatten(0, (-1, width)).transpose(1, 2).flatten(1, 2)

    def init_state(self, batch_size: int) -> Any:
        """State before the first token. ValueError for a bidirectional mixer."""
        self.require_causal()
        raise NotImplementedError

    def prefill(self, x: Tensor, state: Any, *, mask: Tensor | None = None) -> tuple[Tensor, Any]:
        """Mix the next ``length >= 1`` tokens; return their outputs and the state after them. The old state stays
        valid: generation may branch from it. Shapes and errors as in `forward`."""
        return self.mix_next(self._checked(x, Layout(mask)), state, mask)

    def mix_next(self, x: Tensor, state: Any, mask: Tensor | None) -> tuple[Tensor, Any]:
        """`prefill` for checked arguments, and x zero at padding."""
        raise NotImplementedError

    def step(self, x: Tensor, state: Any) -> tuple[Tensor, Any]:
        """Mix one token, ``(batch, channels)``."""
        y, state = self.prefill(x[:, None], state)
        return y[:, 0], state

    def reset_parameters(self) -> None:
        """Draw the parameters that the mixer holds directly; its layers and kernels draw their own."""

    def _checked(self, x: Tensor, layout: Layout) -> Tensor:
        """x with its padding zeroed, so that whatever stands there reaches no weight, output or gradient."""
        if x.dim() != 3 or x.shape[2] != self.channels or x.shape[1] == 0:
            raise ValueError(f"x must be (batch, length >= 1, channels={self.channels}), got {tuple(x.shape)}")
        layout.check(*x.shape[:2])
        return masked(x, layout.mask)

    def require_causal(self) -> None:
        if not self.streams:
            raise ValueError(f"{type(self).__name__} does not stream: it has no state; run it on whole sequences")
        if not self.causal:
            remedy = "" if True not in self.directions else "; build it with causal=True"
            raise ValueError(f"{type(self).__name__} is bidirectional: it has no streaming state{remedy}")


def check_heads(channels: int, heads: int) -> None:
    """ValueError if channels cannot be dealt out to so many heads."""
    if heads < 1 or channels % heads:
        raise ValueError(f"heads must divide the {channels} channels, got {heads}")


def masked(x: Tensor, mask: Tensor | None) -> Tensor:
    """Zero the padding, NaN or not."""
    return x if mask is None else x.masked_fill(~mask.bool()[..., None], 0)
