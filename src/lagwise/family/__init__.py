"""Token mixers of other papers, one per file.

They obey the contract of `lagwise.mixers.Mixer`, have names in its table, and are loaded at their first use, all as
those of an installed package. The mixers of the papers that lagwise implements are in `lagwise.mixers`.
"""

from lagwise.family.afno import AFNO2d, AFNOMixer
from lagwise.family.flash import FlashMixer
from lagwise.family.fnet import FNetMixer
from lagwise.family.gfnet import GFNetMixer
from lagwise.family.gmlp import GMLPMixer
from lagwise.family.gss import GSSMixer
from lagwise.family.hyena import HyenaMixer
from lagwise.family.linear_attention import LinearAttentionMixer
from lagwise.family.long_short import LongShortMixer
from lagwise.family.lru import LRUMixer
from lagwise.family.relative_attention import RelativeAttentionMixer
from lagwise.family.s5 import S5Mixer
from lagwise.family.short_conv import ShortConvMixer
from lagwise.family.synthesizer import SynthesizerMixer

__all__ = [
    "AFNO2d",
    "AFNOMixer",
    "FNetMixer",
    "FlashMixer",
    "GFNetMixer",
    "GMLPMixer",
    "GSSMixer",
    "HyenaMixer",
    "LRUMixer",
    "LinearAttentionMixer",
    "LongShortMixer",
    "RelativeAttentionMixer",
    "S5Mixer",
    "ShortConvMixer",
    "SynthesizerMixer",
]
