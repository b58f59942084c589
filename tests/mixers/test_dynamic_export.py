"""Graphs of `torch.export` whose batch and length stay open."""

from __future__ import annotations

import pytest
import torch
from every_mixer import OPTIONS, make, noise
from torch.export import Dim

exported_mixers = pytest.mark.parametrize(("name", "options"), OPTIONS, ids=lambda v: str(v) if v else "default")


@exported_mixers
@torch.no_grad()
def test_one_graph_serves_all_lengths(name: str, options: dict) -> None:
    check(name, options, causal=True)


@pytest.mark.slow
@exported_mixers
@torch.no_grad()
def test_one_two_sided_graph_serves_all_lengths(name: str, options: dict) -> None:
    if isinstance(options.get("engine"), dict) or options.get("engine") == "ski":
        pytest.skip("two-sided SKI has as many nodes at every length: it is exported at one")
    check(name, options, causal=False)


def check(name: str, options: dict, *, causal: bool) -> None:
    mixer = make(name, options, causal=causal).eval()
    shapes = ({0: Dim.DYNAMIC, 1: Dim.DYNAMIC},)
    exported = torch.export.export(mixer, (noise(2, 48),), dynamic_shapes=shapes).module()
    for batch, length in ((1, 2 if causal else 3), (3, 77), (2, 300)):
        x = noise(batch, length)
        torch.testing.assert_close(exported(x), mixer(x), rtol=0, atol=1e-9)
