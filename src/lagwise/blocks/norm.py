"""Norms of the residual stream."""

from __future__ import annotations

from torch import nn

from lagwise.tables import known

NORMS = {
    "rms": lambda channels: nn.RMSNorm(channels, eps=1e-6, elementwise_affine=False),
    "layer": lambda channels: nn.LayerNorm(channels),
}


def make_norm(name: str, channels: int) -> nn.Module:
    """``rms`` (no parameters, as TNN's published size requires) or ``layer``. ValueError for another name."""
    return NORMS[known(name, NORMS, "norm")](channels)
