"""Mixers on rows that are split between processes: the values and all gradients of one process."""

from __future__ import annotations

import os
import sys
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from types import SimpleNamespace
from typing import Any

import pytest
import torch
import torch.distributed as dist
from every_mixer import CHANNELS, OPTIONS, make
from processes import run_together
from torch import Tensor

from lagwise.mixers import MIXERS, ChunkedAttentionMixer, Mixer, TimestepNorm
from lagwise.ops import Layout, shards
from lagwise.testing import shard_difference, split_layouts

pytestmark = pytest.mark.skipif(os.name != "posix", reason="needs fork")
LENGTH = 60
# The sizes of shards: unequal, shorter than most reaches, and one of a single token.
SIZES = {2: (23, 37), 3: (20, 1, 39), 4: (15, 16, 15, 14)}
REFUSED = {"synthesizer", "long_short", "flash", "afno"}
CASES: dict[str, Callable[[], Mixer]] = {
    f"{name} {options} causal={causal}": partial(make, name, options, causal=causal)
    for name, options in OPTIONS
    if name not in REFUSED
    for causal in MIXERS[name].directions
}
for groups in (1, 2, CHANNELS):
    for causal in (True, False):
        CASES[f"norm {groups} causal={causal}"] = partial(TimestepNorm, CHANNELS, causal=causal, groups=groups)
CASES["sliding chunks"] = partial(ChunkedAttentionMixer, CHANNELS, chunk=4, heads=2, sliding=True)


def check() -> None:
    dist.init_process_group("gloo")
    wrong = []
    for case, made in CASES.items():
        torch.manual_seed(0)
        mixer = made().double()
        for kind, layout in split_layouts(LENGTH).items():
            difference, where = shard_difference(mixer, layout, SIZES[dist.get_world_size()])
            if not difference < 1e-10:
                wrong.append(f"{case} {kind}: {where} {difference:.1e}")
    print(*wrong, sep="\n", file=sys.stderr)
    dist.barrier()
    dist.destroy_process_group()
    sys.exit(len(wrong) > 0)


@pytest.mark.slow
@pytest.mark.parametrize("count", sorted(SIZES))
def test_every_mixer_of_the_table(count: int) -> None:
    assert run_together(check, count=count) == [0] * count


@pytest.mark.parametrize("name", sorted(REFUSED))
def test_mixers_that_refuse_shards(name: str) -> None:
    mixer = make(name, {})
    with pytest.raises(ValueError, match=f"{type(mixer).__name__} cannot mix a sequence that is split"):
        mixer.require_shards()


def in_threads(mixer: Mixer, sizes: Sequence[int], *tensors: Tensor | None) -> Tensor:
    """The outputs of shards of x, mask and seq_idx in threads in place of processes: what they exchange is of one
    graph."""
    boxes, barrier = [[torch.empty(0)]] * len(sizes), threading.Barrier(len(sizes), timeout=60)

    def swapped(sent: list[Tensor], shapes: list[tuple[int, ...]], rank: Any) -> list[Tensor]:
        boxes[rank] = sent
        barrier.wait()
        received = [each[rank].reshape(shape) for each, shape in zip(boxes, shapes, strict=True)]
        barrier.wait()
        return received

    def work(rank: Any) -> Tensor:
        x, mask, seq_idx = (None if t is None else t.split(list(sizes), 1)[rank] for t in tensors)
        assert x is not None
        try:
            shard = shards.Shard(rank, len(x), x.shape[1], mask, seq_idx, x.device)
            return mixer(x, layout=Layout(mask, seq_idx, shard=shard))
        except BaseException:
            barrier.abort()
            raise

    known = SimpleNamespace(get_rank=lambda rank: rank, get_world_size=lambda _: len(sizes))
    with pytest.MonkeyPatch.context() as patch, ThreadPoolExecutor(len(sizes)) as threads:
        patch.setattr(shards, "dist", known)
        patch.setattr(shards, "_swapped", swapped)
        return torch.cat(list(threads.map(work, range(len(sizes)))), 1)


@pytest.mark.cpu
@pytest.mark.parametrize(
    "case", [case if "{}" in case or "{" not in case else pytest.param(case, marks=pytest.mark.slow) for case in CASES]
)
def test_shards_in_threads(case: str) -> None:
    mixer = CASES[case]().double()
    x = torch.randn(3, LENGTH, CHANNELS, dtype=torch.float64, requires_grad=True)
    for mask, seq_idx in split_layouts(LENGTH).values():
        slope = torch.randn(x.shape, dtype=torch.float64) * (1 if mask is None else mask[..., None])
        leaves = [x, *(p for p in mixer.parameters() if p.requires_grad)]
        found = []
        for y in (in_threads(mixer, SIZES[3], x, mask, seq_idx), mixer(x, layout=Layout(mask, seq_idx))):
            gradients = torch.autograd.grad((y * slope).sum(), leaves, allow_unused=True, materialize_grads=True)
            found.append([(y * slope).detach(), *gradients])
        for ours, whole in zip(*found, strict=True):
            torch.testing.assert_close(ours, whole, rtol=0, atol=1e-9 * max(1.0, float(whole.abs().max())))
