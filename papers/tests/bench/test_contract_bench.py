"""The contract in figures: every error of every mixer is measured, and a wrong mixer shows."""

from __future__ import annotations

import sys
from collections.abc import Callable
from types import ModuleType
from typing import Any

import pytest
import torch
from torch import Tensor

from lagwise.mixers import MIXERS, Mixer, ShortConvMixer
from lagwise.ops import Layout
from lagwise.tables import build


@pytest.fixture
def script(benchmark_script: Callable[[str], ModuleType]) -> ModuleType:
    return benchmark_script("contract")


@pytest.mark.parametrize("name", ["tnn", "gmlp", "fnet", "gtu2d"])
@torch.no_grad()
def test_errors_are_those_of_rounding(script: ModuleType, name: str) -> None:
    mixer = build(MIXERS, script.token_mixers(100)[name], 8, what="mixer", causal=script.directions(name)[0]).double()
    found = dict(script.errors(mixer, 100, torch.float64))
    wanted = {"formula"} | (set() if mixer.needs_grid else {"padding", "packing"})
    wanted |= ({"future", "streaming"} if mixer.streams else {"future"}) if mixer.causal else set()
    assert found.keys() == wanted
    assert max(found.values()) < 1e-12


class Wrong(ShortConvMixer):
    """Mixes padding and later tokens."""

    def mix(self, x: Tensor, state: Any, layout: Layout) -> tuple[Tensor, Any]:
        y, state = super().mix(x, state, layout)
        return y + x.roll(-1, 1), state


@torch.no_grad()
def test_a_wrong_mixer_shows(script: ModuleType, monkeypatch: pytest.MonkeyPatch) -> None:
    mixer: Mixer = Wrong(8, causal=True).double()
    monkeypatch.setattr(
        sys.modules["family_steps"], "reference", lambda right, x: ShortConvMixer(8).double()(x[None])[0]
    )
    found = dict(script.errors(mixer, 100, torch.float64))
    assert min(found.values()) > 1e-3, found
