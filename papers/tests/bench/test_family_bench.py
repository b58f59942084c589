"""The benchmark of all mixers measures each once, relative to TNN, and its contract in figures; a wrong one shows."""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import torch
from torch import Tensor

from lagwise.kernels import KERNELS
from lagwise.mixers import MIXERS, Mixer, ShortConvMixer
from lagwise.ops import Layout
from lagwise.tables import build
from lagwise_papers.bench.attention_peers import ATTENTION_PEERS


@pytest.fixture
def family(benchmark_script: Callable[[str], ModuleType]) -> ModuleType:
    return benchmark_script("family_steps")


def given(out: Path, names: str, **options: object) -> argparse.Namespace:
    settings = {"channels": 8, "layers": 1, "lengths": "24", "tokens": 48, "direction": "causal", "repeats": 2}
    return argparse.Namespace(out=out, names=names, **{**settings, "threads": 1, "memory": False, **options})


def test_every_member_is_measured(family: ModuleType) -> None:
    specs = family.token_mixers(512)
    measured = {spec["name"] for spec in specs.values()}
    assert measured == set(MIXERS)
    assert {spec["kernel"]["name"] for spec in specs.values() if spec["name"] == "gtu"} == set(KERNELS)
    assert set(ATTENTION_PEERS) < set(family.names())


def test_each_result_is_saved_at_once(family: ModuleType, tmp_path: Path) -> None:
    out = tmp_path / "family.json"
    family.main(given(out, "lru,gfnet"))
    rows = json.loads(out.read_text())["results"]["rows"]
    assert [(row["name"], row["direction"], row["batch"]) for row in rows] == [
        ("lru", "causal", 2),
        ("gfnet", "two-sided", 2),
    ]
    assert all(row["step"]["median"] > 0 and row["tnn"]["median"] > 0 and row["error"] < 1e-3 for row in rows)
    family.main(given(out, "lru,gfnet,tcnca"))
    again = json.loads(out.read_text())["results"]["rows"]
    assert again[:2] == rows
    assert [row["name"] for row in again] == ["lru", "gfnet", "tcnca"]


def test_a_mixer_of_another_package_is_measured(
    family: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It has no dense reference, but a look ahead still stops it."""

    class Theirs(Mixer):
        directions, streams, ahead = (True,), False, 0

        def __init__(self, channels: int, *, causal: bool = True):
            super().__init__(channels, causal)

        def mix(self, x: Tensor, state: None, layout: Layout) -> tuple[Tensor, None]:
            return x.cumsum(1).roll(-self.ahead, 1), None

    Theirs.__module__ = "theirs"
    monkeypatch.setitem(MIXERS, "theirs", Theirs)
    family.main(given(tmp_path / "family.json", "theirs"))
    rows = json.loads((tmp_path / "family.json").read_text())["results"]["rows"]
    assert [row["name"] for row in rows] == ["theirs"]
    assert rows[0]["error"] < 1e-3
    monkeypatch.setattr(Theirs, "ahead", 1)
    with pytest.raises(ValueError, match="off by"):
        family.check("theirs", family.stack("theirs", True, 1, 8, 24), 8, 24, True)


@pytest.mark.parametrize(("fault", "what"), [(1.01, "scaled"), (None, "leaky")])
def test_wrong_results_are_not_timed(
    family: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, fault: float | None, what: str
) -> None:
    mix = ShortConvMixer.mix

    def wrong(self: ShortConvMixer, x: torch.Tensor, state: None, layout: Layout) -> tuple[torch.Tensor, None]:
        y, _ = mix(self, x, state, layout)
        return y * fault if fault else y + 0.1 * y.roll(-1, 1), None

    monkeypatch.setattr(ShortConvMixer, "mix", wrong)
    out = tmp_path / "family.json"
    family.main(given(out, "short_conv"))
    (row,) = json.loads(out.read_text())["results"]["rows"]
    assert "step" not in row
    assert "of the largest value" in row["refused"]


@pytest.fixture
def contract(benchmark_script: Callable[[str], ModuleType]) -> ModuleType:
    return benchmark_script("contract")


@pytest.mark.parametrize("name", ["tnn", "gmlp", "fnet", "gtu2d"])
@torch.no_grad()
def test_errors_are_those_of_rounding(contract: ModuleType, name: str) -> None:
    mixer = build(
        MIXERS, contract.token_mixers(100)[name], 8, what="mixer", causal=contract.directions(name)[0]
    ).double()
    found = dict(contract.errors(mixer, 100, torch.float64))
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
def test_a_wrong_mixer_shows(contract: ModuleType, monkeypatch: pytest.MonkeyPatch) -> None:
    mixer: Mixer = Wrong(8, causal=True).double()
    monkeypatch.setattr(
        sys.modules["family_steps"], "reference", lambda right, x: ShortConvMixer(8).double()(x[None])[0]
    )
    found = dict(contract.errors(mixer, 100, torch.float64))
    assert min(found.values()) > 1e-3, found
