"""Count what a layer's training step would do on a GPU, without one: calls, bytes, arithmetic, memory and waits.

    python benchmarks/gpu_counts.py OUT.json [--before OLD.json] [--models tnn-lm,...] [--shapes 4x2048,...]
        [--hidden 512] [--places] [--without-triton] [--no-peers]

Counts are of fake tensors on a CUDA device that does nothing (`lagwise_bench.counting`), with the code's kernels in
Triton counted as one pass over their inputs and outputs. A layer's are the difference between models of three layers
and of one; the chain of best-lm counts as four layers. They are exact and repeatable; they predict no time. Bytes are
also given as multiples of the least: every activation is written once and read once where it is used, in bfloat16, with
norms, gates and residual sums fused into the products beside them, and the backward pass moves twice as much
(`least_bytes`).

``--before`` puts the figures of an earlier file beside the new ones. Needs a C++ compiler, and a build of PyTorch
without CUDA.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from lagwise_bench import fake_cuda

fake_cuda.load()

import torch  # noqa: E402
import torch.nn.functional as F  # noqa: E402
from torch import Tensor, nn  # noqa: E402

from lagwise.analysis.timing import save_results  # noqa: E402
from lagwise.models import LagwiseConfig, LagwiseForCausalLM  # noqa: E402
from lagwise.training import load_recipe  # noqa: E402
from lagwise_bench.counting import Count, count_step  # noqa: E402
from lagwise_bench.peers import LiteralTNO  # noqa: E402

SHAPES = ("16x512", "4x2048", "1x8192", "1x131072")
MODELS = ("tnn-lm", "fd-tnn-lm", "ski-tnn-lm", "mega-lm", "tcnca-lm", "best-lm", "transformer-alibi-lm")
PEERS = ("torch.fft", "literal TNO", "GPT-2")
_VOCABULARY = 257
# Channels that a layer reads and writes at every token in a forward pass, in units of its width.
_CONVOLUTION, _ATTENTION, _GLU = (1 + 3) + (3 + 1) + (1 + 2), (1 + 3) + (3 + 1) + (1 + 2), (1 + 2) + (1 + 1)
_UNITS = {
    "gtu": (1 + 2) + 3 + (1 + 2) + _GLU,
    "attention": _ATTENTION + (1 + 4) + (4 + 2),
    # norm and memory, gates, values, attention, gated output, and the two parts of the channel mixer
    "mega": (1 + 1) + (1 + 2.8) + (1 + 0.75) + 1.6 + (0.75 + 0.75 + 3 + 1) + (1 + 1) + (1 + 2),
    "best": (2 * (_CONVOLUTION + _GLU) + 14 + _ATTENTION + _GLU) / 4,
}
_BLOCK_OF = {"mega-lm": "mega", "tcnca-lm": "mega", "best-lm": "best", "transformer-alibi-lm": "attention"}
_BLOCK_OF |= {"GPT-2": "attention"}


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


class PlainBlock(nn.Module):
    """The layers of `lagwise.blocks.PreNormBlock` around a convolution, written plainly."""

    def __init__(self, channels: int, convolution: nn.Module):
        super().__init__()
        self.gate, self.value, self.out, self.first, self.second, self.third = (
            nn.Linear(channels, channels) for _ in range(6)
        )
        self.convolution = convolution

    def forward(self, x: Tensor) -> Tensor:
        h = F.rms_norm(x, x.shape[-1:])
        x = x + self.out(F.silu(self.gate(h)) * self.convolution(F.silu(self.value(h))))
        h = F.rms_norm(x, x.shape[-1:])
        return x + self.third(F.silu(self.first(h)) * self.second(h))


class PlainModel(nn.Module):
    """A language model of plain blocks."""

    def __init__(self, channels: int, layers: int, make: Callable[[], nn.Module]):
        super().__init__()
        self.embedding = nn.Embedding(_VOCABULARY, channels)
        self.layers = nn.Sequential(*(PlainBlock(channels, make()) for _ in range(layers)))
        self.head = nn.Linear(channels, _VOCABULARY, bias=False)

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
    model |= {"hidden_size": hidden, "num_hidden_layers": layers, "block": block, "vocab_size": _VOCABULARY}
    return WithLoss(LagwiseForCausalLM(LagwiseConfig(**model, causal=True)), skip_logits=True)


def gpt2(hidden: int, layers: int, length: int) -> nn.Module:
    """GPT-2 of transformers with fused attention, without dropout."""
    from transformers import GPT2Config, GPT2LMHeadModel
    from transformers.models.gpt2 import modeling_gpt2

    # It takes fake tensors for a trace and would build a mask, where with real ones it has none.
    modeling_gpt2.create_causal_mask = lambda **_: None  # type: ignore[assignment]
    config = GPT2Config(
        vocab_size=_VOCABULARY, n_embd=hidden, n_layer=layers, n_head=max(1, hidden // 64), n_positions=length,
        attn_pdrop=0.0, resid_pdrop=0.0, embd_pdrop=0.0, attn_implementation="sdpa",
    )  # fmt: skip
    return WithLoss(GPT2LMHeadModel(config), use_cache=False)


def build(name: str, hidden: int, layers: int, length: int) -> nn.Module:
    """A model by the name of a recipe or peer."""
    if name == "torch.fft":
        return PlainModel(hidden, layers, lambda: PlainFFT(hidden, length))
    if name == "literal TNO":
        return PlainModel(hidden, layers, lambda: PublishedTNO(hidden))
    return gpt2(hidden, layers, length) if name == "GPT-2" else recipe_model(name, hidden, layers)


def least_bytes(name: str, tokens: int, hidden: int) -> float:
    """Bytes that a layer's training step must move, see above."""
    return 3 * 2 * _UNITS[_BLOCK_OF.get(name, "gtu")] * tokens * hidden


def layer_counts(name: str, hidden: int, batch: int, length: int, places: bool = False) -> dict[str, Any]:
    """The counts of one layer's training step."""

    def counts(layers: int) -> Count:
        ids = {"ids": (batch, length)}
        inputs = lambda: {k: torch.zeros(v, dtype=torch.long) for k, v in ids.items()}  # noqa: E731
        return count_step(lambda: build(name, hidden, layers, length), inputs, places=places)

    one, three = counts(1), counts(3)
    layers = 8 if name == "best-lm" else 2
    figures = ("calls", "bytes", "flops", "peak", "waits")
    row = {"model": name, "batch": batch, "length": length, "hidden": hidden}
    row |= {each: (getattr(three, each) - getattr(one, each)) / layers for each in figures}
    row["times_least"] = row["bytes"] / least_bytes(name, batch * length, hidden)
    if places:
        row["places"] = {
            place: [(a - b) / layers for a, b in zip(found, one.places[place], strict=True)]
            for place, found in three.places.items()
        }
    return row


def pretend_triton() -> None:
    """Have fused kernels serve the fake device, whether Triton is installed or not."""
    from lagwise.ops import fused

    fused.available = lambda: True  # type: ignore[assignment]


def main(given: argparse.Namespace) -> None:
    if not given.without_triton:
        pretend_triton()
    before = None
    if given.before is not None:
        content = json.loads(given.before.read_text())
        before = {"commit": content["commit"], "rows": content["results"]["rows"]}
    rows = []
    for shape in given.shapes.split(","):
        batch, length = map(int, shape.split("x"))
        for name in [*given.models.split(","), *([] if given.no_peers else PEERS)]:
            if name == "literal TNO" and length > 8192:
                continue
            row = layer_counts(name, given.hidden, batch, length, given.places)
            places = sorted(row.pop("places", {}).items(), key=lambda place: -place[1][1])
            rows.append(row)
            print(
                f"{name:22}{shape:>10} {row['calls']:6.1f} calls {row['bytes'] / 1e9:8.3f} GB"
                f" {row['times_least']:6.2f} x least {row['flops'] / 1e9:8.1f} GFLOP {row['peak'] / 1e9:7.3f} GB peak"
                f" {row['waits']:5.1f} waits",
                flush=True,
            )
            for place, (calls, size) in places[:70]:
                print(f"    {size / row['bytes']:6.1%} {calls:6.1f} calls  {place}")
    command = " ".join(["python", *sys.argv])
    save_results(given.out, command, {"rows": rows, "before": before, "triton": not given.without_triton})


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("out", type=Path)
    parser.add_argument("--before", type=Path)
    parser.add_argument("--models", default=",".join(MODELS))
    parser.add_argument("--shapes", default=",".join(SHAPES))
    parser.add_argument("--hidden", type=int, default=512)
    parser.add_argument("--places", action="store_true")
    parser.add_argument("--without-triton", action="store_true")
    parser.add_argument("--no-peers", action="store_true")
    main(parser.parse_args())
    sys.stdout.flush()
    os._exit(0)  # the threads of autograd that serve the fake device do not end
