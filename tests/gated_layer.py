"""A layer of tokens alone, for tests of what its operations call."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from lagwise.blocks.prenorm import LayerNorm, residual_normed
from lagwise.ops.tokens import apply_linear, linears, silu_product


class GatedLayer(nn.Module):
    """A gated network of tokens between residual norms, of 16 channels: the sum and its norm, side by side."""

    def __init__(self) -> None:
        super().__init__()
        self.norm, self.gate, self.value, self.out = LayerNorm(16), *(nn.Linear(16, 16) for _ in range(3))

    def forward(self, x: Tensor) -> Tensor:
        x, y = residual_normed(self.norm, x, None)
        (gate, value), biases = apply_linear(y, self.gate, self.value)
        return torch.cat(residual_normed(self.norm, x, None, *linears(silu_product(gate, value, biases), self.out)), -1)
