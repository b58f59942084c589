"""Token mixers of other papers, one per file.

They obey the contract of `lagwise.mixers.Mixer`, and configurations name them by this package's entry points. The
mixers of the papers that lagwise implements are in `lagwise.mixers`.
"""

from lagwise_papers.family.afno import AFNO2d, AFNOMixer
from lagwise_papers.family.caracal import CaracalMixer
from lagwise_papers.family.flash import FlashMixer
from lagwise_papers.family.fnet import FNetMixer
from lagwise_papers.family.gfnet import GFNetMixer
from lagwise_papers.family.gmlp import GMLPMixer
from lagwise_papers.family.gss import GSSMixer
from lagwise_papers.family.hyena import HyenaMixer
from lagwise_papers.family.linear_attention import LinearAttentionMixer
from lagwise_papers.family.long_short import LongShortMixer
from lagwise_papers.family.lru import LRUMixer
from lagwise_papers.family.relative_attention import RelativeAttentionMixer
from lagwise_papers.family.s5 import S5Mixer
from lagwise_papers.family.synthesizer import SynthesizerMixer
from lagwise_papers.family.toeplitz_heads import SharedKernel, ToeplitzHeadsMixer

__all__ = [
    "AFNO2d",
    "AFNOMixer",
    "CaracalMixer",
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
    "SharedKernel",
    "SynthesizerMixer",
    "ToeplitzHeadsMixer",
]
