"""Token mixers, one a file, behind one contract (`lagwise.mixers.base.Mixer`)."""

from lagwise.mixers.attention import AttentionMixer
from lagwise.mixers.base import Mixer
from lagwise.mixers.chunked_attention import ChunkedAttention, ChunkedAttentionMixer
from lagwise.mixers.ema import EMAMixer
from lagwise.mixers.grid import GridMixer, GTU2d
from lagwise.mixers.gtu import GTU
from lagwise.mixers.tcn import TCNMixer
from lagwise.mixers.toeplitz import ToeplitzMixer

MIXERS: dict[str, type[Mixer]] = {
    "toeplitz": ToeplitzMixer,
    "gtu": GTU,
    "attention": AttentionMixer,
    "ema": EMAMixer,
    "tcn": TCNMixer,
    "chunked_attention": ChunkedAttentionMixer,
    "grid": GridMixer,
    "gtu2d": GTU2d,
}

__all__ = [
    "GTU",
    "MIXERS",
    "AttentionMixer",
    "ChunkedAttention",
    "ChunkedAttentionMixer",
    "EMAMixer",
    "GTU2d",
    "GridMixer",
    "Mixer",
    "TCNMixer",
    "ToeplitzMixer",
]
