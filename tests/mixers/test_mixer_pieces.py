"""Mixers on rows that are split between processes: the values and all gradients of one process."""

from __future__ import annotations

import copy
import itertools
import os
import sys
from typing import Any

import pytest
import torch
import torch.distributed as dist
from every_mixer import CHANNELS, OPTIONS, make
from processes import run_together
from torch import Tensor

from lagwise.mixers import MIXERS, ChunkedAttentionMixer, Mixer, TimestepNorm
from lagwise.ops import Layout
from lagwise.ops.pieces import Pieces

pytestmark = pytest.mark.skipif(os.name != "posix", reason="needs fork")
ROWS, LENGTH = 3, 60
# The sizes of pieces: unequal, shorter than most reaches, and one of a single token.
SIZES = {2: (23, 37), 3: (20, 1, 39), 4: (15, 16, 15, 14)}
REFUSED = {"synthesizer", "long_short", "flash", "afno"}
Case = tuple[str, dict[str, Any], bool]
EVERY: list[Case] = [(name, options, causal) for name, options in OPTIONS for causal in MIXERS[name].directions]
QUICK: list[Case] = [
    ("toeplitz", {"kernel": {"name": "rpe", "decay": 0.05, "hidden": 8, "layers": 1}}, True),
    ("toeplitz", {"kernel": {"name": "rpe", "decay": 0.05, "hidden": 8, "layers": 1}}, False),
    ("toeplitz", {"kernel": {"name": "cema", "dimension": 4}}, False),
    ("gtu", {"kernel": {"name": "warped"}, "engine": "ski"}, True),
    ("hyena", {}, False),
    ("ema", {}, True),
    ("ema", {}, False),
    ("lru", {}, True),
    ("tcn", {"kernel_size": 3, "depth": 2}, False),
    ("chunked_attention", {"chunk": 7}, False),
    ("attention", {}, True),
    ("linear_attention", {"feature_map": "cosformer", "heads": 1}, True),
    ("short_conv", {}, True),
]


def layouts() -> dict[str, tuple[Tensor | None, Tensor | None]]:
    """Masks and documents of whole rows; documents end at, before and behind the borders of pieces."""
    place = torch.arange(LENGTH)
    mask = torch.stack([place >= 11, place < 41, place >= 0])
    ends = torch.tensor([[5, 20, 23, 50], [23, 24, 37, 60], [1, 2, 3, 4]])
    documents = (place[None, :, None] >= ends[:, None]).sum(2)
    return {"plain": (None, None), "padded": (mask, None), "packed": (None, documents), "both": (mask, documents)}


def gradients(mixer: Mixer, x: Tensor) -> list[Tensor]:
    wanted = [p for p in mixer.parameters() if p.requires_grad]
    return [torch.zeros_like(p) if p.grad is None else p.grad for p in wanted] + [x.grad]  # type: ignore[bad-return]


def worst(mixer: Mixer, mask: Tensor | None, seq_idx: Tensor | None) -> tuple[float, str]:
    """The largest difference between this process's pieces and the whole, relative to the largest number."""
    sizes = SIZES[dist.get_world_size()]
    start = sum(sizes[: dist.get_rank()])
    own = slice(start, start + sizes[dist.get_rank()])
    torch.manual_seed(1)
    x, slope = torch.randn(2, ROWS, LENGTH, CHANNELS, dtype=torch.float64)
    if mask is not None:
        slope = slope * mask[..., None]
    whole, part = copy.deepcopy(mixer), copy.deepcopy(mixer)
    a, b = x.clone().requires_grad_(), x[:, own].clone().requires_grad_()
    y = whole(a, layout=Layout(mask, seq_idx))
    y.backward(slope)
    mine = [None if t is None else t[:, own] for t in (mask, seq_idx)]
    pieces = Pieces(dist.group.WORLD, ROWS, own.stop - own.start, mine[0], mine[1], x.device)
    z = part(b, layout=Layout(*mine, pieces=pieces))
    z.backward(slope[:, own])
    real = slice(None) if mine[0] is None else mine[0]
    pairs = [("output", z[real], y[:, own][real], y)]
    names = [name for name, p in mixer.named_parameters() if p.requires_grad]
    for name, found, expected in zip([*names, "x"], gradients(part, b), gradients(whole, a), strict=True):
        if name == "x":
            pairs.append((name, found, expected[:, own], expected))
        else:
            dist.all_reduce(found)
            pairs.append((name, found, expected, expected))
    scores = [((f - e).abs().max().item() / max(s.abs().max().item(), 1e-9), n) for n, f, e, s in pairs if f.numel()]
    return max(scores)


def check(cases: list[Case], kinds: list[str]) -> None:
    dist.init_process_group("gloo")
    wrong = []
    for name, options, causal in cases:
        torch.manual_seed(0)
        mixer = make(name, options, causal=causal).train()
        for kind in kinds:
            if name in REFUSED:
                with pytest.raises(ValueError, match=f"{type(mixer).__name__} cannot mix a sequence that is split"):
                    mixer.require_pieces()
                continue
            found, where = worst(mixer, *layouts()[kind])
            if not found < 1e-10:
                wrong.append(f"{name} {options} causal={causal} {kind}: {where} {found:.1e}")
    finish(wrong)


def check_norms() -> None:
    dist.init_process_group("gloo")
    wrong = []
    choices = [(groups, causal, None) for groups, causal in itertools.product((1, 2, CHANNELS), (True, False))]
    for groups, causal, decay in [*choices, (2, True, (0.6, 0.9))]:
        norm = TimestepNorm(CHANNELS, causal=causal, groups=groups, decay=decay).double()
        for kind, layout in layouts().items():
            if not (found := worst(norm, *layout))[0] < 1e-10:
                wrong.append(f"{groups} groups causal={causal} decay={decay} {kind}: {found}")
    sliding = ChunkedAttentionMixer(CHANNELS, chunk=4, heads=2, sliding=True).double()
    for kind in ("plain", "packed"):
        if not (found := worst(sliding, *layouts()[kind]))[0] < 1e-10:
            wrong.append(f"sliding chunks {kind}: {found}")
    finish(wrong)


def finish(wrong: list[str]) -> None:
    """End a process, with what is wrong."""
    if wrong:
        print(*wrong, sep="\n", file=sys.stderr)
    dist.barrier()
    dist.destroy_process_group()
    sys.exit(len(wrong) > 0)


def test_pieces_equal_the_whole() -> None:
    assert run_together(check, QUICK, ["plain", "both"]) == [0, 0]


def test_a_norm_over_time() -> None:
    assert run_together(check_norms, count=3) == [0] * 3


@pytest.mark.slow
@pytest.mark.parametrize("count", sorted(SIZES))
def test_every_mixer_of_the_table(count: int) -> None:
    assert run_together(check, EVERY, list(layouts()), count=count) == [0] * count
