"""The table of trainings on Long Range Arena."""

from __future__ import annotations

import importlib
import json
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

DOCS = Path(__file__).parents[3] / "docs"


@pytest.fixture
def arena(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> ModuleType:
    monkeypatch.syspath_prepend(str(DOCS))
    module = importlib.import_module("measured.arena")
    monkeypatch.setattr(sys.modules["tables"], "RESULTS", tmp_path)
    return module


def test_runs_stand_beside_published_figures(arena: ModuleType, tmp_path: Path) -> None:
    assert arena.trainings() == ""
    run: dict[str, Any] = {
        "machine": {"parameters": 172866},
        "layers": 4,
        "width": 64,
        "elapsed_seconds": 4500,
        "rows_seen": 96000,
        "curve": [(step, 0.5, 0.5 + step / 30) for step in range(1, 13)],
        "scores": {"test": {"accuracy": 0.86}},
    }
    baseline = {"rows_seen": 2000, "scores": {"test": {"accuracy": 0.7}}}
    path_x = {"recipe": "lra-path-x", "losses": [(5, 0.7), (50, 0.69)], "memory": 2**30}
    found = {
        "text-fd-tnn": run,
        "pathfinder-tcn-mlp-2d": {**run, "curve": run["curve"][:3], "overrides": ["model=x", "data.source=y"]},
        "text-transformer": {**run, "curve": run["curve"][:2]},
        "retrieval-bytes": baseline,
        "path-x-tnn-2d": {**run, **path_x, "rows_seen": 200},
    }
    content = {"results": found, "threads": 2, "processor": "Example", "torch": "2.13.0", "command": "python x.py"}
    (tmp_path / "arena-cpu.json").write_text(json.dumps(content))
    text = arena.trainings()
    assert "| text-fd-tnn | 172,866 | 4 x 64 | 75 | 96,000 | 63.3, 76.7, 90.0 | 86.00 | 85.00 |" in text
    assert "| pathfinder-tcn-mlp-2d | 172,866 | 4 x 64 | 75 | 96,000 | 53.3, 56.7, 60.0 | 86.00 | 97.2 |" in text
    assert "| changes of the recipe |\n|---|---|\n| pathfinder-tcn-mlp-2d | `model=x` |\n\n" in text
    assert "| text-transformer | 172,866 | 4 x 64 | 75 | 96,000 | 53.3, 56.7 | 86.00 | 61.95 |" in text
    assert "| retrieval-bytes | - | - | - | 2,000 | - | 70.00 | - |" in text
    steps = "50 steps of the recipe lra-path-x with 200 images, one at a time, took 75 minutes and at most 1,024 MB"
    assert steps in text


def test_speeds_are_relative_to_the_transformer_and_to_the_papers_baselines(arena: ModuleType, tmp_path: Path) -> None:
    speeds = importlib.import_module("measured.arena_speed").speeds
    assert speeds() == ""
    rows = []
    for number, model in enumerate(("transformer", "tnn", "fd-tnn", "ski-tnn", "mega", "tcnca", "tnn-2d"), 1):
        for task in ("text", "image"):
            if task == "image" or model != "tnn-2d":
                times = {"forward": {"median": 1 / number}, "step": {"median": 2 / number}}
                rows.append({"task": task, "model": model, "memory": 100 * number, **times})
    content = {"results": rows, "threads": 2, "processor": "Example", "torch": "2.13.0", "command": "lagwise bench lra"}
    (tmp_path / "lra-cpu.json").write_text(json.dumps(content))
    steps, memory, papers = (part for part in speeds().split("\n\n") if part.startswith("|"))
    assert "| training steps | text | image |" in steps
    assert "| tnn | 2.00 | 2.00 |" in steps
    assert "| tnn-2d | - | 7.00 |" in memory
    assert "| fd-tnn over tnn: training steps | 1.50 | 1.50 |" in papers
    assert "| ski-tnn over tnn: memory | 2.00 | 2.00 |" in papers
    assert "| tcnca over mega: forward passes | 1.20 | 1.20 |\n| - as published | 1.25 | 1.24 |" in papers


def test_every_run_has_a_published_figure(arena: ModuleType, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(DOCS.parent / "papers" / "benchmarks"))
    monkeypatch.delitem(sys.modules, "arena", raising=False)
    plan = importlib.import_module("arena").PLAN
    monkeypatch.delitem(sys.modules, "arena")
    published = arena._published()
    for name in plan:
        task, _, model = name.partition("-")
        assert float(published[arena._PUBLISHED_AS[model]][task]) > 38
