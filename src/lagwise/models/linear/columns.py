"""Features of the rows of a table: its columns, and which thresholds each exceeds."""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
from torch import Tensor

from lagwise.models.linear.scaling import DenseFeatures
from lagwise.tables import check_integer

_LEVELS = 15  # maximum thresholds of each column
_MAX_LEVELS = 2000  # maximum thresholds of all columns together


class ColumnsState(NamedTuple):
    """State of a stream: sums of its features ``(batch, size)``, and the number of its samples ``(batch,)``."""

    total: Tensor
    seen: Tensor


class Columns(DenseFeatures):
    """The standardised columns of a table, and which thresholds each exceeds, so that a linear map of them is a smooth
    line and a step function of each column, without products of columns.

    Formula: ``mean_t z_{t,c}`` and ``mean_t [z_{t,c} > b_{c,j}]``, where z is a standardised column c of the samples t
    of a row. A row of a table is a series of one sample.

    Shapes: x ``(batch, length, channels)``; mask ``(batch, length)``, true at samples, or None; result
    ``(batch, size)``: the columns first. Padding has no effect.

    Args:
        channels: Number of columns.
        levels: Thresholds of each column; 0 for none.
        mean: Mean of each column, by which it is standardised.
        std: Standard deviation of each column, by which it is standardised.

    Source: an additive model with steps (Hastie and Tibshirani 1986) at quantiles of the rows.
    """

    of_levels = ("biases",)

    def __init__(
        self, channels: int, *, levels: int = 0, mean: list[float] | None = None, std: list[float] | None = None
    ):
        super().__init__()
        self.channels, self.levels = check_integer("channels", channels), check_integer("levels", levels, min=0)
        self.mean, self.std = mean, std  # plain lists: buffers would be lost when a model is loaded via the meta device
        self.plain, self.size = channels, channels * (1 + levels)
        self.register_buffer("biases", torch.zeros(channels, levels))

    @staticmethod
    def plan(channels: int) -> dict[str, Any]:
        """Choose the number of thresholds per column: fewer where there are many columns."""
        return {"levels": min(_LEVELS, _MAX_LEVELS // channels)}

    @torch.no_grad()
    def prepare(self, x: Tensor) -> None:
        """Take thresholds from rows ``(rows, channels)``: quantiles of each column."""
        ordered = self._scaled(x).sort(0).values
        shares = torch.arange(1, self.levels + 1, dtype=torch.float64, device=x.device) / (self.levels + 1)
        self.biases.copy_(ordered[(shares * (len(x) - 1)).long()].t())

    def forward(self, x: Tensor, mask: Tensor | None = None) -> Tensor:
        features = self._each(x)
        if mask is None:
            return features.mean(1)
        return (features * mask[..., None]).sum(1) / mask.sum(1, keepdim=True).clamp(min=1)

    def start(self, batch: int) -> ColumnsState:
        """Return the state before a stream's first sample."""
        total = self.biases.new_zeros(batch, self.size, dtype=torch.float64)
        return ColumnsState(total, torch.zeros(batch, dtype=torch.long, device=total.device))

    def step(self, x: Tensor, state: ColumnsState) -> tuple[Tensor, ColumnsState]:
        """Process the next samples ``(batch, n, channels)``. Returns the features after each of them, ``(batch, n,
        size)``, and the next state."""
        totals = state.total[:, None] + self._each(x).double().cumsum(1)
        seen = state.seen[:, None] + torch.arange(1, x.shape[1] + 1, device=x.device)
        return (totals / seen[..., None]).to(self.biases.dtype), ColumnsState(totals[:, -1], seen[:, -1])

    def _each(self, x: Tensor) -> Tensor:
        """Compute the features of each sample, ``(batch, length, size)``."""
        z = self._scaled(x)
        return torch.cat([z, (z[..., None] > self.biases).flatten(-2).to(z.dtype)], -1)
