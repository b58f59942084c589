"""The pre-norm residual block of TNN and of the Transformer."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from torch import Tensor, nn

from lagwise.blocks.channel import Block, ChannelLayer
from lagwise.blocks.norm import make_norm, residual_normed
from lagwise.mixers import MIXERS
from lagwise.ops import Layout
from lagwise.tables import build


class PreNormBlock(Block):
    """``x + mix_tokens(norm x)``, then ``x + mix_channels(norm x)`` (TNN §3.1 and fig. 2).

    Options:
        token_mixer: spec of a token mixer; by default ``gtu``.
        channel_mixer: spec of a channel mixer; by default ``glu``, ``none`` for none.
        norm: by name or by name and options: ``rms`` (no parameters, as TNN's published size requires), ``scale``,
            ``layer``, ``batch`` or ``none``.
        dropout: rate for both mixers' outputs in training.

    The structures of TNN table 7 are three choices of the two specs::

        GTU + GLU        token_mixer={"name": "gtu"},       channel_mixer={"name": "glu"}      (the default)
        GTU only         token_mixer={"name": "gtu"},       channel_mixer={"name": "none"}
        attention + GLU  token_mixer={"name": "attention"}, channel_mixer={"name": "glu"}

    A Transformer is ``attention`` with ``mlp``; ``ema`` or ``tcn`` with ``mlp`` are the stacks without attention of
    TCNCA tables 4 and 5.

    Streams like its token mixer: everything else is per token.

    >>> block = PreNormBlock(8, token_mixer={"name": "gtu", "kernel": {"name": "rpe"}}, channel_mixer={"name": "glu"})
    >>> block(torch.randn(2, 100, 8)).shape
    torch.Size([2, 100, 8])
    """

    def __init__(
        self,
        channels: int,
        *,
        causal: bool = True,
        token_mixer: Mapping[str, Any] | None = None,
        channel_mixer: Mapping[str, Any] | None = None,
        norm: str | Mapping[str, Any] = "rms",
        dropout: float = 0.0,
    ):
        super().__init__(channels)
        self.token_norm = make_norm(norm, channels)
        mixer = {"name": "gtu"} if token_mixer is None else token_mixer
        self.token_mixer = build(MIXERS, mixer, channels, what="token mixer", causal=causal)
        self.dropout = nn.Dropout(dropout)
        self.channels = ChannelLayer(
            channels, {"name": "glu"} if channel_mixer is None else channel_mixer, norm, dropout
        )

    def mix(self, x: Tensor, state: Any, layout: Layout) -> tuple[Tensor, Any]:
        x, h = residual_normed(self.token_norm, x, layout.mask)
        mixed, state = self.token_mixer.run(h, state, layout)
        return self.channels(x, layout.mask, branch=self.dropout(mixed)), state

    def init_state(self, batch_size: int) -> Any:
        return self.token_mixer.init_state(batch_size)
