"""Token mixers, one a file, behind one contract (`lagwise.mixers.base.Mixer`)."""

from lagwise.mixers.attention import AttentionMixer
from lagwise.mixers.base import Mixer
from lagwise.mixers.gtu import GTU
from lagwise.mixers.toeplitz import ToeplitzMixer

MIXERS: dict[str, type[Mixer]] = {
    "toeplitz": ToeplitzMixer,
    "gtu": GTU,
    "attention": AttentionMixer,
}

__all__ = ["GTU", "MIXERS", "AttentionMixer", "Mixer", "ToeplitzMixer"]
