"""Features of a series beside the hidden states of its classifier."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from lagwise.models.linear.convolutions import Convolutions, ConvolutionState
from lagwise.ops.bilinear import traced

_LEAST = 0.01  # added to deviations of shares: where a threshold is hardly ever exceeded, or always, one is near 0
_MOST_ROWS = 1000  # of which these are taken
_MOST_KNOWN = 1 << 25  # values that are kept of series that were read


class Shares(nn.Module):
    """Shares of a series' samples at which fixed dilated convolutions exceed thresholds, less their means and over
    their deviations. Their thresholds, means and deviations are those of training series (`prepare`); no gradient
    passes through them.

    Formula: ``(f - mean(f)) / (std(f) + 0.01)`` with the features f of `Convolutions`.

    Shapes: input_values ``(batch, steps * stride, features)``; mask ``(batch, steps)``, true where a step is real, or
    None; result ``(batch, size)``. All samples of a real step count.

    Args:
        inputs: Options of `ValueInput`: features, stride, mean and std.
        options: Those of `Convolutions`: dilations and thresholds.

    Source: the features are MiniRocket's (Dempster, Schmidt and Webb 2021); trained layers beside them are ours.
    """

    mean: Tensor
    std: Tensor

    def __init__(self, inputs: str | Mapping[str, Any], options: Mapping[str, Any]):
        super().__init__()
        given: Mapping[str, Any] = {} if isinstance(inputs, str) else inputs
        self.stride: int = given.get("stride", 1)
        mean, std = given.get("mean"), given.get("std")
        self.convolutions = Convolutions(given.get("features", 1), **options, mean=mean, std=std)
        self.size = self.convolutions.size
        self.register_buffer("mean", torch.zeros(self.size))
        self.register_buffer("std", torch.ones(self.size))
        self._known: dict[bytes, Tensor] = {}  # by a series' samples: training reads the same ones many times

    @torch.no_grad()
    def prepare(self, series: Sequence[Tensor], seed: int) -> None:
        """Take thresholds, means and deviations from training series ``(length, features)``."""
        self.convolutions.prepare(series, seed)
        chosen = np.random.default_rng(seed).permutation(len(series))[:_MOST_ROWS]
        found = torch.cat([self.convolutions(series[i][None]) for i in chosen.tolist()])
        self.mean.copy_(found.mean(0))
        self.std.copy_(found.std(0, correction=0))
        self._known.clear()

    def _load_from_state_dict(self, *args: Any, **kwargs: Any) -> None:
        super()._load_from_state_dict(*args, **kwargs)
        self._known.clear()

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_known": {}}  # not what was read

    @torch.no_grad()
    def forward(self, input_values: Tensor, mask: Tensor | None = None) -> Tensor:
        samples = None if mask is None else mask.bool().repeat_interleave(self.stride, 1)
        if not self.training or traced() or input_values.device.type != "cpu":  # a GPU would wait for the keys
            return self._standardised(self.convolutions(input_values, samples))
        rows = [x if samples is None else x[samples[i]] for i, x in enumerate(input_values)]
        keys = [row.contiguous().view(torch.uint8).numpy().tobytes() for row in rows]  # bfloat16 too
        if len(self._known) + len(rows) > _MOST_KNOWN // self.size:
            self._known.clear()
        if new := [i for i, key in enumerate(keys) if key not in self._known]:
            found = self.convolutions(input_values[new], None if samples is None else samples[new])
            self._known.update(zip([keys[i] for i in new], self._standardised(found), strict=True))
        return torch.stack([self._known[key] for key in keys])

    def start(self, batch: int) -> ConvolutionState:
        """The state before a stream's first sample."""
        return self.convolutions.start(batch)

    @torch.no_grad()
    def step(self, samples: Tensor, state: ConvolutionState) -> tuple[Tensor, ConvolutionState]:
        """The result after each of the next steps ``(batch, n * stride, features)``: ``(batch, n, size)``; and the
        state after them."""
        found, state = self.convolutions.step(samples, state)
        return self._standardised(found[:, self.stride - 1 :: self.stride]), state

    def _standardised(self, found: Tensor) -> Tensor:
        return (found - self.mean) / (self.std + _LEAST)
