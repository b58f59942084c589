"""The pre-norm residual block of TNN and of the Transformer."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from torch import Tensor, nn

from lagwise.blocks.channel import CHANNEL_MIXERS
from lagwise.mixers import MIXERS
from lagwise.tables import build, known

NORMS = {
    "rms": lambda channels: nn.RMSNorm(channels, eps=1e-6, elementwise_affine=False),
    "layer": lambda channels: nn.LayerNorm(channels),
}


class PreNormBlock(nn.Module):
    """``x + mix_tokens(norm x)``, then ``x + mix_channels(norm x)`` (TNN §3.1 and fig. 2).

    Options: token_mixer and channel_mixer, specs from their tables; norm, ``rms`` (no parameters, as TNN's published
    size requires) or ``layer``. The structures of TNN table 7 are three choices of the two specs::

        GTU + GLU        token_mixer={"name": "gtu"},       channel_mixer={"name": "glu"}      (the default)
        GTU only         token_mixer={"name": "gtu"},       channel_mixer={"name": "none"}
        attention + GLU  token_mixer={"name": "attention"}, channel_mixer={"name": "glu"}

    and a Transformer is ``attention`` with ``mlp``. Streams like its token mixer: the rest is per token.
    """

    def __init__(
        self,
        channels: int,
        *,
        causal: bool = True,
        token_mixer: Mapping[str, Any] | None = None,
        channel_mixer: Mapping[str, Any] | None = None,
        norm: str = "rms",
    ):
        super().__init__()
        make_norm = NORMS[known(norm, NORMS, "norm")]
        self.token_norm = make_norm(channels)
        self.token_mixer = build(MIXERS, token_mixer or {"name": "gtu"}, channels, what="token mixer", causal=causal)
        spec = channel_mixer or {"name": "glu"}
        if spec == {"name": "none"}:
            self.channel_norm, self.channel_mixer = None, None
        else:
            self.channel_norm = make_norm(channels)
            self.channel_mixer = build(CHANNEL_MIXERS, spec, channels, what="channel mixer")

    def forward(self, x: Tensor, *, mask: Tensor | None = None, seq_idx: Tensor | None = None) -> Tensor:
        return self._channels(x + self.token_mixer(self.token_norm(x), mask=mask, seq_idx=seq_idx))

    def init_state(self, batch_size: int) -> Any:
        return self.token_mixer.init_state(batch_size)

    def prefill(self, x: Tensor, state: Any, *, mask: Tensor | None = None) -> tuple[Tensor, Any]:
        mixed, state = self.token_mixer.prefill(self.token_norm(x), state, mask=mask)
        return self._channels(x + mixed), state

    def step(self, x: Tensor, state: Any) -> tuple[Tensor, Any]:
        mixed, state = self.token_mixer.step(self.token_norm(x), state)
        return self._channels(x + mixed), state

    def _channels(self, x: Tensor) -> Tensor:
        if self.channel_mixer is None or self.channel_norm is None:
            return x
        return x + self.channel_mixer(self.channel_norm(x))
