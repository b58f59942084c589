"""Mixing over a grid, such as the patches of an image, along its rows and along its columns."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch.nn.functional as F
from torch import Tensor, nn

from lagwise.mixers.base import Mixer, masked
from lagwise.mixers.toeplitz import ToeplitzMixer, gated_width
from lagwise.ops import Layout
from lagwise.ops.grid import gated_grid_product
from lagwise.ops.tokens import apply_linear, silu_product
from lagwise.tables import build


class GridMixer(Mixer):
    """Two token mixers of any kind, one for each axis of a grid: ``rows(x) + columns(x)``.

    Formula: ``y[i, j] = rows(x[i, :])[j] + columns(x[:, j])[i]``: rows are a batch for one mixer, and columns for the
    other.

    Options:
        rows, columns: specs of token mixers (default ``toeplitz``).

    The grid comes with the layout (`lagwise.ops.Layout.grid`). A mask may be true at any positions, such as those of
    smaller images in a batch of several sizes. ValueError for causal=True, because a grid has no causal order, and in
    the forward pass for tokens without a grid.

    Source: SKI-TNN §5.2 (images as sequences in each dimension).
    """

    needs_grid = True
    directions = (False,)

    def __init__(
        self,
        channels: int,
        *,
        causal: bool = False,
        rows: Mapping[str, Any] | None = None,
        columns: Mapping[str, Any] | None = None,
    ):
        super().__init__(channels, causal)
        self.rows = _axis_mixer(rows, channels, "rows")
        self.columns = _axis_mixer(columns, channels, "columns")

    def mix(self, x: Tensor, state: None, layout: Layout) -> tuple[Tensor, None]:
        return _along_both(self, x, layout), None


class GTU2d(Mixer):
    """Gated Toeplitz unit over a grid: ``W_o (silu(W_u x) * (TNO_rows(v) + TNO_columns(v)))``, ``v = silu(W_v x)``.

    Options:
        expansion: width of the gate relative to the channels.
        kernel: spec of a lag kernel.
        engine: as in `ToeplitzMixer`.

    Each axis has its own kernel, built from the same spec. Grid, masks and errors as in `GridMixer`.

    Source: TNN §3.1 and fig. 2; SKI-TNN §5.2 (images as sequences in each dimension).

    >>> from lagwise.ops import Layout
    >>> images = torch.randn(2, 6 * 8, 4)  # 6 rows of 8 patches, row by row
    >>> GTU2d(4)(images, layout=Layout(grid=(6, 8))).shape
    torch.Size([2, 48, 4])
    """

    needs_grid = True
    directions = (False,)

    def __init__(
        self,
        channels: int,
        *,
        causal: bool = False,
        expansion: float = 3,
        kernel: Mapping[str, Any] | None = None,
        engine: str | Mapping[str, Any] = "auto",
    ):
        super().__init__(channels, causal)
        width = gated_width(channels, expansion)
        self.gate = nn.Linear(channels, width)
        self.value = nn.Linear(channels, width)
        self.rows = ToeplitzMixer(width, causal=False, kernel=kernel, engine=engine)
        self.columns = ToeplitzMixer(width, causal=False, kernel=kernel, engine=engine)
        self.out = nn.Linear(width, channels)

    def mix(self, x: Tensor, state: None, layout: Layout) -> tuple[Tensor, None]:
        height, width = layout.require_grid(type(self).__name__)
        if self.rows.engine != "auto":
            return self.out(silu_product(self.gate(x), _along_both(self, F.silu(self.value(x)), layout))), None
        rows, columns = self.rows.taps(width), self.columns.taps(height)
        if layout.mask is None:
            (gate, value), biases = apply_linear(x, self.gate, self.value)
        else:  # the activation applies to the value with its bias
            gate, value, biases = self.gate(x), masked(self.value(x), layout.mask), None
        mixed = gated_grid_product(gate, value, rows, columns, width, biases, overwrite_gate=biases is not None)
        return self.out(mixed), None


def _along_both(mixer: GridMixer | GTU2d, x: Tensor, layout: Layout) -> Tensor:
    """The sum of the outputs of both axes' mixers."""
    grid = x.unflatten(1, layout.require_grid(type(mixer).__name__))
    rows, columns = layout.axes
    along = mixer.rows(grid.flatten(0, 1), layout=rows).reshape(grid.shape)
    across = mixer.columns(grid.transpose(1, 2).flatten(0, 1), layout=columns).unflatten(0, grid.shape[:3:2])
    return (along + across.transpose(1, 2)).flatten(1, 2)


def _axis_mixer(spec: Mapping[str, Any] | None, channels: int, axis: str) -> Mixer:
    from lagwise.mixers import MIXERS  # imported here, because the table contains the mixers of this file

    table = {name: mixer for name, mixer in MIXERS.items() if not mixer.needs_grid}
    return build(table, {"name": "toeplitz"} if spec is None else spec, channels, what=f"mixer of {axis}", causal=False)
