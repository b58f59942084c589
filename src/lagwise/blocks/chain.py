"""Several blocks as one."""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from lagwise.blocks.mega import MegaBlock
from lagwise.blocks.megalodon import MegalodonBlock
from lagwise.blocks.prenorm import Block, PreNormBlock
from lagwise.ops import Layout
from lagwise.tables import build

# The blocks that a chain may contain.
LINKS: dict[str, type[Block]] = {"prenorm": PreNormBlock, "mega": MegaBlock, "megalodon": MegalodonBlock}

NEW_SHARES = (1.0, 0.0)  # of the block before and of the chain's input


class ChainState(NamedTuple):
    """The states of the blocks."""

    states: tuple[Any, ...]


class ChainBlock(Block):
    """A sequence of blocks, for hybrids of any mixers.

    Options:
        blocks: list of specs.
        input_residual: add the chain's input again before each block but the first: block i reads
            ``a_i h_{i-1} + b_i h_0`` with learned numbers, 1 and 0 in a new model. What the input has of embeddings,
            such as those of n-grams, then does not have to pass through all blocks.
        block_embeddings: add an embedding of its own of each token before each block but the first, as per-layer
            embeddings of language models do (Gemma 3n). For models of tokens: x has ``len(blocks) * channels``
            channels, the input and what is added before block 2, 3, and so on.

    TCNCA-simple (TCNCA fig. 4), a TCN, then attention in chunks, then an MLP, each with a plain residual, is::

        {"name": "chain", "blocks": [
            {"name": "prenorm", "token_mixer": {"name": "tcn"}, "channel_mixer": {"name": "none"}},
            {"name": "prenorm", "token_mixer": {"name": "chunked_attention"}, "channel_mixer": {"name": "mlp"}}]}

    ValueError unless it is a list of at least one block. Streams as its blocks do. Gradient checkpointing keeps the
    input of every block, and recomputes one block at a time.
    """

    undecayed = ("shares",)  # a and b of the blocks but the first

    def __init__(
        self,
        channels: int,
        *,
        causal: bool = True,
        blocks: Sequence[Mapping[str, Any]] = (),
        input_residual: bool = False,
        block_embeddings: bool = False,
    ):
        inputs = max(1, len(blocks)) if block_embeddings else 1
        super().__init__(inputs * channels)
        self.inputs = inputs
        if isinstance(blocks, str | Mapping) or not blocks:
            raise ValueError(f"blocks must be a list of at least one block, got {blocks!r}")
        self.blocks = nn.ModuleList(
            build(LINKS, spec, channels, what=f"block {index} of the chain", causal=causal)
            for index, spec in enumerate(blocks)
        )
        self.shares = nn.Parameter(torch.tensor([NEW_SHARES] * (len(blocks) - 1))) if input_residual else None
        self.gradient_checkpointing = False
        self._gradient_checkpointing_func: Callable[..., Tensor] | None = None  # both are set by transformers

    def mix(self, x: Tensor, state: ChainState | None, layout: Layout) -> tuple[Tensor, Any]:
        recomputed = self._gradient_checkpointing_func if self.gradient_checkpointing and self.training else None
        x, *own = x.chunk(self.inputs, -1)
        first, after = x, []
        states = [None] * len(self.blocks) if state is None else state.states
        for index, (block, before) in enumerate(zip(self._links(), states, strict=True)):
            if self.shares is not None and index > 0:
                of_last, of_first = self.shares[index - 1].to(x.dtype)
                x = of_last * x + of_first * first
            if own and index > 0:
                x = x + own[index - 1]
            if before is None and recomputed is not None:
                x = recomputed(functools.partial(block, layout=layout), x)
            else:
                x, before = block.run(x, before, layout)
            after.append(before)
        return x, None if state is None else ChainState(tuple(after))

    def init_state(self, batch_size: int) -> ChainState:
        return ChainState(tuple(block.init_state(batch_size) for block in self._links()))

    def _links(self) -> list[Any]:
        return list(self.blocks)
