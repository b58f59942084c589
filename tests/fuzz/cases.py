"""Random cases: a mixer, its options, rows with padding and documents, and how they are given to it.

A seed determines its case, and the numbers in it. What can be drawn covers every entry of the tables; a new one must be
given options here.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from torch import Tensor

from lagwise.kernels import KERNELS
from lagwise.mixers import MIXERS, Mixer
from lagwise.mixers.ema import EMA_ENGINES
from lagwise.ops import ATTENTION_FUNCTIONS, EXACT_ENGINES

LONGEST = 3000
QUICK = 200  # seeds of the normal suite, of which one in ten is as long as any
_QUICK_LONGEST = 300
DECAYS = (0.01, 0.3, 0.9, 0.99, 0.999, 0.9999, 0.99999)
LAYOUTS = ("contiguous", "channels first", "every second token", "every second channel", "offset")

# A grid's mixers have a dense reference in tests/mixers/test_grid.py.
SEQUENCE_MIXERS = [name for name, mixer in MIXERS.items() if not mixer.needs_grid]

Options = dict[str, Any]


class Document(NamedTuple):
    """Tokens of a document: padding, text, padding."""

    left: int
    text: int
    right: int


@dataclass(frozen=True)
class Case:
    """rows: documents of each; more than one only if packed. mask: its dtype, None for no mask. poison: whether padding
    is NaN and infinity. chunks: how a stream is cut; none if it is not streamed."""

    seed: int
    mixer: str
    options: Options
    channels: int
    causal: bool
    training: bool
    dtype: torch.dtype
    rows: tuple[tuple[Document, ...], ...]
    packed: bool
    mask: torch.dtype | None
    poison: bool
    layout: str
    chunks: tuple[int, ...]

    @property
    def documents(self) -> list[Document]:
        return [document for row in self.rows for document in row]


def draw(seed: int) -> Case:
    """The case of a seed."""
    rng = random.Random(seed)
    longest = _QUICK_LONGEST if seed < QUICK and seed % 10 else LONGEST
    causal, dtype = rng.random() < 0.7, rng.choice((torch.float32, torch.float64))
    streamed = causal and rng.random() < 0.6
    packed = not streamed and rng.random() < 0.4
    masked = rng.random() < 0.7
    rows = _rows(rng, longest, packed=packed, masked=masked, streamed=streamed)
    length = sum(map(sum, rows[0]))
    channels = rng.randint(1, 5)
    name = rng.choice(SEQUENCE_MIXERS)
    return Case(
        seed=seed,
        mixer=name,
        channels=channels,
        options=mixer_options(rng, name, channels, causal=causal, length=length, double=dtype == torch.float64),
        causal=causal,
        training=rng.random() < 0.5,
        dtype=dtype,
        rows=rows,
        packed=packed,
        mask=rng.choice((torch.bool, torch.long, torch.float32)) if masked else None,
        poison=rng.random() < 0.7,
        layout=rng.choice(LAYOUTS),
        chunks=_chunks(rng, length, max(row[-1].right for row in rows)) if streamed else (),
    )


def build(case: Case) -> Mixer:
    """The mixer of a case, with parameters that are all at work, and decays up to very near 1."""
    torch.manual_seed(case.seed)
    mixer = MIXERS[case.mixer](case.channels, causal=case.causal, **case.options)
    with torch.no_grad():
        for name, parameter in mixer.named_parameters():
            match name.rpartition(".")[2]:
                case "delta" | "alpha":
                    parameter.mul_(15)
                case "rate":
                    parameter.uniform_(-12, 2)
                case "direct" | "bias":
                    parameter.normal_()
    return mixer.train(case.training).to(case.dtype)


def lay_out(x: Tensor, layout: str) -> Tensor:
    """The same values at other strides."""
    match layout:
        case "channels first":
            return x.transpose(1, 2).contiguous().transpose(1, 2)
        case "every second token":
            return x.repeat_interleave(2, dim=1)[:, ::2]
        case "every second channel":
            return x.repeat_interleave(2, dim=2)[:, :, ::2]
        case "offset":
            return torch.cat([x[:, :, :1], x], dim=2)[:, :, 1:]
    return x.clone()


def mixer_options(
    rng: random.Random, name: str, channels: int, *, causal: bool, length: int, double: bool = True
) -> Options:
    """Options of a mixer. double: with those too for which rounding may decide what a gradient is: activations with a
    kink, and norms of what may be nothing."""
    return _Draws(rng, channels, causal, length, double).mixers[name]()


def _rows(
    rng: random.Random, longest: int, *, packed: bool, masked: bool, streamed: bool
) -> tuple[tuple[Document, ...], ...]:
    """Rows of one length. Most streams have padding on the left only."""
    longest = int(longest ** rng.random() ** 0.7)
    behind = not streamed or rng.random() < 0.3
    rows = []
    for _ in range(rng.choice((1, 1, 2, 3))):
        documents, count = [], rng.randint(1, 5) if packed else 1
        most = max(1, longest // count)
        for _ in range(count):
            text = rng.randint(0 if masked and rng.random() < 0.1 else 1, most)
            padding = [rng.choice((0, rng.randint(0, 20), rng.randint(0, most))) if masked else 0 for _ in "lr"]
            documents.append(Document(padding[0], text, padding[1] if behind else 0))
        rows.append(documents)
    if not masked and not packed:
        rows = [rows[0]] * len(rows)
    length = max(sum(map(sum, row)) for row in rows) or 1
    for row in rows:
        missing = length - sum(map(sum, row))
        if streamed:
            row[0] = row[0]._replace(left=row[0].left + missing)
        elif packed and missing:
            row.append(Document(0, 0, missing) if masked else Document(0, missing, 0))
        else:
            row[0] = row[0]._replace(right=row[0].right + missing)
    return tuple(tuple(row) for row in rows)


def _chunks(rng: random.Random, length: int, behind: int) -> tuple[int, ...]:
    """Single tokens, a few, and many, in any order; what is left over comes last, with all padding behind the texts."""
    chunks: list[int] = []
    while (left := length - behind - sum(chunks)) > 0 and len(chunks) < 30:
        chunks.append(min(left, rng.choice((1, rng.randint(1, 9), rng.randint(1, left)))))
    return (*chunks[:-1], length - sum(chunks[:-1]))


class _Draws:
    """Draws of the options of everything in the tables, by name."""

    def __init__(self, rng: random.Random, channels: int, causal: bool, length: int, double: bool):
        self.rng, self.channels, self.causal, self.double = rng, channels, causal, double
        self.activations = ("relu", "silu", "gelu") if double else ("silu", "gelu")
        self.mixers: dict[str, Callable[[], Options]] = {
            "toeplitz": self.toeplitz,
            "gtu": lambda: {"expansion": rng.choice((1, 2)), **self.toeplitz()},
            "attention": lambda: {"heads": self.divisor(), "position": rng.choice(("alibi", "none"))},
            "ema": lambda: {**self.ema(), "engine": rng.choice(EMA_ENGINES)},
            "tcn": self.tcn,
            "chunked_attention": self.chunked_attention,
        }
        self.kernels: dict[str, Callable[[], Options]] = {
            "rpe": self.rpe,
            "free": lambda: {"max_length": length + rng.choice((9, 10, 100)), "decay": rng.choice((*DECAYS, 1.0))},
            "frequency": lambda: {**self.network(), "inputs": rng.choice(("cos", "omega")), "grid": self.skewed(600)},
            "warped": self.warped,
            "ema": self.ema,
            "modal": lambda: {"modes": rng.randint(1, 4)},
        }

    def toeplitz(self) -> Options:
        name = self.rng.choice(list(KERNELS))
        kernel = {"name": name, **self.kernels[name]()}
        engines = [*EXACT_ENGINES]
        if self.causal or KERNELS[name].continuous:
            engines += ["ski"] * 3
        engine: Any = self.rng.choice(engines)
        if engine == "ski" and self.rng.random() < 0.8:
            engine = {"name": "ski", **(self.causal_ski() if self.causal else self.two_sided_ski())}
        return {"kernel": kernel, "engine": engine}

    def causal_ski(self) -> Options:
        if self.rng.random() < 0.1:
            return {"tolerance": self.rng.choice((0.1, 0.01))}
        spacing, degree = self.skewed(12), self.rng.choice((1, 1, 3, 5))
        return {"spacing": spacing, "degree": degree, "width": spacing * (degree + 1) + self.skewed(64)}

    def two_sided_ski(self) -> Options:
        return {"rank": self.rng.randint(2, 80), "degree": self.rng.randint(0, 4)}

    def rpe(self) -> Options:
        learned = self.rng.random() < 0.3
        return {
            **self.network(),
            "inputs": self.rng.choice(("integer", "normalized", "sincos")),
            "scale": self.skewed(600),
            "decay": self.rng.choice(DECAYS if learned else (0.0, *DECAYS, 1.0)),
            "learn_decay": learned,
        }

    def network(self) -> Options:
        activation = self.rng.choice((*self.activations, "tanh", "none"))
        return {"hidden": 2 * self.rng.randint(1, 6), "layers": self.rng.randint(0, 3), "activation": activation}

    def warped(self) -> Options:
        decay, size = self.rng.choice(DECAYS), self.rng.choice((0, self.skewed(40)))
        return {"points": self.skewed(64), "decay": decay, "filter_size": size}

    def ema(self) -> Options:
        return {"dimension": self.rng.randint(1, 5), "truncation": self.rng.choice((None, None, self.skewed(600)))}

    def tcn(self) -> Options:
        size, residual = self.rng.randint(1, 9), self.rng.random() < 0.5
        return {
            "kernel_size": size if self.causal else size | 1,
            "dilation": self.rng.randint(1, 5),
            "depth": self.rng.randint(1, 4),
            "convolutions": self.rng.randint(1, 3),
            "activation": self.rng.choice((*self.activations, "none")),
            "norm": self.rng.choice(("none", "rms") if residual or self.double else ("none",)),
            "residual": residual,
        }

    def chunked_attention(self) -> Options:
        heads = self.divisor()
        even = self.channels // heads % 2 == 0
        return {
            "heads": heads,
            "chunk": self.skewed(300),
            "evaluation_chunk": self.rng.choice((None, self.skewed(300))),
            "function": self.rng.choice(ATTENTION_FUNCTIONS),
            "position": self.rng.choice(("none", "simple", *(("rope", "rotary") if even else ()))),
        }

    def divisor(self) -> int:
        return self.rng.choice([n for n in range(1, self.channels + 1) if self.channels % n == 0])

    def skewed(self, most: int) -> int:
        """From 1 to most, small numbers as likely as large ones."""
        return int(most ** self.rng.random())
