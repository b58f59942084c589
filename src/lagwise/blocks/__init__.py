"""Residual blocks, one a file."""

from torch import nn

from lagwise.blocks.channel import CHANNEL_MIXERS, GLU, MLP
from lagwise.blocks.prenorm import PreNormBlock

BLOCKS: dict[str, type[nn.Module]] = {
    "prenorm": PreNormBlock,
}

__all__ = ["BLOCKS", "CHANNEL_MIXERS", "GLU", "MLP", "PreNormBlock"]
