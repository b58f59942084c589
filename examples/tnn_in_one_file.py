"""A Toeplitz neural network that models language, top to bottom, in plain PyTorch.

Read it to learn what a TNN is; equations are those of "Toeplitz Neural Network for Sequence Modeling" (Qin et al. 2023,
https://arxiv.org/abs/2305.04749). Run it to train one on the bytes of a file and to write a continuation:

    python examples/tnn_in_one_file.py my.txt --steps 500 --prompt "Once upon"

A test holds it equal to lagwise's own `tnn` model in values, gradients and streams. What the library adds: other
lengths of kernels, padding, packed documents, two-sided models, other dtypes, state spaces, GPUs, saving and loading.

Shapes: B batch, N length, C channels, L lags.
"""

from __future__ import annotations

import argparse
import math
import sys
from pathlib import Path
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from tqdm import trange

# ---------------------------------------------------------------------------------------------------------------------
# The Toeplitz product: y_i = sum over j <= i of t_{i-j} x_j (eq. 4). Written as a matrix, entry (i, j) is t_{i-j}: it
# depends on the lag alone, and every channel has a matrix of its own.
# ---------------------------------------------------------------------------------------------------------------------


def toeplitz_product(taps_CL: Tensor, x_BNC: Tensor) -> Tensor:
    """``y[b, i, c] = sum_l taps[c, l] x[b, i - l, c]`` in O(N log N), as ``(B, N, C)``.

    A product of Fourier transforms is a *circular* convolution. With as many zeros as taps behind the signal, nothing
    wraps around to the first N results, which are those of the causal sum.
    """
    length = x_BNC.shape[1]
    n_fft = 2 ** math.ceil(math.log2(length + taps_CL.shape[1]))
    spectrum = torch.fft.rfft(taps_CL, n_fft) * torch.fft.rfft(x_BNC.transpose(1, 2), n_fft)
    return torch.fft.irfft(spectrum, n_fft)[..., :length].transpose(1, 2)


# ---------------------------------------------------------------------------------------------------------------------
# The relative position encoder: where the taps come from.
# ---------------------------------------------------------------------------------------------------------------------


class RelativePositionEncoder(nn.Module):
    """A small network from a lag to one tap for each channel, times an exponential decay: ``t_l = decay^l MLP(l)``
    (§3.3 and eq. 5).

    The number of parameters does not depend on the length, so the model runs at lengths that it never saw. The decay
    makes taps beyond `support` smaller than rounding: they are left out.
    """

    def __init__(self, channels: int, hidden: int = 32, layers: int = 3, decay: float = 0.99):
        super().__init__()
        self.decay = decay
        self.support = math.ceil(math.log(1e-8) / math.log(decay))  # lags; later taps are below float32's rounding
        self.first = nn.Linear(1, hidden)
        self.hidden = nn.ModuleList(nn.Linear(hidden, hidden) for _ in range(layers))
        self.last = nn.Linear(hidden, channels)

    def forward(self, length: int) -> Tensor:
        """Taps ``(C, L)`` of lags 0 to L - 1, with L the length or the support."""
        weight = self.first.weight
        lags = torch.arange(min(length, self.support), dtype=weight.dtype, device=weight.device)[:, None]
        h = self.first(lags)
        for layer in [*self.hidden, self.last]:
            h = layer(F.relu(rms_norm(h, 1e-20)))
        return (h * self.decay**lags).T


# ---------------------------------------------------------------------------------------------------------------------
# The block (§3.1 and fig. 2): a gated Toeplitz unit mixes tokens, a gated linear unit mixes channels.
# ---------------------------------------------------------------------------------------------------------------------


def rms_norm(x: Tensor, epsilon: float = 1e-6) -> Tensor:
    """``x / sqrt(mean(x²) + epsilon)`` over the channels: TNN's norm, which has no parameters."""
    return x * torch.rsqrt(x.square().mean(-1, keepdim=True) + epsilon)


class GatedToeplitzUnit(nn.Module):
    """``W_o (silu(W_u x) * T silu(W_v x))`` with a Toeplitz matrix T for each channel."""

    def __init__(self, channels: int):
        super().__init__()
        self.gate = nn.Linear(channels, channels)
        self.value = nn.Linear(channels, channels)
        self.kernel = RelativePositionEncoder(channels)
        self.out = nn.Linear(channels, channels)

    def forward(self, x: Tensor) -> Tensor:
        value = F.silu(self.value(x))
        mixed = toeplitz_product(self.kernel(x.shape[1]), value)
        return self.out(F.silu(self.gate(x)) * mixed)

    def step(self, x_BC: Tensor, past: Stream) -> tuple[Tensor, Stream]:
        """The output for the next token, and the stream after it.

        The values of the last `support` tokens are all that the sum needs, so memory and time per token do not grow
        with the text. (lagwise shares transforms among tokens, which is faster, and turns kernels into state spaces.)
        """
        past = past.pushed(F.silu(self.value(x_BC)))
        taps = past.taps[:, : past.values.shape[1]].flip(1)
        mixed = torch.einsum("cl,blc->bc", taps, past.values)
        return self.out(F.silu(self.gate(x_BC)) * mixed), past


class GatedLinearUnit(nn.Module):
    """``W_3 (silu(W_1 x) * W_2 x)``, for each token on its own."""

    def __init__(self, channels: int):
        super().__init__()
        self.gate = nn.Linear(channels, channels)
        self.value = nn.Linear(channels, channels)
        self.out = nn.Linear(channels, channels)

    def forward(self, x: Tensor) -> Tensor:
        return self.out(F.silu(self.gate(x)) * self.value(x))


class Block(nn.Module):
    """``x + mix_tokens(norm x)``, then ``x + mix_channels(norm x)``."""

    def __init__(self, channels: int):
        super().__init__()
        self.token_mixer = GatedToeplitzUnit(channels)
        self.channel_mixer = GatedLinearUnit(channels)

    def forward(self, x: Tensor) -> Tensor:
        x = x + self.token_mixer(rms_norm(x))
        return x + self.channel_mixer(rms_norm(x))

    def step(self, x: Tensor, past: Stream) -> tuple[Tensor, Stream]:
        mixed, past = self.token_mixer.step(rms_norm(x), past)
        x = x + mixed
        return x + self.channel_mixer(rms_norm(x)), past


class Stream(NamedTuple):
    """What a layer remembers of a text: its taps ``(C, support)``, and the values ``(B, n <= support, C)`` of the last
    tokens."""

    taps: Tensor
    values: Tensor

    def pushed(self, value_BC: Tensor) -> Stream:
        kept = torch.cat([self.values, value_BC[:, None]], dim=1)[:, -self.taps.shape[1] :]
        return self._replace(values=kept)


# ---------------------------------------------------------------------------------------------------------------------
# The language model: embeddings without positions (the taps know the lags), blocks, norm, and the embeddings again.
# ---------------------------------------------------------------------------------------------------------------------


class TNN(nn.Module):
    """A causal language model: ids ``(B, N)`` to logits ``(B, N, vocabulary)``."""

    def __init__(self, vocabulary: int = 256, channels: int = 256, layers: int = 4):
        super().__init__()
        self.embedding = nn.Embedding(vocabulary, channels)
        self.blocks = nn.ModuleList(Block(channels) for _ in range(layers))
        for name, module in self.named_modules():
            if isinstance(module, nn.Embedding | nn.Linear) and ".kernel." not in name:
                nn.init.normal_(module.weight, std=0.02)  # a kernel's network keeps PyTorch's wider initialisation
            if isinstance(module, nn.Linear) and ".kernel." not in name:
                nn.init.zeros_(module.bias)

    def forward(self, ids: Tensor) -> Tensor:
        x = self.embedding(ids)
        for block in self.blocks:
            x = block(x)
        return F.linear(rms_norm(x), self.embedding.weight)

    def loss(self, ids: Tensor) -> Tensor:
        """Mean of -ln p(next token), in nats; divide by ln 2 for bits."""
        return F.cross_entropy(self(ids[:, :-1]).flatten(0, 1), ids[:, 1:].flatten())

    def stream(self, batch: int = 1) -> list[Stream]:
        """The streams of all layers before the first token."""
        kernels = [block.token_mixer.kernel for block in self.blocks]
        taps = [kernel(kernel.support) for kernel in kernels]
        return [Stream(each, each.new_zeros(batch, 0, each.shape[0])) for each in taps]

    def step(self, ids_B: Tensor, streams: list[Stream]) -> tuple[Tensor, list[Stream]]:
        """Logits ``(B, vocabulary)`` after one more token: exactly those of `forward` at its position."""
        x, after = self.embedding(ids_B), []
        for block, past in zip(self.blocks, streams, strict=True):
            x, past = block.step(x, past)
            after.append(past)
        return F.linear(rms_norm(x), self.embedding.weight), after

    @torch.no_grad()
    def write(self, prompt: bytes, count: int, temperature: float = 0.8) -> bytes:
        """A continuation by ``count`` bytes, one step each."""
        streams, written = self.stream(), bytearray()
        for byte in prompt:
            logits, streams = self.step(torch.tensor([byte]), streams)
        for _ in range(count):
            byte = int(torch.multinomial((logits / temperature).softmax(-1), 1))
            written.append(byte)
            logits, streams = self.step(torch.tensor([byte]), streams)
        return bytes(written)


def train(model: TNN, text: bytes, steps: int, batch: int = 8, length: int = 512, rate: float = 4e-3) -> float:
    """Train on random windows of the text, and return the mean of the last fifty losses in bits per byte."""
    data = torch.frombuffer(bytearray(text), dtype=torch.uint8)
    optimizer = torch.optim.AdamW(model.parameters(), betas=(0.9, 0.98), weight_decay=0.1)
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, rate, total_steps=steps, pct_start=0.1)
    bits: list[float] = []
    for _ in (progress := trange(steps, unit="step")):
        starts = torch.randint(len(data) - length, (batch, 1))
        loss = model.loss(data[starts + torch.arange(length + 1)].long())
        optimizer.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        schedule.step()
        bits.append(loss.item() / math.log(2))
        progress.set_postfix_str(f"{sum(bits[-50:]) / len(bits[-50:]):.3f} bits per byte")
    return sum(bits[-50:]) / len(bits[-50:])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("file", type=Path, help="a text of at least some hundred kilobytes")
    parser.add_argument("--steps", type=int, default=500, help="of 8 windows of 512 bytes (default: 500)")
    parser.add_argument("--prompt", default="The ", help="what the text written afterwards begins with")
    given = parser.parse_args()
    text = given.file.read_bytes()
    if len(text) <= 512 or given.steps < 1 or not given.prompt:
        sys.exit("the file needs more than 512 bytes, --steps at least 1, and --prompt at least one character")
    torch.manual_seed(0)
    model = TNN()
    train(model, text, given.steps)
    written = model.write(given.prompt.encode(), 300)
    print(given.prompt + written.decode(errors="replace"))


if __name__ == "__main__":
    main()
