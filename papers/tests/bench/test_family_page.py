"""The tables of language models of one size, from results files."""

from __future__ import annotations

import importlib
import json
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

ROOT = Path(__file__).parents[3]


@pytest.fixture
def family(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> ModuleType:
    monkeypatch.syspath_prepend(str(ROOT / "docs"))
    module = importlib.import_module("measured.family")
    monkeypatch.setattr(sys.modules["tables"], "RESULTS", tmp_path)
    return module


def save(folder: Path, name: str, results: dict[str, Any]) -> None:
    content = {"results": results, "threads": 1, "processor": "Example", "torch": "2.13.0", "command": "python x.py"}
    (folder / name).write_text(json.dumps(content))


def run(perplexity: float, steps: int, lengths: tuple[int, ...] = (512, 1024)) -> dict[str, Any]:
    return {
        "parameters": 2_500_000,
        "tokens_per_second": 5000.4,
        "minutes": 20.0,
        "elapsed_seconds": 1500.0,
        "machine": {"bfloat16": False},
        "curve": [(steps // 2, 6.0), (steps, 4.0)],
        "scores": {
            "valid": {"length": 512, "perplexity": perplexity + 2},
            "test": [{"length": n, "perplexity": perplexity + n / 512} for n in lengths],
        },
    }


def test_models_are_ordered_by_perplexity_and_compared_at_one_step(family: ModuleType, tmp_path: Path) -> None:
    assert family.comparison() == family.ablations() == family.other_code() == ""
    found = {"gmlp": run(90, 100, (512,)), "tnn": run(50, 80)}
    found["tnn-seed1"] = {**run(52, 80), "machine": {"bfloat16": True}}
    save(tmp_path, "language-family-cpu.json", found)
    text = family.comparison()
    assert "| tnn | 2.50M | 5,000 | 4.000 | 53.0 ± 1.4 | 52.0 ± 1.4 | 53.0 ± 1.4 | 24.67, 23.46 |" in text
    assert "| gmlp | 2.50M | 5,000 | 4.800 | 92.0 | 91.0 | – | 29.13, 9e+22 |" in text
    assert text.index("| tnn |") < text.index("| gmlp |")
    assert "Another processor trained tnn-seed1, in bfloat16" in " ".join(text.split())
    ablated = {"decay-0.99": run(50, 80), "decay-1": run(60, 90), "without-rpe": run(70, 90, (512,))}
    save(tmp_path, "language-ablations-cpu.json", ablated)
    save(tmp_path, "language-family-cpu.json", {"gss": run(40, 80), **found})
    text = " ".join(family.comparison().split())
    assert "the paper is -0.50 over 3 models. Of these, gss moved furthest up (2) and tnn furthest down (1)." in text
    assert "is at most 2.7% of the perplexity (1 model)" in text
    text = family.ablations()
    assert "| decay-0.99 | 51.0 | 51.5 | 23.98 | 23.70 |" in text
    assert "| decay-1 | 61.0 | 61.5 | 24.03 | 672.72 |" in text
    assert "| without-rpe | 71.0 | – | 26.45 | – |" in text


def test_speeds_of_other_code(family: ModuleType, tmp_path: Path) -> None:
    rows = [
        {
            "model": "mamba",
            "parameters": 2_400_000,
            "length": n,
            "step_tokens": 512,
            "step": {"median": 2.0} if n == 512 else None,
            "token": {"median": 0.01},
        }
        for n in (512, 2048)
    ]
    save(tmp_path, "peer-speed-cpu.json", {"rows": rows})
    assert "| mamba | 2.40M | 256 | – | 100 | 100 |" in family.other_code()


def test_figures_of_the_paper_have_models(family: ModuleType, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(ROOT / "papers" / "benchmarks"))
    plans = importlib.import_module("language").PLANS
    assert set(family.PUBLISHED) <= set(plans["family"])
    assert set(family.ABLATED) <= set(plans["ablations"])
