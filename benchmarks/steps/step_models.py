"""Language models whose training steps are counted and timed: recipes of another width and depth, and peers."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from lagwise.models import LagwiseConfig, LagwiseForCausalLM
from lagwise.training import load_recipe
from lagwise_papers.bench.peers import LiteralTNO

SHAPES = ("16x512", "4x2048", "1x8192", "1x131072")
MODELS = ("tnn-lm", "fd-tnn-lm", "ski-tnn-lm", "mega-lm", "megalodon-lm", "tcnca-lm", "best-lm", "transformer-alibi-lm")
PEERS = ("torch.fft", "literal TNO", "GPT-2")
VOCABULARY = 257
# Channels that a layer reads and writes at every token in a forward pass, in units of its width.
_CONVOLUTION, _ATTENTION, _GLU = (1 + 3) + (3 + 1) + (1 + 2), (1 + 3) + (3 + 1) + (1 + 2), (1 + 2) + (1 + 1)
_UNITS = {
    "gtu": (1 + 2) + 3 + (1 + 2) + _GLU,
    "attention": _ATTENTION + (1 + 4) + (4 + 2),
    # norm and memory, gates, values, attention, gated output, and the two parts of the channel mixer
    "mega": (1 + 1) + (1 + 2.8) + (1 + 0.75) + 1.6 + (0.75 + 0.75 + 3 + 1) + (1 + 1) + (1 + 2),
    # the same, with a gate less, and the residual of all in the gated output
    "megalodon": (1 + 1) + (1 + 1.9) + (1 + 0.75) + 1.6 + (0.75 + 0.75 + 2 + 1) + _GLU,
    "best": (2 * (_CONVOLUTION + _GLU) + 14 + _ATTENTION + _GLU) / 4,
}
_BLOCK_OF = {"mega-lm": "mega", "tcnca-lm": "mega", "best-lm": "best", "transformer-alibi-lm": "attention"}
_BLOCK_OF |= {"GPT-2": "attention", "megalodon-lm": "megalodon"}


class WithLoss(nn.Module):
    """A causal language model that returns its loss, as the Trainer calls it."""

    def __init__(self, model: nn.Module, **options: Any):
        super().__init__()
        self.model, self.options = model, options

    def forward(self, ids: Tensor) -> Tensor:
        return self.model(input_ids=ids, labels=ids, **self.options).loss


class PlainFFT(nn.Module):
    """A convolution with free taps as it is usually written: pad, rfft, multiply, irfft."""

    def __init__(self, channels: int, length: int):
        super().__init__()
        self.taps = nn.Parameter(torch.randn(channels, length))

    def forward(self, x: Tensor) -> Tensor:
        points = 2 * x.shape[1]
        spectrum = torch.fft.rfft(x.transpose(1, 2).float(), points) * torch.fft.rfft(self.taps, points)
        return torch.fft.irfft(spectrum, points)[..., : x.shape[1]].transpose(1, 2).to(x.dtype)


class PublishedTNO(nn.Module):
    """The published operator in float32, which its FFT needs."""

    def __init__(self, channels: int):
        super().__init__()
        self.operator = LiteralTNO(channels, hidden=32, layers=3)

    def forward(self, x: Tensor) -> Tensor:
        with torch.autocast("cuda", enabled=False):
            return self.operator(x.float()).to(x.dtype)


class PlainGTU(nn.Module):
    """The gated token mixer of `lagwise.blocks.PreNormBlock` around a convolution, written plainly."""

    def __init__(self, channels: int, convolution: nn.Module):
        super().__init__()
        self.gate, self.value, self.out = (nn.Linear(channels, channels) for _ in range(3))
        self.convolution = convolution

    def forward(self, x: Tensor) -> Tensor:
        return self.out(F.silu(self.gate(x)) * self.convolution(F.silu(self.value(x))))


class Residual(nn.Module):
    """A stack of layers that are each normalized before, and added after."""

    def __init__(self, channels: int, *layers: nn.Module):
        super().__init__()
        self.layers = nn.ModuleList(layers)

    def forward(self, x: Tensor) -> Tensor:
        for layer in self.layers:
            output = layer(F.rms_norm(x, x.shape[-1:]))
            x = x + (output[0] if isinstance(output, tuple) else output)
        return x


class PlainGLU(nn.Module):
    """The gated linear unit beside it."""

    def __init__(self, channels: int):
        super().__init__()
        self.first, self.second, self.third = (nn.Linear(channels, channels) for _ in range(3))

    def forward(self, x: Tensor) -> Tensor:
        return self.third(F.silu(self.first(x)) * self.second(x))


class PlainModel(nn.Module):
    """A language model of other blocks."""

    def __init__(self, channels: int, layers: int, block: Callable[[], nn.Module]):
        super().__init__()
        self.embedding = nn.Embedding(VOCABULARY, channels)
        self.layers = nn.Sequential(*(block() for _ in range(layers)))
        self.head = nn.Linear(channels, VOCABULARY, bias=False)

    def forward(self, ids: Tensor) -> Tensor:
        x = self.layers(self.embedding(ids))
        logits = self.head(F.rms_norm(x, x.shape[-1:])).float()
        return F.cross_entropy(logits[:, :-1].flatten(0, 1), ids[:, 1:].flatten())


def recipe_model(name: str, hidden: int, layers: int) -> nn.Module:
    """A recipe's model of another width and depth."""
    model = dict(load_recipe(name).model)
    scale, block = hidden / model["hidden_size"], dict(model["block"])
    if "value_size" in block:
        block["value_size"] = round(block["value_size"] * scale)
    if name == "transformer-alibi-lm":
        block["token_mixer"] = {**block["token_mixer"], "heads": max(1, hidden // 64)}
    model |= {"hidden_size": hidden, "num_hidden_layers": layers, "block": block, "vocab_size": VOCABULARY}
    return WithLoss(LagwiseForCausalLM(LagwiseConfig(**model, causal=True)), skip_logits=True)


def gpt2(hidden: int, layers: int, length: int) -> nn.Module:
    """GPT-2 of transformers with fused attention, without dropout."""
    from transformers import GPT2Config, GPT2LMHeadModel
    from transformers.models.gpt2 import modeling_gpt2

    # It takes fake tensors for a trace and would build a mask, where with real ones it has none.
    modeling_gpt2.create_causal_mask = lambda **_: None  # type: ignore[assignment]
    config = GPT2Config(
        vocab_size=VOCABULARY, n_embd=hidden, n_layer=layers, n_head=max(1, hidden // 64), n_positions=length,
        attn_pdrop=0.0, resid_pdrop=0.0, embd_pdrop=0.0, attn_implementation="sdpa",
    )  # fmt: skip
    return WithLoss(GPT2LMHeadModel(config), use_cache=False)


def mamba2(hidden: int) -> nn.Module:
    """Mamba-2 of its authors (the package mamba-ssm), which has as many parameters as our layers and no GLU. Its short
    convolution is PyTorch's, as without the package causal-conv1d."""
    from mamba_ssm.modules.mamba2 import Mamba2  # pyrefly: ignore[missing-import]

    return Residual(hidden, Mamba2(hidden, headdim=64, use_mem_eff_path=False))


def gated_linear_attention(hidden: int) -> nn.Module:
    """Gated linear attention of the package flash-linear-attention, and a GLU."""
    from fla.layers import GatedLinearAttention  # pyrefly: ignore[missing-import]

    return Residual(hidden, GatedLinearAttention(hidden_size=hidden, num_heads=4), PlainGLU(hidden))


def build(name: str, hidden: int, layers: int, length: int) -> nn.Module:
    """A model by the name of a recipe or peer."""
    if name == "GPT-2":
        return gpt2(hidden, layers, length)
    blocks: dict[str, Callable[[], nn.Module]] = {
        "torch.fft": lambda: Residual(hidden, PlainGTU(hidden, PlainFFT(hidden, length)), PlainGLU(hidden)),
        "literal TNO": lambda: Residual(hidden, PlainGTU(hidden, PublishedTNO(hidden)), PlainGLU(hidden)),
        "Mamba-2": lambda: mamba2(hidden),
        "GLA": lambda: gated_linear_attention(hidden),
    }
    return PlainModel(hidden, layers, blocks[name]) if name in blocks else recipe_model(name, hidden, layers)


def min_bytes(name: str, tokens: int, hidden: int) -> float:
    """Compute the bytes that a layer's training step must move, see above."""
    return 3 * 2 * _UNITS[_BLOCK_OF.get(name, "gtu")] * tokens * hidden


def layers_between(name: str) -> int:
    """Count the layers by which models of three and of one differ; the chain of best-lm counts as four."""
    return 8 if name == "best-lm" else 2


def cases(shapes: str, names: Sequence[str]) -> Iterator[tuple[str, int, int]]:
    """List each model with the batch and length of each of the shapes, such as "16x512,4x2048"; the published operator
    only up to 8,192 tokens."""
    for shape in shapes.split(","):
        batch, length = map(int, shape.split("x"))
        for name in names:
            if name != "literal TNO" or length <= 8192:
                yield name, batch, length
