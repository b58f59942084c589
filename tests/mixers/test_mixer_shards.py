"""Mixers on rows that are split between processes: the values and all gradients of one process."""

from __future__ import annotations

import itertools
import os
import sys
from typing import Any

import pytest
import torch
import torch.distributed as dist
from every_mixer import CHANNELS, OPTIONS, make
from processes import run_together

from lagwise.mixers import MIXERS, ChunkedAttentionMixer, TimestepNorm
from lagwise.testing import shard_difference, split_layouts

pytestmark = pytest.mark.skipif(os.name != "posix", reason="needs fork")
LENGTH = 60
# The sizes of shards: unequal, shorter than most reaches, and one of a single token.
SIZES = {2: (23, 37), 3: (20, 1, 39), 4: (15, 16, 15, 14)}
REFUSED = {"synthesizer", "long_short", "flash", "afno"}
Case = tuple[str, dict[str, Any], bool]
EVERY: list[Case] = [(name, options, causal) for name, options in OPTIONS for causal in MIXERS[name].directions]


def check(cases: list[Case], kinds: list[str]) -> None:
    dist.init_process_group("gloo")
    wrong = []
    for name, options, causal in cases:
        torch.manual_seed(0)
        mixer = make(name, options, causal=causal).train()
        for kind in kinds:
            if name in REFUSED:
                with pytest.raises(ValueError, match=f"{type(mixer).__name__} cannot mix a sequence that is split"):
                    mixer.require_shards()
                continue
            difference, where = shard_difference(mixer, split_layouts(LENGTH)[kind], SIZES[dist.get_world_size()])
            if not difference < 1e-10:
                wrong.append(f"{name} {options} causal={causal} {kind}: {where} {difference:.1e}")
    finish(wrong)


def check_norms() -> None:
    dist.init_process_group("gloo")
    wrong = []
    sizes = SIZES[dist.get_world_size()]
    for groups, causal in itertools.product((1, 2, CHANNELS), (True, False)):
        norm = TimestepNorm(CHANNELS, causal=causal, groups=groups).double()
        for kind, layout in split_layouts(LENGTH).items():
            if not (difference := shard_difference(norm, layout, sizes)[0]) < 1e-10:
                wrong.append(f"{groups} groups causal={causal} {kind}: {difference}")
    sliding = ChunkedAttentionMixer(CHANNELS, chunk=4, heads=2, sliding=True).double()
    for kind, layout in split_layouts(LENGTH).items():
        if not (difference := shard_difference(sliding, layout, sizes)[0]) < 1e-10:
            wrong.append(f"sliding chunks {kind}: {difference}")
    finish(wrong)


def finish(wrong: list[str]) -> None:
    """End a process, with what is wrong."""
    if wrong:
        print(*wrong, sep="\n", file=sys.stderr)
    dist.barrier()
    dist.destroy_process_group()
    sys.exit(len(wrong) > 0)


@pytest.mark.slow
def test_a_norm_over_time() -> None:
    assert run_together(check_norms, count=3) == [0] * 3


@pytest.mark.slow
@pytest.mark.parametrize("count", sorted(SIZES))
def test_every_mixer_of_the_table(count: int) -> None:
    assert run_together(check, EVERY, list(split_layouts(LENGTH)), count=count) == [0] * count
