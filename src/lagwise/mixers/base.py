"""The mixer contract."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, ClassVar, NamedTuple, Protocol, Self

import torch
from torch import Tensor, nn

from lagwise.ops import Layout
from lagwise.ops.packing import per_document
from lagwise.ops.symbolic import symbolic


class State(Protocol):
    """The streaming state of a causal mixer: an immutable tuple of tensors."""

    def map_batch(self, change: Callable[[Tensor], Tensor]) -> Self:
        """A new state with ``change`` applied to every tensor whose first axis is the batch."""
        ...

    @classmethod
    def join(cls, states: Sequence[Self]) -> Self:
        """The rows of at least one state of the same mixer as one batch, in order.

        Rows may have seen different numbers of tokens, or none: each continues as it would alone. States that differ in
        more than their rows, such as those from before and after a training step, cannot be joined.
        """
        ...


class StateTuple(NamedTuple):
    """A tuple state: its fields are tensors with the batch as first axis, windows, and states of other mixers."""

    parts: tuple[Any, ...]

    def map_batch(self, change: Callable[[Tensor], Tensor]) -> StateTuple:
        return StateTuple(tuple(change(p) if isinstance(p, Tensor) else p.map_batch(change) for p in self.parts))

    @staticmethod
    def join(states: Sequence[StateTuple]) -> StateTuple:
        columns = zip(*(state.parts for state in states), strict=True)
        return StateTuple(tuple(torch.cat(c) if isinstance(c[0], Tensor) else c[0].join(c) for c in columns))


class Mixer(nn.Module):
    """A token mixer on ``(batch, length, channels)``.

    Abstract: subclasses implement `mix` and, if causal, `init_state` and `mix_next`.
    For every mixer, these give the same outputs: the whole sequence at once (`forward`), the sequence in chunks of any
    size (`prefill`), and one token at a time (`step`). Padding and other documents of a packed row have no effect.
    Bidirectional mixers only have `forward`. The contract tests in ``tests/mixers`` check this for every entry of the
    table.
    """

    #: whether it mixes over the grid of a picture (`Layout.grid`): it then takes no plain sequences and is never causal
    needs_grid: ClassVar[bool] = False
    #: the directions that it supports: True is causal, False two-sided
    directions: ClassVar[tuple[bool, ...]] = (True, False)
    #: whether a causal one has a streaming state
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

        Args:
            x: ``(batch, length, channels)``.
            mask: ``(batch, length)``, true where a token is real.
            seq_idx: ``(batch, length)``, the document of each token of a packed row.
            layout: mask and seq_idx in one object, which models create once for all layers; replaces both.

        Returns:
            A tensor like x. Outputs at padding are finite and have no meaning.

        Raises:
            ValueError: If a shape is wrong.
        """
        layout = Layout(mask, seq_idx) if layout is None else layout
        x = checked(x, layout, self.channels)
        if not symbolic(x.shape[0]) and x.shape[0] == 0:
            return x
        if layout.seq_idx is not None:
            return per_document(self.mix, x, layout)
        return self.mix(x, layout)

    def mix(self, x: Tensor, layout: Layout) -> Tensor:
        """`forward` for checked arguments: rows of one document, and x zero at padding."""
        raise NotImplementedError

    def mix_columns(self, x: Tensor, layout: Layout, width: int) -> Tensor:
        """`forward` along the columns of a grid stored row by row, in rows of ``width`` tokens.

        x is ``(batch, height * width, channels)``, and layout that of the columns, ``(batch * width, height)``.
        """
        columns = x.unflatten(1, (-1, width)).transpose(1, 2).flatten(0, 1)
        return self(columns, layout=layout).unflatten(0, (-1, width)).transpose(1, 2).flatten(1, 2)

    def init_state(self, batch_size: int) -> Any:
        """The state before the first token. ValueError for a bidirectional mixer."""
        self.require_causal()
        raise NotImplementedError

    def prefill(self, x: Tensor, state: Any, *, mask: Tensor | None = None) -> tuple[Tensor, Any]:
        """Mix the next ``length >= 1`` tokens. Returns their outputs and the state after them.

        The old state stays valid, so that generation may branch from it. Shapes and errors as in `forward`.
        """
        x = checked(x, Layout(mask), self.channels)
        try:
            y, after = self.mix_next(x, state, mask)
        except RuntimeError:  # finding the rows of a state takes time, so only where tensors do not fit together
            require_rows(x, state)
            raise
        if y.shape[0] != x.shape[0]:
            raise ValueError(f"tokens must have the stream's {y.shape[0]} rows, got {x.shape[0]}")
        return y, after

    def mix_next(self, x: Tensor, state: Any, mask: Tensor | None) -> tuple[Tensor, Any]:
        """`prefill` for checked arguments, with x zero at padding."""
        raise NotImplementedError

    def step(self, x: Tensor, state: Any) -> tuple[Tensor, Any]:
        """Mix one token. Returns its output and the state after it.

        Shapes: x and the output ``(batch, channels)``, without a dimension of length; `prefill` takes ``(batch, length,
        channels)``. ValueError for another shape.
        """
        if x.dim() != 2 or x.shape[1] != self.channels:
            raise ValueError(
                f"step takes one token (batch, {self.channels}), got {tuple(x.shape)}; prefill takes several"
            )
        y, state = self.prefill(x[:, None], state)
        return y[:, 0], state

    def reset_parameters(self) -> None:
        """Draw the parameters that the mixer holds directly; its layers and kernels draw theirs."""

    def require_causal(self) -> None:
        if not self.streams:
            raise ValueError(f"{type(self).__name__} does not stream: it has no state; run it on whole sequences")
        if not self.causal:
            remedy = "" if True not in self.directions else "; build it with causal=True"
            raise ValueError(f"{type(self).__name__} is bidirectional: it has no streaming state{remedy}")


def check_heads(channels: int, heads: int) -> None:
    """ValueError unless heads divides the channels."""
    if heads < 1 or channels % heads:
        raise ValueError(f"heads must divide the {channels} channels, got {heads}")


def require_rows(x: Tensor, state: State) -> None:
    """ValueError if x and a state have different numbers of rows."""
    found: list[int] = []
    state.map_batch(lambda t: found.append(t.shape[0]) or t)
    if found and found[0] != x.shape[0]:
        raise ValueError(f"tokens must have the stream's {found[0]} rows, got {x.shape[0]}")


def checked(x: Tensor, layout: Layout, channels: int) -> Tensor:
    """x with zeros at padding, so that the values there affect no weight, output or gradient. ValueError if a shape is
    wrong."""
    if x.dim() != 3 or x.shape[2] != channels or x.shape[1] == 0:
        raise ValueError(f"x must be (batch, length >= 1, channels={channels}), got {tuple(x.shape)}")
    layout.check(*x.shape[:2])
    return masked(x, layout.mask)


def masked(x: Tensor, mask: Tensor | None) -> Tensor:
    """x with zeros at padding, even where it is NaN."""
    return x if mask is None else x.masked_fill(~mask.bool()[..., None], 0)
