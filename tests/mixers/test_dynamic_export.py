"""Graphs of `torch.export` with dynamic batch size and length."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from every_mixer import OPTIONS, make, noise
from family_references import FAMILY
from torch.export import Dim

# One of each kind of graph; the others are in the slow suite.
QUICK = [
    ("ema", {}),
    ("chunked_attention", {"chunk": 7}),
    ("gtu", {"kernel": {"name": "frequency", "inputs": "omega"}}),
    ("gtu", {"kernel": {"name": "warped"}, "engine": "ski"}),
]
exported_mixers = pytest.mark.parametrize(
    ("name", "options"),
    [
        pytest.param(*case, marks=() if case in QUICK else pytest.mark.slow)
        for case in [*OPTIONS, ("chunked_attention", {"chunk": 7, "sliding": True})]
        if case[0] not in FAMILY  # the mixers of other models are exported at one length
    ],
    ids=lambda v: str(v) if v else "default",
)


@pytest.mark.slow
@exported_mixers
@torch.no_grad()
def test_one_graph_supports_all_lengths(name: str, options: dict) -> None:
    check(name, options, causal=True)


@pytest.mark.slow
@exported_mixers
@torch.no_grad()
def test_one_two_sided_graph_supports_all_lengths(name: str, options: dict) -> None:
    check(name, {key: value for key, value in options.items() if key != "sliding"}, causal=False)


SKI = {"kernel": {"name": "warped"}, "engine": "ski"}


@pytest.mark.slow
@torch.no_grad()
@pytest.mark.parametrize(("causal", "engine"), [(True, "ski"), (False, {"name": "ski", "spacing": 9})])
def test_masks_of_ski_have_dynamic_shapes(causal: bool, engine: Any) -> None:
    """Also for rows with fewer tokens than nodes."""
    mixer = make("toeplitz", {**SKI, "engine": engine}, causal=causal).eval()
    shapes = {"x": {0: Dim.DYNAMIC, 1: Dim.DYNAMIC}, "mask": {0: Dim.DYNAMIC, 1: Dim.DYNAMIC}}
    example = {"x": noise(2, 48), "mask": torch.ones(2, 48)}
    exported = torch.export.export(mixer, (), example, dynamic_shapes=shapes).module()
    check_masks(mixer, exported, 40)
    check_masks(mixer, exported, 131)


def check_masks(mixer: Any, exported: Any, length: int) -> None:
    mask = torch.ones(3, length)
    mask[0, :9], mask[1, -5:], mask[2, 20:] = 0, 0, 0
    for each in (mask, torch.ones_like(mask)):
        x = noise(3, length)
        difference = (exported(x=x, mask=each) - mixer(x, mask=each)) * each[..., None]
        assert difference.abs().max() < 1e-9


def check(name: str, options: dict, *, causal: bool) -> None:
    mixer = make(name, options, causal=causal).eval()
    shapes = ({0: Dim.DYNAMIC, 1: Dim.DYNAMIC},)
    exported = torch.export.export(mixer, (noise(2, 48),), dynamic_shapes=shapes).module()
    for batch, length in ((1, 2 if causal else 3), (3, 77), (2, 300)):
        x = noise(batch, length)
        torch.testing.assert_close(exported(x), mixer(x), rtol=0, atol=1e-9)
