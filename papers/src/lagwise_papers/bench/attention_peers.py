"""Approximations of attention from other packages, wrapped as token mixers: linformer, nystrom-attention,
performer-pytorch and reformer-pytorch (the extra ``peers``), and layers of transformers.

All are timed in two-sided form. The docstrings mention options for causal attention whose outputs still depend on later
tokens; these are not timed. Skyformer and kernelized attention have no package.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable
from typing import Any

from torch import Tensor, nn

from lagwise.mixers import Mixer
from lagwise.ops import Layout

HEADS = 8


class PeerMixer(Mixer):
    """A module on ``(batch, length, channels)`` wrapped as a token mixer. It supports neither padding nor streaming.

    If the module returns a tuple, its first item is the output.

    Args:
        channels: Channels of the input.
        layer: The module.
        arguments: Functions of x that return the module's further arguments.
        out: Whether to add an output projection, as our mixers have.
    """

    directions = (False,)

    def __init__(self, channels: int, layer: nn.Module, *arguments: Callable[[Tensor], Any], out: bool = False):
        super().__init__(channels, False)
        self.layer, self.arguments = layer, arguments
        self.out = nn.Linear(channels, channels) if out else nn.Identity()

    def mix(self, x: Tensor, state: None, layout: Layout) -> tuple[Tensor, None]:
        if layout.mask is not None:
            raise ValueError("layers of other packages support only sequences without padding")
        y = self.layer(x, *(make(x) for make in self.arguments))
        return self.out(y[0] if isinstance(y, tuple) else y), None


def linformer(channels: int, length: int) -> Mixer:
    """Attention to 256 projections of all keys (Wang et al. 2020), from the package linformer. A layer supports one
    length only. There is no causal form."""
    layer = _of("linformer", "linformer.linformer").LinformerSelfAttention(
        channels, length, k=min(256, length), heads=HEADS
    )
    return PeerMixer(channels, layer)


def nystrom_attention(channels: int, length: int) -> Mixer:
    """Attention with 64 landmarks (Xiong et al. 2021), from the package nystrom-attention. There is no causal form:
    landmarks are means of tokens."""
    layer = _of("nystrom-attention", "nystrom_attention").NystromAttention(
        channels, dim_head=channels // HEADS, heads=HEADS, num_landmarks=min(64, length)
    )
    return PeerMixer(channels, layer)


def performer(channels: int, length: int, *, causal: bool = False) -> Mixer:
    """FAVOR+ with the default number of features (Choromanski et al. 2021), from the package performer-pytorch. The
    package imports distutils, which only setuptools provides since Python 3.12.

    Its causal form depends on later tokens, because keys are scaled by the maximum over all features before a constant
    is added. Our mixer ``linear_attention`` is causal.
    """
    layer = _of("performer-pytorch", "performer_pytorch").SelfAttention(
        channels, heads=HEADS, dim_head=channels // HEADS, causal=causal
    )
    return PeerMixer(channels, layer)


def reformer(channels: int, length: int, *, causal: bool = False) -> Mixer:
    """Attention among tokens with equal hashes, with 8 rounds (Kitaev et al. 2020), from the package reformer-pytorch.
    Lengths must be multiples of 128.

    Its causal form masks later tokens, but outputs still depend on them, because they affect which earlier tokens share
    a chunk.
    """
    layer = _of("reformer-pytorch", "reformer_pytorch").LSHSelfAttention(channels, heads=HEADS, causal=causal)
    return PeerMixer(channels, layer)


def transformers_reformer(channels: int, length: int, *, causal: bool = False) -> Mixer:
    """Reformer's hashed attention from transformers, with one round of hashes and chunks of 64. Lengths must be
    multiples of 64. Its causal form (``is_decoder``) depends on later tokens, like that of `reformer`."""
    module = _of("transformers", "transformers.models.reformer.modeling_reformer")
    config = module.ReformerConfig(
        hidden_size=channels,
        num_attention_heads=HEADS,
        attention_head_size=channels // HEADS,
        is_decoder=causal,
        num_buckets=max(2, 2 * length // 64),
        lsh_attention_probs_dropout_prob=0.0,
        hash_seed=0,
    )
    return PeerMixer(channels, module.LSHSelfAttention(config, layer_idx=0), out=True)


def bigbird(channels: int, length: int) -> Mixer:
    """Attention to a window of 3 blocks of 64, 2 global blocks and 3 random blocks (Zaheer et al. 2020), from
    transformers. Lengths must be multiples of 64 and at least 512. The block-sparse form is not causal."""
    module = _of("transformers", "transformers.models.big_bird.modeling_big_bird")
    config = module.BigBirdConfig(hidden_size=channels, num_attention_heads=HEADS, max_position_embeddings=length)
    layer = module.BigBirdBlockSparseAttention(config, seed=0)

    def masks(which: int) -> Callable[[Tensor], Tensor]:
        make = module.BigBirdModel.create_masks_for_block_sparse_attn
        return lambda x: make(x.new_ones(x.shape[:2]), config.block_size)[which]

    return PeerMixer(channels, layer, *map(masks, (1, 2, 3, 0, 0)), out=True)


def nystromformer(channels: int, length: int) -> Mixer:
    """Attention with 64 landmarks and a convolution over 65 values (Xiong et al. 2021), from transformers. Lengths must
    be multiples of 64. A layer supports one length only. There is no causal form."""
    module = _of("transformers", "transformers.models.nystromformer.modeling_nystromformer")
    config = module.NystromformerConfig(
        hidden_size=channels, num_attention_heads=HEADS, segment_means_seq_len=length, attention_probs_dropout_prob=0.0
    )
    return PeerMixer(channels, module.NystromformerSelfAttention(config), out=True)


def yoso(channels: int, length: int) -> Mixer:
    """Attention weighted by the probability that hashes collide (Zeng et al. 2021), from transformers. This is the
    expectation, which takes quadratic time. The linear-time form that samples hashes needs a CUDA extension. There is
    no causal form."""
    module = _of("transformers", "transformers.models.yoso.modeling_yoso")
    config = module.YosoConfig(hidden_size=channels, num_attention_heads=HEADS, use_expectation=True)
    return PeerMixer(channels, module.YosoSelfAttention(config), lambda x: x.new_zeros(x.shape[:2]), out=True)


def informer(channels: int, length: int) -> Mixer:
    """Attention for the most informative queries (Zhou et al. 2021), from transformers; other tokens get the mean
    value. It takes quadratic time, because it scores queries with as many sampled keys as there are tokens. Its causal
    form takes cumulative means, but selects queries among all tokens."""
    module = _of("transformers", "transformers.models.informer.modeling_informer")
    return PeerMixer(channels, module.InformerProbSparseAttention(channels, HEADS))


def transformers_fnet(channels: int, length: int) -> Mixer:
    """FNet's Fourier transform (Lee-Thorp et al. 2022), from transformers; equal to our mixer ``fnet``."""
    module = _of("transformers", "transformers.models.fnet.modeling_fnet")
    return PeerMixer(channels, module.FNetBasicFourierTransform(module.FNetConfig(hidden_size=channels)))


ATTENTION_PEERS: dict[str, Callable[[int, int], Mixer]] = {
    "linformer": linformer,
    "nystrom-attention": nystrom_attention,
    "performer-pytorch": performer,
    "reformer-pytorch": reformer,
    "reformer (transformers)": transformers_reformer,
    "bigbird (transformers)": bigbird,
    "nystromformer (transformers)": nystromformer,
    "yoso (transformers)": yoso,
    "informer (transformers)": informer,
    "fnet (transformers)": transformers_fnet,
}


def _of(package: str, module: str) -> Any:
    """Import a module of a package; ImportError that names the extra if it is missing."""
    try:
        return importlib.import_module(module)
    except ImportError as error:
        raise ImportError(f"{package} cannot be imported ({error}): pip install './papers[peers]'") from error
