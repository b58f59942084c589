"""FNet's Fourier transform of tokens and channels."""

from __future__ import annotations

import torch
from torch import Tensor

from lagwise.mixers.base import Mixer
from lagwise.ops import Layout
from lagwise.ops.packing import from_first_token, row_extents
from lagwise_papers.family.ragged_dft import ragged_dft


class FNetMixer(Mixer):
    """``Re F_tokens F_channels x``, with F the discrete Fourier transform: no options and no parameters.

    A row is transformed over its own tokens; the published code transforms its padding too. Two-sided only.

    Source: Lee-Thorp et al. 2022, "FNet: Mixing Tokens with Fourier Transforms", §3.2.
    """

    directions = (False,)
    takes_shards = True

    def __init__(self, channels: int, *, causal: bool = False):
        super().__init__(channels, causal)

    def mix(self, x: Tensor, state: None, layout: Layout) -> tuple[Tensor, None]:
        z = torch.fft.fft(x.to(torch.promote_types(x.dtype, torch.float32)), dim=2)
        y = _over_tokens(z, layout) if layout.shard is None else layout.shard.by_channels(_over_tokens, z)
        return y.to(x.dtype), None


def _over_tokens(z: Tensor, layout: Layout) -> Tensor:
    return from_first_token(_transformed, z, layout.mask)


def _transformed(z: Tensor, mask: Tensor | None) -> Tensor:
    y = torch.fft.fft(z, dim=1) if mask is None else ragged_dft(z, row_extents(mask)[1])
    return y.real
