"""Token mixers, one per file, with one contract (`lagwise.mixers.base.Mixer`)."""

from lagwise.mixers.afno import AFNO2d, AFNOMixer
from lagwise.mixers.attention import AttentionMixer
from lagwise.mixers.base import Mixer
from lagwise.mixers.chunked_attention import ChunkedAttention, ChunkedAttentionMixer
from lagwise.mixers.ema import EMAMixer
from lagwise.mixers.flash import FlashMixer
from lagwise.mixers.fnet import FNetMixer
from lagwise.mixers.gfnet import GFNetMixer
from lagwise.mixers.gmlp import GMLPMixer
from lagwise.mixers.grid import GridMixer, GTU2d
from lagwise.mixers.gss import GSSMixer
from lagwise.mixers.gtu import GTU
from lagwise.mixers.hyena import HyenaMixer
from lagwise.mixers.linear_attention import LinearAttentionMixer
from lagwise.mixers.long_short import LongShortMixer
from lagwise.mixers.lru import LRUMixer
from lagwise.mixers.relative_attention import RelativeAttentionMixer
from lagwise.mixers.s5 import S5Mixer
from lagwise.mixers.short_conv import ShortConvMixer
from lagwise.mixers.synthesizer import SynthesizerMixer
from lagwise.mixers.tcn import TCNMixer
from lagwise.mixers.timestep_norm import TimestepNorm
from lagwise.mixers.toeplitz import ToeplitzMixer
from lagwise.outside import add_installed, add_part

MIXERS: dict[str, type[Mixer]] = {
    "toeplitz": ToeplitzMixer,
    "gtu": GTU,
    "attention": AttentionMixer,
    "ema": EMAMixer,
    "tcn": TCNMixer,
    "chunked_attention": ChunkedAttentionMixer,
    "grid": GridMixer,
    "gtu2d": GTU2d,
    "hyena": HyenaMixer,
    "short_conv": ShortConvMixer,
    "linear_attention": LinearAttentionMixer,
    "lru": LRUMixer,
    "s5": S5Mixer,
    "gss": GSSMixer,
    "flash": FlashMixer,
    "gmlp": GMLPMixer,
    "synthesizer": SynthesizerMixer,
    "long_short": LongShortMixer,
    "relative_attention": RelativeAttentionMixer,
    "fnet": FNetMixer,
    "gfnet": GFNetMixer,
    "afno": AFNOMixer,
    "afno2d": AFNO2d,
}

_OWN = frozenset(MIXERS)


def register_mixer(name: str, mixer: type[Mixer]) -> None:
    """Let configurations name a mixer of another package: ``{"name": NAME, ...options}``.

    Installed packages need not call this: they declare an entry point ``NAME = "package.module:Class"`` in the group
    ``lagwise.mixers``. `lagwise.testing.check_mixer` tests a mixer against the contract.

    Args:
        name: The name in configurations.
        mixer: The class.

    Raises:
        ValueError: For a name that lagwise itself has.
        TypeError: For anything that is not a subclass of `Mixer`.
    """
    add_part(MIXERS, _OWN, Mixer, "mixer", name, mixer)


add_installed("lagwise.mixers", "mixer", register_mixer)

__all__ = [
    "GTU",
    "MIXERS",
    "AFNO2d",
    "AFNOMixer",
    "AttentionMixer",
    "ChunkedAttention",
    "ChunkedAttentionMixer",
    "EMAMixer",
    "FNetMixer",
    "FlashMixer",
    "GFNetMixer",
    "GMLPMixer",
    "GSSMixer",
    "GTU2d",
    "GridMixer",
    "HyenaMixer",
    "LRUMixer",
    "LinearAttentionMixer",
    "LongShortMixer",
    "Mixer",
    "RelativeAttentionMixer",
    "S5Mixer",
    "ShortConvMixer",
    "SynthesizerMixer",
    "TCNMixer",
    "TimestepNorm",
    "ToeplitzMixer",
    "register_mixer",
]
