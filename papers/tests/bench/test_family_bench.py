"""The benchmark of all mixers measures each once, relative to TNN, and its contract in figures; a wrong one shows."""

from __future__ import annotations

import argparse
import json
from collections.abc import Callable
from pathlib import Path
from types import ModuleType

import pytest
import torch

from lagwise.kernels import KERNELS
from lagwise.mixers import MIXERS, ShortConvMixer
from lagwise.ops import Layout
from lagwise.tables import build


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
