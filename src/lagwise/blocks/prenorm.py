"""The pre-norm residual block of TNN and of the Transformer."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from torch import Tensor, nn

from lagwise.blocks.channel import ChannelLayer
from lagwise.blocks.norm import make_norm
from lagwise.mixers import MIXERS
from lagwise.mixers.base import masked
from lagwise.tables import build


class PreNormBlock(nn.Module):
    """``x + mix_tokens(norm x)``, then ``x + mix_channels(norm x)`` (TNN §3.1 and fig. 2).

    Options: token_mixer and channel_mixer, specs from their tables; norm, ``rms`` (no parameters, as TNN's published
    size requires) or ``layer``; dropout, of both mixers' outputs in training. The structures of TNN table 7 are three
    choices of the two specs::

        GTU + GLU        token_mixer={"name": "gtu"},       channel_mixer={"name": "glu"}      (the default)
        GTU only         token_mixer={"name": "gtu"},       channel_mixer={"name": "none"}
        attention + GLU  token_mixer={"name": "attention"}, channel_mixer={"name": "glu"}

    and a Transformer is ``attention`` with ``mlp``; ``ema`` or ``tcn`` with ``mlp`` are the stacks without attention of
    TCNCA tables 4 and 5. Streams like its token mixer: the rest is per token.
    """

    def __init__(
        self,
        channels: int,
        *,
        causal: bool = True,
        token_mixer: Mapping[str, Any] | None = None,
        channel_mixer: Mapping[str, Any] | None = None,
        norm: str = "rms",
        dropout: float = 0.0,
    ):
        super().__init__()
        self.token_norm = make_norm(norm, channels)
        mixer = {"name": "gtu"} if token_mixer is None else token_mixer
        self.token_mixer = build(MIXERS, mixer, channels, what="token mixer", causal=causal)
        self.dropout = nn.Dropout(dropout)
        self.channels = ChannelLayer(
            channels, {"name": "glu"} if channel_mixer is None else channel_mixer, norm, dropout
        )

    def forward(self, x: Tensor, *, mask: Tensor | None = None, seq_idx: Tensor | None = None) -> Tensor:
        x = masked(x, mask)
        return self.channels(x + self.dropout(self.token_mixer(self.token_norm(x), mask=mask, seq_idx=seq_idx)))

    def init_state(self, batch_size: int) -> Any:
        return self.token_mixer.init_state(batch_size)

    def prefill(self, x: Tensor, state: Any, *, mask: Tensor | None = None) -> tuple[Tensor, Any]:
        x = masked(x, mask)
        mixed, state = self.token_mixer.prefill(self.token_norm(x), state, mask=mask)
        return self.channels(x + self.dropout(mixed)), state

    def step(self, x: Tensor, state: Any) -> tuple[Tensor, Any]:
        mixed, state = self.token_mixer.step(self.token_norm(x), state)
        return self.channels(x + self.dropout(mixed)), state
