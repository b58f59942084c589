"""Megalodon's timestep normalisation: a norm with a state."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from lagwise.mixers.base import Mixer
from lagwise.ops import Layout
from lagwise.ops.recurrence import Moments, moments_so_far, normalised, timestep_norm, token_moments
from lagwise.ops.recurrence.timestep_norm import affine_timestep_norm
from lagwise.tables import check_integer


class TimestepNorm(Mixer):
    """Group norm over the tokens so far: ``weight * (x_t - mean_t) / sqrt(variance_t + epsilon) + bias``.

    It obeys the contract of mixers, because a token's output depends on earlier ones; models and blocks use it as a
    norm. A two-sided one takes the moments of the whole document (not in the paper).

    Options:
        groups: of channels with common moments (Megalodon: 32 or 64). ValueError unless it divides the channels.
        epsilon: added to the variance.

    Streams in constant memory: the state is a mean and a variance for each group, and the number of tokens.

    Source: Megalodon (Ma et al. 2024), §3.2.

    >>> TimestepNorm(4, groups=2)(torch.randn(2, 100, 4)).shape
    torch.Size([2, 100, 4])
    """

    needs_float64 = True
    takes_shards = True

    def __init__(self, channels: int, *, causal: bool = True, groups: int = 1, epsilon: float = 1e-5):
        super().__init__(channels, causal)
        if channels % check_integer("groups", groups):
            raise ValueError(f"groups must divide the {channels} channels, got {groups}")
        if not epsilon > 0:
            raise ValueError(f"epsilon must be a positive number, got {epsilon!r}")
        self.groups, self.epsilon = groups, epsilon
        self.weight, self.bias = (nn.Parameter(torch.empty(channels)) for _ in range(2))
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Set the weight to 1 and the bias to 0."""
        nn.init.ones_(self.weight)
        nn.init.zeros_(self.bias)

    def mix(self, x: Tensor, state: Moments | None, layout: Layout) -> tuple[Tensor, Any]:
        if layout.shard is not None:
            return self._mix_shard(x, layout), None
        if state is None and layout.mask is None and self.causal:
            return affine_timestep_norm(x, self.weight, self.bias, self.groups, self.epsilon), None
        state = self._start(x.shape[0]) if state is None else state
        y, after = timestep_norm(x, state, mask=layout.mask, epsilon=self.epsilon, whole=not self.causal)
        return self._scaled(x, y), after

    def _mix_shard(self, x: Tensor, layout: Layout) -> Tensor:
        inside, tokens = token_moments(x, self.groups)

        def so_far(tokens: Tensor, layout: Layout) -> Tensor:
            each = tokens.unflatten(2, (-1, 2))
            before = self._start(len(each), each.shape[2])
            return moments_so_far(each, before, mask=layout.mask, whole=not self.causal)[0].flatten(2)

        moments = layout.shard.by_channels(so_far, tokens.flatten(2), groups=self.groups).unflatten(2, (-1, 2))
        return self._scaled(x, normalised(inside, tokens, moments, epsilon=self.epsilon).to(x.dtype))

    def init_state(self, batch_size: int) -> Moments:
        self.require_causal()
        return self._start(batch_size)

    def _start(self, batch_size: int, groups: int | None = None) -> Moments:
        dtype = torch.promote_types(self.weight.dtype, torch.float32)
        zeros = self.weight.new_zeros(batch_size, groups or self.groups, 2, dtype=dtype)
        return Moments(zeros, zeros.clone(), zeros.new_zeros(batch_size, dtype=torch.long))

    def _scaled(self, x: Tensor, y: Tensor) -> Tensor:
        return (y * self.weight + self.bias).to(x.dtype)
