"""Token mixers with one contract (`lagwise.mixers.base.Mixer`)."""

from lagwise.mixers.attention import AttentionMixer
from lagwise.mixers.base import Mixer
from lagwise.mixers.chunked_attention import ChunkedAttention, ChunkedAttentionMixer
from lagwise.mixers.convolutions import ShortConvMixer, TCNMixer
from lagwise.mixers.ema import EMAMixer
from lagwise.mixers.grid import GridMixer, GTU2d
from lagwise.mixers.timestep_norm import TimestepNorm
from lagwise.mixers.toeplitz import GTU, ToeplitzMixer
from lagwise.outside import Registry

_OWN: dict[str, type[Mixer]] = {
    "toeplitz": ToeplitzMixer,
    "gtu": GTU,
    "attention": AttentionMixer,
    "ema": EMAMixer,
    "short_conv": ShortConvMixer,
    "tcn": TCNMixer,
    "chunked_attention": ChunkedAttentionMixer,
    "grid": GridMixer,
    "gtu2d": GTU2d,
}
MIXERS = Registry("mixer", Mixer, "lagwise.mixers", _OWN)


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
    MIXERS.register(name, mixer)


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
    "ShortConvMixer",
    "TCNMixer",
    "TimestepNorm",
    "ToeplitzMixer",
    "register_mixer",
]
