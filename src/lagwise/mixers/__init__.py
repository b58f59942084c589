"""Token mixers, one per file, with one contract (`lagwise.mixers.base.Mixer`)."""

import importlib
from typing import Any

from lagwise.mixers.attention import AttentionMixer
from lagwise.mixers.base import Mixer
from lagwise.mixers.chunked_attention import ChunkedAttention, ChunkedAttentionMixer
from lagwise.mixers.ema import EMAMixer
from lagwise.mixers.grid import GridMixer, GTU2d
from lagwise.mixers.gtu import GTU
from lagwise.mixers.tcn import TCNMixer
from lagwise.mixers.timestep_norm import TimestepNorm
from lagwise.mixers.toeplitz import ToeplitzMixer
from lagwise.outside import Parts

_OWN: dict[str, type[Mixer]] = {
    "toeplitz": ToeplitzMixer,
    "gtu": GTU,
    "attention": AttentionMixer,
    "ema": EMAMixer,
    "tcn": TCNMixer,
    "chunked_attention": ChunkedAttentionMixer,
    "grid": GridMixer,
    "gtu2d": GTU2d,
}
# Mixers of other papers: the classes of `lagwise.family`.
_FAMILY = {
    "hyena": "HyenaMixer",
    "short_conv": "ShortConvMixer",
    "linear_attention": "LinearAttentionMixer",
    "lru": "LRUMixer",
    "s5": "S5Mixer",
    "gss": "GSSMixer",
    "flash": "FlashMixer",
    "gmlp": "GMLPMixer",
    "synthesizer": "SynthesizerMixer",
    "long_short": "LongShortMixer",
    "relative_attention": "RelativeAttentionMixer",
    "fnet": "FNetMixer",
    "gfnet": "GFNetMixer",
    "afno": "AFNOMixer",
    "afno2d": "AFNO2d",
}
MIXERS = Parts(
    "mixer", Mixer, "lagwise.mixers", _OWN, {name: f"lagwise.family:{kind}" for name, kind in _FAMILY.items()}
)


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


def __getattr__(name: str) -> Any:
    """The family's classes, which were here in 0.2."""
    if name in _FAMILY.values():
        return getattr(importlib.import_module("lagwise.family"), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


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
    "TimestepNorm",
    "ToeplitzMixer",
    "register_mixer",
]
