"""The contract of mixers and blocks: layers that stream."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any, ClassVar

import torch
from torch import Tensor, nn

from lagwise.kernels.base import LagKernel
from lagwise.mixers.state import join_states, leaves, select_rows
from lagwise.ops import Layout
from lagwise.ops.operation import traced
from lagwise.ops.packing import per_document

_CONTINUOUS = "use mixers and kernels in continuous time, such as s4d, dss, s5, lru, cema and ema"


class StreamModule(nn.Module):
    """A layer on ``(batch, length, channels)`` that takes whole sequences or, if causal, the next tokens of a stream.
    Abstract: subclasses implement `mix` and, if causal, `init_state`.

    The whole sequence at once (`forward`), chunks of any size (`prefill`), and one token at a time (`step`) give the
    same outputs. Padding and other documents of a packed row have no effect.
    """

    def __init__(self, channels: int):
        super().__init__()
        if channels < 1:
            raise ValueError(f"channels must be at least 1, got {channels}")
        self._width = channels

    def forward(
        self,
        x: Tensor,
        *,
        mask: Tensor | None = None,
        seq_idx: Tensor | None = None,
        layout: Layout | None = None,
    ) -> Tensor:
        """Process whole sequences.

        Args:
            x: ``(batch, length, channels)``.
            mask: ``(batch, length)``, true where a token is real.
            seq_idx: ``(batch, length)``, the document of each token of a packed row.
            layout: mask and seq_idx in one object, which models create once for all layers; replaces both. It may
                also give the time of each token (`Layout.token_time`).

        Returns:
            A tensor like x. Outputs at padding are finite and have no meaning.

        Raises:
            ValueError: If a shape is wrong, or for times of tokens if a mixer counts tokens.
        """
        layout = Layout(mask, seq_idx) if layout is None else layout
        return self._whole(checked(x, layout, self._width), layout)

    def prefill(
        self, x: Tensor, state: Any, *, mask: Tensor | None = None, layout: Layout | None = None
    ) -> tuple[Tensor, Any]:
        """Process the next ``length >= 1`` tokens. Returns their outputs and the state after them.

        The old state stays valid, so that generation may branch from it. A row with padding, anywhere in it, continues
        as if it had only its real tokens. Arguments, shapes and errors as in `forward`, without seq_idx.
        """
        layout = Layout(mask) if layout is None else layout
        return self._next(checked(x, layout, self._width), state, layout)

    def step(self, x: Tensor, state: Any, token_time: Tensor | None = None) -> tuple[Tensor, Any]:
        """Process one token ``(batch, channels)``, with times ``(batch,)`` as in `Layout`. Returns its output and the
        state after it."""
        time = None if token_time is None else token_time[:, None]
        y, state = self.prefill(x[:, None], state, layout=Layout(token_time=time))
        return y[:, 0], state

    def run(self, x: Tensor, state: Any, layout: Layout) -> tuple[Tensor, Any]:
        """`forward` if state is None, otherwise `prefill`: what a layer calls that is made of others."""
        return (self(x, layout=layout), None) if state is None else self.prefill(x, state, layout=layout)

    def mix(self, x: Tensor, state: Any, layout: Layout) -> tuple[Tensor, Any]:
        """`forward` if state is None, otherwise `prefill`, for checked arguments: x is zero at padding. Returns the
        outputs and the state after them, which has no meaning for whole sequences."""
        raise NotImplementedError

    def init_state(self, batch_size: int) -> Any:
        """The state before the first token. ValueError for a bidirectional layer."""
        raise NotImplementedError

    def _whole(self, x: Tensor, layout: Layout) -> Tensor:
        return self.mix(x, None, layout)[0]

    def _next(self, x: Tensor, state: Any, layout: Layout) -> tuple[Tensor, Any]:
        return self.mix(x, state, layout)


class Mixer(StreamModule):
    """A token mixer on ``(batch, length, channels)``.

    Abstract: subclasses implement `mix` and, if causal, `init_state` and, where one token has a faster way,
    `mix_token`. A state is a named tuple of tensors with the batch as first axis, of windows (`lagwise.ops.window`) and
    of other states; `lagwise.mixers.state` selects and joins its rows and gives it fixed shapes for graphs.

    `mix` gets rows of one document. In a stream, padding only comes before the first token of a row. If the class
    declares it (`takes_times`, `takes_shards`), the layout may have:

    - ``token_time``, the time of each token, which is 0 at padding, where a state must stay as it is. With times of 1
      the outputs are those without times.
    - ``shard``: whole rows, which may be packed, are split between processes, and x is this process's shard. The
      outputs are those of the whole rows, and so are all gradients, where those of parameters are added over the
      processes.

    The contract tests in ``tests/mixers`` check all forms for every entry of the table.

    >>> class Sum(Mixer):  # sum of all tokens so far
    ...     def mix(self, x, state, layout):
    ...         return x.cumsum(1), None
    >>> Sum(2, causal=True)(torch.ones(1, 3, 2))[0, :, 0].tolist()
    [1.0, 2.0, 3.0]
    """

    #: whether it mixes over the grid of an image (`Layout.grid`): it then takes no plain sequences and is never causal
    needs_grid: ClassVar[bool] = False
    #: the directions that it supports: True is causal, False two-sided
    directions: ClassVar[tuple[bool, ...]] = (True, False)
    #: whether a causal one has a streaming state
    streams: ClassVar[bool] = True
    #: whether `mix` reads ``layout.token_time``
    takes_times: ClassVar[bool] = False
    #: whether `mix` reads ``layout.shard``, or leaves it to its parts
    takes_shards: bool = False
    #: whether it is in continuous time, apart from its kernel, so that ``token_time`` may be other than 1
    any_rate: bool = False
    #: time from token to token, relative to that for which the parameters are
    token_time: float = 1.0
    #: whether its own state, apart from those of mixers inside, grows with the text: a step then has no fixed shapes to
    #: compile or export
    grows: bool = False
    #: whether it computes in float64 whatever its parameters' dtype, which Apple's GPUs do not have
    needs_float64: bool = False

    def __init__(self, channels: int, causal: bool):
        super().__init__(channels)
        if causal not in self.directions:
            have, other = ("causal", "two-sided")[:: 1 if causal else -1]
            raise ValueError(f"{type(self).__name__} has no {have} form: build it with causal={not causal}, {other}")
        self.channels = channels
        self.causal = causal
        self.max_length: int | None = None  # longest document in tokens; None for any

    def _whole(self, x: Tensor, layout: Layout) -> Tensor:
        if layout.token_time is not None and layout.shard is not None:
            raise ValueError("tokens with times of their own cannot be in rows that are split between processes")
        if layout.by_row and x.shape[1] > 1:
            return self._mix_rows(x, layout)
        if layout.token_time is not None:
            self.require_times()
        elif layout.shard is not None:
            self.require_shards()
        mix = lambda x, layout: self.mix(x, None, layout)[0]  # noqa: E731
        return per_document(mix, x, layout) if layout.shard is None else mix(x, layout)

    @torch.compiler.disable  # groups of rows with one time depend on values
    def _mix_rows(self, x: Tensor, layout: Layout) -> Tensor:
        """`mix` for rows that have one time each for all their tokens: of rows of one time, by kernels of that step."""
        for part in self.modules():
            if isinstance(part, Mixer | LagKernel) and not part.any_rate:
                raise ValueError(
                    f"{type(part).__name__} counts tokens, whose time therefore cannot differ from row to row; "
                    f"{_CONTINUOUS}"
                )
        result: Tensor | None = None
        for time, rows, own in layout.rows_by_time:
            with stepped(self, time):
                y, _ = self.mix(x[rows], None, own)
            result = y.new_zeros(len(x), *y.shape[1:]) if result is None else result
            result = result.index_copy(0, rows, y)
        assert result is not None
        return result

    def _next(self, x: Tensor, state: Any, layout: Layout) -> tuple[Tensor, Any]:
        if layout.by_row:
            assert layout.token_time is not None
            layout = Layout(layout.mask, token_time=layout.token_time.expand(-1, x.shape[1]))
        if layout.token_time is not None:
            self.require_times()
        elif layout.mask is not None:
            return padded_prefill(partial(_of_rows, self.mix), x, state, layout)
        elif x.shape[1] == 1:
            y, state = _of_rows(self.mix_token, x[:, 0], state)
            return y[:, None], state
        return _of_rows(self.mix, x, state, layout)

    def step(self, x: Tensor, state: Any, token_time: Tensor | None = None) -> tuple[Tensor, Any]:
        """Mix one token. Returns its output and the state after it.

        Shapes: x and the output ``(batch, channels)``, and token_time ``(batch,)``, as in `Layout`, without a dimension
        of length; `prefill` takes ``(batch, length, channels)``. ValueError for another shape, and as in `forward`.
        """
        if x.dim() != 2 or x.shape[1] != self.channels:
            raise ValueError(
                f"step takes one token (batch, {self.channels}), got {tuple(x.shape)}; prefill takes several"
            )
        if token_time is not None:
            return super().step(x, state, token_time)
        return _of_rows(self.mix_token, x, state)

    def mix_token(self, x: Tensor, state: Any) -> tuple[Tensor, Any]:
        """`step` for checked arguments: a pure function of tensors, in real arithmetic, which keeps the shapes of a
        state of fixed shapes. Eager streams, compiled steps and exported files run it. By default, `mix` of one
        token."""
        y, state = self.mix(x[:, None], state, Layout())
        return y[:, 0], state

    @property
    def counts_tokens(self) -> str | None:
        """The part that counts tokens, so that these have no times of their own; None if there is none."""
        return None if self.takes_times else type(self).__name__

    def require_times(self) -> None:
        """Raise ValueError if it, or a mixer inside, counts tokens."""
        for part in mixers_of(self):
            if (name := part.counts_tokens) is not None:
                raise ValueError(f"{name} counts tokens, which therefore have no times of their own; {_CONTINUOUS}")

    def require_shards(self) -> None:
        """Raise ValueError if it, or a mixer inside, has no exact form for rows that are split between processes."""
        for part in mixers_of(self):
            if not part.takes_shards:
                raise ValueError(
                    f"{type(part).__name__} cannot mix a sequence that is split between processes: split the batch "
                    "instead (data parallelism)"
                )

    def require_fixed(self, *, online: bool = False) -> None:
        """Raise ValueError if the state grows with the text. online: whether exact kernels keep their long blocks
        outside the step, so that they may be of any support."""
        for part in mixers_of(self)[1:]:
            part.require_fixed(online=online)
        if self.grows:
            raise ValueError(
                f"{type(self).__name__} has a streaming state that grows with the text, so it has no step of fixed "
                "shapes; stream it with `prefill` and `step`"
            )

    def require_causal(self) -> None:
        """Raise ValueError if it has no streaming state."""
        if not self.streams:
            raise ValueError(f"{type(self).__name__} does not stream: it has no state; run it on whole sequences")
        if not self.causal:
            remedy = "" if True not in self.directions else "; build it with causal=True"
            raise ValueError(f"{type(self).__name__} is bidirectional: it has no streaming state{remedy}")

    def init_state(self, batch_size: int) -> Any:
        """The state before the first token. ValueError for a bidirectional mixer."""
        self.require_causal()
        raise NotImplementedError

    def reset_parameters(self) -> None:
        """Draw the parameters that the mixer holds directly; its layers and kernels draw theirs."""


def _of_rows(mix: Callable[..., tuple[Tensor, Any]], x: Tensor, state: Any, *layout: Layout) -> tuple[Tensor, Any]:
    """``mix(x, state, *layout)``. ValueError if x and the state have different numbers of rows."""
    try:
        y, after = mix(x, state, *layout)
    except RuntimeError:  # finding the rows of a state takes time, so only where tensors do not fit together
        require_rows(x, state)
        raise
    if y.shape[0] != x.shape[0]:
        require_rows(x, state)
    return y, after


@contextmanager
def stepped(mixer: Mixer, time: float) -> Iterator[None]:
    """While it lasts, the steps of a mixer and of all its parts are ``time`` times as long."""
    parts = [part for part in mixer.modules() if isinstance(part, Mixer | LagKernel)]
    before = [part.token_time for part in parts]
    try:
        for part in parts:
            part.token_time *= time
        yield
    finally:
        for part, own in zip(parts, before, strict=True):
            part.token_time = own


def mixers_of(mixer: Mixer) -> list[Mixer]:
    """A mixer and those that it is made of, such as the Toeplitz mixer of a gated unit."""
    return [part for part in mixer.modules() if isinstance(part, Mixer)]


def check_heads(channels: int, heads: int) -> None:
    """Raise ValueError unless heads divides the channels."""
    if heads < 1 or channels % heads:
        raise ValueError(f"heads must divide the {channels} channels, got {heads}")


def padded_prefill(prefill: Callable[..., Any], x: Tensor, state: Any, layout: Layout) -> tuple[Tensor, Any]:
    """The next tokens ``(batch, length, ...)`` of rows with padding anywhere, as if each row had only its real tokens.
    prefill: ``(x, state, layout) -> (y, state)`` for padding before the first token of rows or, without a mask, for
    none."""
    mask = layout.mask
    assert mask is not None
    if traced():
        return prefill(x, state, layout)
    count = mask.sum(1)
    if bool((count == mask.shape[1]).all()):
        return prefill(x, state, Layout())
    if bool((mask[:, 1:] >= mask[:, :-1]).all()):  # no padding follows a token
        padded = count < mask.shape[1]
        begun = (((part[:, None] != 0).flatten(1).any(1) & padded.to(part.device)).any() for part in leaves(state))
        if not any(map(bool, begun)):  # nor comes between two: a state is zero before the first token of a row
            return prefill(x, state, layout)
    # Rows with equally many tokens make a batch, without their padding.
    y, rows, states = None, [], []
    for n in count.unique().tolist():
        chosen = (count == n).nonzero()[:, 0]
        part, real = select_rows(state, chosen), mask[chosen]
        if n:
            outputs, part = prefill(x[chosen][real].unflatten(0, (len(chosen), n)), part, Layout())
            y = outputs.new_zeros(*mask.shape, *outputs.shape[2:]) if y is None else y
            index = real.nonzero()
            y = y.index_put((chosen[index[:, 0]], index[:, 1]), outputs.flatten(0, 1))
        rows.append(chosen)
        states.append(part)
    after = select_rows(join_states(states), torch.cat(rows).argsort())
    return torch.zeros_like(x) if y is None else y, after


def require_rows(x: Tensor, state: Any) -> None:
    """Raise ValueError if x and a state have different numbers of rows."""
    rows = next((len(part) for part in leaves(state)), None)
    if rows is not None and rows != x.shape[0]:
        raise ValueError(f"tokens must have the stream's {rows} rows, got {x.shape[0]}")


def checked(x: Tensor, layout: Layout, channels: int) -> Tensor:
    """Return x with zeros at padding, so that the values there affect no weight, output or gradient. ValueError if a
    shape is wrong."""
    if x.dim() != 3 or x.shape[2] != channels or x.shape[1] == 0:
        raise ValueError(f"x must be (batch, length >= 1, channels={channels}), got {tuple(x.shape)}")
    layout.check(*x.shape[:2])
    return masked(x, layout.mask)


def masked(x: Tensor, mask: Tensor | None) -> Tensor:
    """Return x with zeros at padding, even where it is NaN."""
    return x if mask is None else x.masked_fill(~mask.bool()[..., None], 0)
