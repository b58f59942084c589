"""Random cases: a mixer, its options, rows with padding and documents, and the calling convention.

A seed determines its case and all random values.
"""

from __future__ import annotations

import random
from dataclasses import dataclass
from typing import NamedTuple

import torch
from options import Options, mixer_options
from poison import within
from torch import Tensor

from lagwise.mixers import MIXERS, Mixer

LONGEST = 3000
QUICK = 100  # seeds of the normal suite, of which one in ten is as long as any
_QUICK_LONGEST = 300
_LARGEST_GRID = 400  # tokens; its reference takes rows and columns one by one
LAYOUTS = ("contiguous", "channels first", "every second token", "every second channel", "offset")


class Document(NamedTuple):
    """Numbers of tokens: padding, text, padding."""

    left: int
    text: int
    right: int


class Image(NamedTuple):
    """The position of an image in its grid."""

    top: int
    left: int
    height: int
    width: int


@dataclass(frozen=True)
class Case:
    """rows: documents of each; more than one only if packed. grid and images: its height and width and one image a
    row, for mixers that need a grid. mask: its dtype, None for no mask. poison: whether padding is NaN and infinity.
    chunks: how a stream is cut; none if it is not streamed."""

    seed: int
    mixer: str
    options: Options
    channels: int
    causal: bool
    training: bool
    dtype: torch.dtype
    rows: tuple[tuple[Document, ...], ...]
    packed: bool
    grid: tuple[int, int] | None
    images: tuple[Image, ...]
    mask: torch.dtype | None
    poison: bool
    layout: str
    chunks: tuple[int, ...]

    @property
    def texts(self) -> list[int]:
        """Numbers of tokens of every text or image."""
        if self.grid is not None:
            return [image.height * image.width for image in self.images]
        return [document.text for row in self.rows for document in row]

    def real(self) -> Tensor:
        """A mask of the tokens of texts and images, ``(batch, length)``."""
        if self.grid is not None:
            across = torch.stack([within(self.grid[1], p.left, p.left + p.width) for p in self.images])
            down = torch.stack([within(self.grid[0], p.top, p.top + p.height) for p in self.images])
            return (down[:, :, None] & across[:, None]).flatten(1)
        return torch.stack([torch.cat([within(sum(d), d.left, d.left + d.text) for d in row]) for row in self.rows])


def draw(seed: int) -> Case:
    """The case of a seed."""
    rng = random.Random(seed)
    longest = _QUICK_LONGEST if seed < QUICK and seed % 10 else LONGEST
    longest = int(longest ** rng.random() ** 0.7)
    name = list(MIXERS)[seed // 2 % len(MIXERS)]  # every second seed of the normal suite is slow
    dtype, masked = rng.choice((torch.float32, torch.float64)), rng.random() < 0.7
    kind = MIXERS[name]
    causal = kind.directions[0] if len(kind.directions) == 1 else rng.random() < 0.7
    streamed = causal and kind.streams and rng.random() < 0.6
    packed = not streamed and rng.random() < 0.4
    rows, grid, images = (), None, ()
    if kind.needs_grid:
        packed = False
        grid, images = _images(rng, min(longest, _LARGEST_GRID), masked=masked)
        length = max(grid)
    else:
        rows = _rows(rng, longest, packed=packed, masked=masked, streamed=streamed)
        length = sum(map(sum, rows[0]))
    channels = rng.randint(1, 5)
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
        grid=grid,
        images=images,
        mask=rng.choice((torch.bool, torch.long, torch.float32)) if masked else None,
        poison=rng.random() < 0.7,
        layout=rng.choice(LAYOUTS),
        chunks=_chunks(rng, length, max(row[-1].right for row in rows)) if streamed else (),
    )


def build(case: Case) -> Mixer:
    """The mixer of a case, with parameters that all affect the output, and decays up to very near 1."""
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
    """The same values with other strides."""
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


def _rows(
    rng: random.Random, longest: int, *, packed: bool, masked: bool, streamed: bool
) -> tuple[tuple[Document, ...], ...]:
    """Rows of one length. Most streams have padding on the left only."""
    behind = not streamed or rng.random() < 0.3
    rows = []
    for _ in range(rng.choice((1, 1, 2, 3))):
        documents, count = [], rng.randint(1, 5) if packed else 1
        most = max(1, longest // count)
        for _ in range(count):
            text = rng.randint(0 if masked and rng.random() < 0.1 else 1, most)
            padding = [rng.choice((0, rng.randint(0, 20), rng.randint(0, most // 2))) if masked else 0 for _ in "lr"]
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


def _images(rng: random.Random, longest: int, *, masked: bool) -> tuple[tuple[int, int], tuple[Image, ...]]:
    """A grid with a limited number of tokens, and the images in it; without a mask they fill the grid."""
    height = int(longest ** rng.random())
    width = rng.randint(1, longest // height)
    images = []
    for _ in range(rng.randint(1, 3)):
        h, w = (rng.randint(1, size) if masked else size for size in (height, width))
        images.append(Image(rng.randint(0, height - h), rng.randint(0, width - w), h, w))
    return (height, width), tuple(images)


def _chunks(rng: random.Random, length: int, behind: int) -> tuple[int, ...]:
    """Single tokens, a few, and many, in any order. The rest, with all padding after the texts, comes last."""
    chunks: list[int] = []
    while (left := length - behind - sum(chunks)) > 0 and len(chunks) < 30:
        chunks.append(min(left, rng.choice((1, rng.randint(1, 9), rng.randint(1, left)))))
    return (*chunks[:-1], length - sum(chunks[:-1]))
