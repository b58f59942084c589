"""The base class of blocks: residual layers that stream as their mixers do."""

from __future__ import annotations

from typing import Any

from torch import Tensor, nn

from lagwise.mixers.base import checked
from lagwise.ops import Layout


class Block(nn.Module):
    """A residual layer on ``(batch, length, channels)``. Abstract: subclasses implement `run`, `init_state` and
    `run_next`.

    As for mixers, the whole sequence at once, chunks of any size, and one token at a time give the same outputs.
    """

    def __init__(self, channels: int):
        super().__init__()
        self.width = channels

    def forward(
        self,
        x: Tensor,
        *,
        mask: Tensor | None = None,
        seq_idx: Tensor | None = None,
        layout: Layout | None = None,
    ) -> Tensor:
        """Process whole sequences; arguments as in `lagwise.mixers.Mixer.forward`. ValueError if a shape is wrong."""
        layout = Layout(mask, seq_idx) if layout is None else layout
        return self.run(checked(x, layout, self.width), layout)

    def run(self, x: Tensor, layout: Layout) -> Tensor:
        """`forward` for checked arguments, with x zero at padding."""
        raise NotImplementedError

    def init_state(self, batch_size: int) -> Any:
        """The state before the first token. ValueError for a bidirectional block."""
        raise NotImplementedError

    def prefill(
        self, x: Tensor, state: Any, *, mask: Tensor | None = None, layout: Layout | None = None
    ) -> tuple[Tensor, Any]:
        """Process the next ``length >= 1`` tokens. Returns their outputs and the state after them; the old state stays
        valid. ValueError if a shape is wrong."""
        layout = Layout(mask) if layout is None else layout
        return self.run_next(checked(x, layout, self.width), state, layout)

    def run_next(self, x: Tensor, state: Any, layout: Layout) -> tuple[Tensor, Any]:
        """`prefill` for checked arguments, with x zero at padding."""
        raise NotImplementedError

    def step(self, x: Tensor, state: Any) -> tuple[Tensor, Any]:
        """Process one token ``(batch, channels)``. Returns its output and the state after it."""
        y, state = self.prefill(x[:, None], state)
        return y[:, 0], state
