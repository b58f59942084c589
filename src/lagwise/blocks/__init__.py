"""Residual blocks, one per file."""

from lagwise.blocks.chain import LINKS, ChainBlock
from lagwise.blocks.mega import MegaBlock, QueryKey
from lagwise.blocks.megalodon import MegalodonBlock
from lagwise.blocks.prenorm import CHANNEL_MIXERS, GLU, MLP, Block, PreNormBlock

BLOCKS: dict[str, type[Block]] = {**LINKS, "chain": ChainBlock}

__all__ = [
    "BLOCKS",
    "CHANNEL_MIXERS",
    "GLU",
    "MLP",
    "Block",
    "ChainBlock",
    "MegaBlock",
    "MegalodonBlock",
    "PreNormBlock",
    "QueryKey",
]
